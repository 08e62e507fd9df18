"""The guard inside another project's trainer, such as verl's or TRL's.

Such a trainer samples, and updates the weights. `GuardedRun` takes its votes and says which rows it
trains on, with the advantages of both streams. It writes the run folder of this project, and puts
the guard's state into the trainer's own checkpoints.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor
from torch.linalg import vector_norm
from torch.nn.utils import get_total_norm

from guard_core.config import ConfigError
from lab.base.errors import UserError
from lab.base.settings import from_values
from lab.trace.manifest import locked, read_manifest
from lab.trace.trace import RunFolder
from real.answers import UNPARSEABLE, AnswerIds, Equality, Extract
from real.problems.problem import check_answers
from real.record.alarms import watch_labels
from real.record.checkpoint import Checkpoint, read_checkpoint, read_file, write_checkpoint
from real.record.journal import Ints, Journal, Visited, VoteRows, metrics_of
from real.record.resuming import cut_back
from real.settings.config import TrainConfig
from real.settings.stored import check_same, manifest_of
from real.vote.decide import Decided, Supervisor, pay

OF_RUN = frozenset(
    {
        "answer_check", "keep_votes", "labels", "max_mismatch", "n_votes", "rule", "rule_options",
        "seed", "step_factor",
    }
)  # fmt: skip
"""Settings of the run that such a trainer has none of its own for."""

_SETTING = re.compile(r"(?<=\$\.)\w+|(?<![.\w])[A-Za-z]\w*(?= = )")
"""A setting that a message of `TrainConfig` names."""


def settings_from(
    values: Callable[[], Mapping[str, Any]], names: Mapping[str, str], prefix: str = ""
) -> TrainConfig:
    """Return settings of the run; messages, also those of `values`, have the trainer's names.

    `names` are those of the trainer's own settings; others stand under the `prefix`.
    """
    # The trainer writes the checkpoints; this project's `resume` must not take such a folder.
    fixed = {"prompt_suffix": "", "checkpoint_every": 0}
    try:
        return from_values({**values(), **fixed}, TrainConfig, "").settled()
    except (UserError, ConfigError) as error:
        named = re.sub(_SETTING, lambda m: names.get(m[0], f"{prefix}{m[0]}"), str(error))
        raise UserError(named) from error


def check_given(given: Iterable[str], known: Collection[str], prefix: str) -> None:
    """Refuse settings of the guard that are none."""
    for name in set(given).difference(known):
        raise UserError(f"{prefix}{name}: no such setting; there are {', '.join(sorted(known))}")


Refusals = Mapping[str, tuple[tuple[Any, ...], str]]
"""Settings of a trainer to the values that the guard can stand beside, and why no others."""


def check_trainer(refusals: Refusals, value_of: Callable[[str], Any]) -> None:
    """Refuse settings of a trainer that the guard cannot stand beside."""
    for name, (allowed, reason) in refusals.items():
        if (value := value_of(name)) not in allowed:
            raise UserError(f"{name} = {value}: {reason}; set {allowed[0]}")


def problem_ids(rows: Sequence[Any]) -> list[str]:
    """Return an id of every row, by its place and content."""
    digests = [hashlib.sha256(msgspec.json.encode(row)).hexdigest()[:12] for row in rows]
    return [f"{place}:{digest}" for place, digest in enumerate(digests)]


def is_right(
    text: str, truth: str | None, equality: Equality | None, extract: Extract = "strict"
) -> bool:
    """Return whether the answer of a response is the true one, as evaluations reward it."""
    ids = AnswerIds([truth], equality)
    answer = ids.ids(0, [text], extract)[0]
    return bool(answer >= 0 and answer == ids.truth_id(0))


GUARD, ANSWERS, VISITS = "guard.safetensors", "answers.json", "visits.json"
FOLDER = "guard"
_STARTED = "started"
"""Fact of a run, by which its checkpoints know its folder."""


class Voted(NamedTuple):
    """Votes of some problems."""

    problems_P: Ints
    """(P,) places of the problems in the data set, ascending."""
    answers_PV: Ints
    """(P, V) answer ids, -1 unparseable or never given."""
    keys: list[list[Any]]
    """(P, up to V) keys of the rows, in the order of the answers."""


class Trained(NamedTuple):
    """Rows that stay in the batch."""

    keys: list[Any]
    """Of the K responses of every problem that is not skipped."""
    columns: NDArray[np.float64]
    """(rows, 3) majority and minority advantage, times the problem's weight; reward, 0 or 1."""
    minis: list[range]
    """Places in `keys` of the rows of every optimizer step."""
    n_uniform: int
    """Problems of these whose advantages are all 0."""


