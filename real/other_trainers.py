"""The guard inside another project's trainer, such as verl's or TRL's.

Such a trainer samples, and updates the weights. `Problems` takes its votes and says which rows it
trains on, with the advantages of both streams. `GuardedRun` does so beside the run folder of this
project, and puts the guard's state into the trainer's own checkpoints.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

from guard_core import PolicyStreams
from guard_core.config import ConfigError
from lab.base.errors import UserError
from lab.base.settings import from_values
from lab.trace.manifest import Manifest, locked, read_manifest
from lab.trace.trace import RunFolder
from real.answers import UNPARSEABLE
from real.problems.problem import check_answers
from real.record.alarms import watch_labels
from real.record.checkpoint import Checkpoint, read_checkpoint, read_file, write_checkpoint
from real.record.journal import Ints, Journal, Visited, VoteRows, metrics_of
from real.record.resuming import cut_back
from real.settings.config import TrainConfig
from real.settings.presets import check_same
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
    values: Callable[[], Mapping[str, Any]], rename: Callable[[str], str]
) -> TrainConfig:
    """Return settings of the run; messages, also those of `values`, have the trainer's names."""
    try:
        return from_values(values(), TrainConfig, "").settled()
    except (UserError, ConfigError) as error:
        raise UserError(re.sub(_SETTING, lambda m: rename(m[0]), str(error))) from error


def problem_ids(rows: Sequence[Any]) -> list[str]:
    """Return an id of every row, by its place and content."""
    digests = [hashlib.sha256(msgspec.json.encode(row)).hexdigest()[:12] for row in rows]
    return [f"{place}:{digest}" for place, digest in enumerate(digests)]


GUARD, ANSWERS, VISITS = "guard.safetensors", "answers.json", "visits.json"


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