class GuardedRun:
    """The guard's memory of every problem and, in the process that `opened` it, the run folder."""

    folder: RunFolder
    log: Journal

    def __init__(
        self, config: TrainConfig, ids: Sequence[int | str], truths: Sequence[str | None]
    ) -> None:
        """Start before any vote, with (N,) ids of the problems and reference answers, if any.

        UserError where one is no label, and the labels are the reference answers.
        """
        source = "the data set" if config.labels == "truth" else ""
        self.notices = check_answers(list(zip(ids, truths, strict=True)), source)
        self.config, self._ids = config, list(ids)
        self.supervisor = Supervisor(config, list(truths))
        self.visits_N = np.zeros(len(ids), np.int64)
        self.saved: Checkpoint | None = None
        """What it goes on from, if anything."""

    def load(self, checkpoint: Path) -> None:
        """Go back to where the trainer wrote a checkpoint."""
        folder = checkpoint / FOLDER
        if not folder.is_dir():
            raise UserError(
                f"{folder}: missing; the checkpoint holds no guard, so start from its model "
                "instead, with checkpoints in another folder"
            )
        saved = read_checkpoint(folder)
        check_same(saved.config, self.config, folder)
        state = {name: read_file(folder / name) for name in saved.files}
        if state[VISITS]["ids"] != self._ids:
            raise UserError(
                "problems: others than the checkpoint's; give the old file, or start a new run"
            )
        self.supervisor.restore(state[GUARD], state[ANSWERS])
        self.visits_N = np.array(state[VISITS]["visits"], np.int64)
        self.saved = saved

    @contextlib.contextmanager
    def opened(self, path: Path, task: str, backend: str) -> Iterator[None]:
        """Make the run folder, or go on with it where the loaded checkpoint left it."""
        manifest, saved = manifest_of(self.config, len(self._ids), task, backend), self.saved
        if saved is None:
            manifest.extra[_STARTED] = manifest.started
        elif saved.extra.get(_STARTED) != read_manifest(path).started:
            raise UserError(f"{path}: not the run of the checkpoint; name that run's folder")
        new = None if saved else RunFolder.create(path, manifest)
        with locked(path), new or cut_back(path, saved, self.config) as self.folder:
            self.log = Journal(self.folder)
            answer_ids = self.supervisor.answer_ids
            self._votes = VoteRows(answer_ids) if self.config.keep_votes else None
            yield

    def read(self, texts: Mapping[Any, str], rows: Mapping[int, Sequence[Any]]) -> Voted:
        """Return the votes of a batch.

        Args:
            texts: key of a row to the text of its response.
            rows: place of a problem to the keys of its votes, in their order.
        """
        places = sorted(rows)
        answers_PV = np.full((len(places), self.config.n_votes), UNPARSEABLE, np.int64)
        for row, problem in enumerate(places):
            # A vote that was never given counts as a vote for nothing, at the end.
            given = [texts[key] for key in rows[problem][: self.config.n_votes]]
            found = self.supervisor.answer_ids.ids(problem, given, self.config.extract)
            answers_PV[row, : len(found)] = found
        return Voted(np.array(places, np.int64), answers_PV, [list(rows[p]) for p in places])

    def prime(self, batches: Iterable[Voted]) -> None:
        """Take in the votes of all problems before training, visit 0, in batches of any order."""
        for notice in self.notices:
            self.log.notice(notice)
        answers_NV = np.full((len(self._ids), self.config.n_votes), UNPARSEABLE, np.int64)
        for voted in batches:
            answers_NV[voted.problems_P] = voted.answers_PV
        columns = self.supervisor.prime(answers_NV, {})
        self.log.note(n_labels_before=self.supervisor.n_labels())
        visited = Visited(np.arange(len(answers_NV)), answers_NV, columns)
        self.log.write_visited(visited, {"step": 0, "epoch": 0}, self._votes)

    def visit(
        self, voted: Voted, tokens: Mapping[Any, int], place: Mapping[str, int]
    ) -> tuple[Decided, Trained, dict[str, float]]:
        """Record a visit of a batch's problems; returns decision, rows to train on, and metrics.

        Args:
            voted: votes of the batch.
            tokens: key of a row to the length of its response.
            place: step and epoch of the trace.
        """
        self.visits_N[voted.problems_P] += 1
        visit_P = self.visits_N[voted.problems_P]
        decided = self.supervisor.decide(voted.problems_P, voted.answers_PV, visit_P, {})
        assert decided is not None  # only ranks that read no answers get none
        trained = self._trained(voted, decided)
        visited = Visited(voted.problems_P, voted.answers_PV, decided.rows)
        self.log.write_visited(visited, place, self._votes)
        self._row = {
            **decided.step_columns,
            **place,
            "replicate": 0,
            "n_uniform": trained.n_uniform,
            "n_updates": len(trained.minis),
            "tokens": sum(tokens[key] for key in trained.keys),
            "tokens_sampled": sum(tokens.values()),
            "mean_length": float(np.mean(list(tokens.values()))),
        }
        return decided, trained, metrics_of("guard", {**self._row, **decided.rows})

    def _trained(self, voted: Voted, decided: Decided) -> Trained:
        streams = pay(self.supervisor.rule, decided, self.config.guard)
        n_samples = self.config.n_samples
        answers_PK = voted.answers_PV[:, :n_samples]
        rewarded_PK = (answers_PK >= 0) & (answers_PK == decided.decision.label[:, None])
        both = np.stack([streams.majority, streams.minority]) * streams.weight[:, None]
        columns_PK3 = np.stack([*both, rewarded_PK], axis=-1)
        kept = np.flatnonzero(~streams.drop)
        n_uniform = int(np.count_nonzero(~np.any(columns_PK3[kept, :, :2], axis=(1, 2))))
        own = [voted.keys[row][:n_samples] for row in kept.tolist()]
        n_rows = np.array([len(keys) for keys in own])
        given = np.arange(n_samples) < n_rows[:, None]
        mini_of_row = np.repeat(kept // self.config.mini_batch, n_rows)
        starts = np.flatnonzero(np.diff(mini_of_row, prepend=-1)).tolist()
        minis = [range(*part) for part in pairwise([*starts, len(mini_of_row)])]
        return Trained(list(chain(*own)), columns_PK3[kept][given], minis, n_uniform)

    def end_step(self, measured: Mapping[str, float], progress: float) -> Mapping[str, Any]:
        """Write the row of the batch that was visited last, with what its training measured."""
        row = {**self._row, **measured}
        self.log.write_steps(row)
        if self.config.labels != "truth":
            watch_labels(self.log, row, len(self._ids))
        self.log.note(progress=progress, answers_given_up=self.supervisor.answers_given_up)
        return row

    def evaluated(
        self, scores: NDArray[np.float64], n_problems: int, place: Mapping[str, int]
    ) -> None:
        """Write an evaluation; pass@1 only of scores from 0 to 1."""
        is_share = scores.size and scores.min() >= 0 and scores.max() <= 1
        row = {"replicate": 0, "pass_at_1": float(scores.mean()) if is_share else np.nan}
        row |= {"maj_accuracy": np.nan, "n_responses": len(scores) / max(1, n_problems)}
        self.log.write_evals({**row, **place})

    def save(self, checkpoint: Path, step: int) -> None:
        """Write the guard's part of a checkpoint, before the trainer makes it its latest."""
        visits = {"ids": self._ids, "visits": self.visits_N.tolist()}
        answers = self.supervisor.answer_ids.to_values()
        state = {GUARD: self.supervisor.tensors(), ANSWERS: answers, VISITS: visits}
        write_checkpoint(checkpoint / FOLDER, self.folder, state, step)


@torch.no_grad()
def update_norm(optimizer: Any, rates: list[float]) -> float:
    """Return the L2 norm of the change of all parameters by the last step, over all ranks.

    It follows from AdamW's state and the learning rates of its groups at the step, without a second
    copy of the weights. NaN for other optimizers.
    """
    if not isinstance(optimizer, torch.optim.AdamW):
        return math.nan
    norms: list[torch.Tensor] = []
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        decay, (beta1, beta2) = rate * group["weight_decay"], group["betas"]
        for parameter in group["params"]:
            if state := optimizer.state.get(parameter):
                n = float(state["step"])
                root = (state["exp_avg_sq"] / (1 - beta2**n)).sqrt_().add_(group["eps"])
                move = state["exp_avg"] * (rate / (1 - beta1**n)) / root
                norms.append(vector_norm(move + decay * (parameter + move) / (1 - decay)))
    total = get_total_norm(norms)
    return float(total.full_tensor() if isinstance(total, DTensor) else total)