class Problems:
    """The guard's memory of every problem and the number of its visits."""

    def __init__(
        self, config: TrainConfig, ids: Sequence[int | str], truths: Sequence[str | None]
    ) -> None:
        """Start before any vote, with (N,) ids of the problems and reference answers, if any.

        UserError where one is no label, and the labels are the reference answers.
        """
        source = "the data set" if config.labels == "truth" else ""
        self.notices = check_answers(list(zip(ids, truths, strict=True)), source)
        self._ids = list(ids)
        self.supervisor = Supervisor(config, list(truths))
        self.visits_N = np.zeros(len(ids), np.int64)

    def read(self, texts: Mapping[Any, str], rows: Mapping[int, Sequence[Any]]) -> Voted:
        """Return the votes of a batch.

        Args:
            texts: key of a row to the text of its response.
            rows: place of a problem to the keys of its votes, in their order.
        """
        n_votes = self.supervisor.config.n_votes
        places = sorted(rows)
        answers_PV = np.full((len(places), n_votes), UNPARSEABLE, np.int64)
        for row, problem in enumerate(places):
            # A vote that was never given counts as a vote for nothing, at the end.
            given = [texts[key] for key in rows[problem][:n_votes]]
            found = self.supervisor.answer_ids.ids(problem, given, self.supervisor.config.extract)
            answers_PV[row, : len(found)] = found
        return Voted(np.array(places, np.int64), answers_PV, [list(rows[p]) for p in places])

    def prime(self, batches: Iterable[Voted]) -> Visited:
        """Take in the votes of all problems before training, in batches of any order."""
        n_votes = self.supervisor.config.n_votes
        answers_NV = np.full((len(self._ids), n_votes), UNPARSEABLE, np.int64)
        for voted in batches:
            answers_NV[voted.problems_P] = voted.answers_PV
        columns = self.supervisor.prime(answers_NV, {})
        return Visited(np.arange(len(answers_NV)), answers_NV, columns)

    def visit(self, voted: Voted) -> tuple[Decided, Trained]:
        """Record a visit of a batch's problems; returns the decision and the rows to train on."""
        self.visits_N[voted.problems_P] += 1
        supervisor, visit_P = self.supervisor, self.visits_N[voted.problems_P]
        decided = supervisor.decide(voted.problems_P, voted.answers_PV, visit_P, {})
        assert decided is not None  # only ranks that read no answers get none
        streams = pay(supervisor.rule, decided, supervisor.config.guard)
        return decided, _trained(voted, decided, streams, supervisor.config)

    def state(self) -> dict[str, Any]:
        """Return all that a resumed run needs, by the names of a checkpoint's files."""
        visits = {"ids": self._ids, "visits": self.visits_N.tolist()}
        answers = self.supervisor.answer_ids.to_values()
        return {GUARD: self.supervisor.tensors(), ANSWERS: answers, VISITS: visits}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to where `state` was."""
        if state[VISITS]["ids"] != self._ids:
            raise UserError(
                "problems: others than the checkpoint's; give the old file, or start a new run"
            )
        self.supervisor.restore(state[GUARD], state[ANSWERS])
        self.visits_N = np.array(state[VISITS]["visits"], np.int64)


def _trained(
    voted: Voted, decided: Decided, streams: PolicyStreams, config: TrainConfig
) -> Trained:
    answers_PK = voted.answers_PV[:, : config.n_samples]
    rewarded_PK = (answers_PK >= 0) & (answers_PK == decided.decision.label[:, None])
    both = np.stack([streams.majority, streams.minority]) * streams.weight[:, None]
    columns_PK3 = np.stack([*both, rewarded_PK], axis=-1)
    kept = np.flatnonzero(~streams.drop)
    n_uniform = int(np.count_nonzero(~np.any(columns_PK3[kept, :, :2], axis=(1, 2))))
    own = [voted.keys[row][: config.n_samples] for row in kept.tolist()]
    n_rows = np.array([len(keys) for keys in own])
    given = np.arange(config.n_samples) < n_rows[:, None]
    mini_of_row = np.repeat(kept // config.mini_batch, n_rows)
    starts = np.flatnonzero(np.diff(mini_of_row, prepend=-1)).tolist()
    minis = [range(*part) for part in pairwise([*starts, len(mini_of_row)])]
    return Trained(list(chain(*own)), columns_PK3[kept][given], minis, n_uniform)


FOLDER = "guard"
_STARTED = "started"
"""Fact of a run, by which its checkpoints know its folder."""


class GuardedRun:
    """A run in progress: the votes of its problems, and the record of them and of the training."""

    def __init__(self, folder: RunFolder, problems: Problems) -> None:
        self.folder, self.log, self._problems = folder, Journal(folder), problems
        supervisor = problems.supervisor
        self._votes = VoteRows(supervisor.answer_ids) if supervisor.config.keep_votes else None

    def prime(self, batches: Iterable[Voted]) -> None:
        """Take in the votes of all problems before training, visit 0."""
        for notice in self._problems.notices:
            self.log.notice(notice)
        visited = self._problems.prime(batches)
        self.log.note(n_labels_before=self._problems.supervisor.n_labels())
        self.log.write_visited(visited, {"step": 0, "epoch": 0}, self._votes)

    def visit(
        self, voted: Voted, tokens: Mapping[Any, int], place: Mapping[str, int]
    ) -> tuple[Decided, Trained, dict[str, float]]:
        """Record a visit of a batch's problems; returns also metrics for the trainer's own log.

        Args:
            voted: votes of the batch.
            tokens: key of a row to the length of its response.
            place: step and epoch of the trace.
        """
        decided, trained = self._problems.visit(voted)
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

    def end_step(self, measured: Mapping[str, float], progress: float) -> Mapping[str, Any]:
        """Write the row of the batch that was visited last, with what its training measured."""
        row, supervisor = {**self._row, **measured}, self._problems.supervisor
        self.log.write_steps(row)
        if supervisor.config.labels != "truth":
            watch_labels(self.log, row, len(self._problems.visits_N))
        self.log.note(progress=progress, answers_given_up=supervisor.answers_given_up)
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
        write_checkpoint(checkpoint / FOLDER, self.folder, self._problems.state(), step)


@contextlib.contextmanager
def opened(
    path: Path, manifest: Manifest, problems: Problems, saved: Checkpoint | None
) -> Iterator[GuardedRun]:
    """Make the run folder, or go on with it where a checkpoint left it."""
    if saved is None:
        manifest.extra[_STARTED] = manifest.started
    elif saved.extra.get(_STARTED) != read_manifest(path).started:
        raise UserError(f"{path}: not the run of the checkpoint; name that run's folder")
    new = None if saved else RunFolder.create(path, manifest)
    with locked(path), new or cut_back(path, saved, problems.supervisor.config) as folder:
        yield GuardedRun(folder, problems)


def load(checkpoint: Path, problems: Problems) -> Checkpoint:
    """Put the guard where it was at a checkpoint; returns what `opened` goes on from."""
    folder = checkpoint / FOLDER
    if not folder.is_dir():
        raise UserError(
            f"{folder}: missing; the checkpoint holds no guard, so start from its model instead, "
            "with checkpoints in another folder"
        )
    saved = read_checkpoint(folder)
    check_same(saved.config, problems.supervisor.config, folder)
    problems.restore({name: read_file(folder / name) for name in saved.files})
    return saved


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
