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
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils import get_total_norm

from guard_core.config import ConfigError
from lab.base.columns import Ints
from lab.base.errors import UserError
from lab.base.settings import from_values
from lab.trace.manifest import locked, read_manifest
from lab.trace.trace import RunFolder
from real.answers import UNPARSEABLE, AnswerIds, Equality, Extract, repeats
from real.problems.problem import check_answers, reference
from real.ranks.distributed import whole_tensor
from real.record.alarms import watch_labels
from real.record.checkpoint import GUARD, Checkpoint, read_checkpoint, read_file, write_checkpoint
from real.record.journal import Journal, Visited, metrics_of
from real.record.resuming import cut_back
from real.settings.config import TrainConfig
from real.settings.stored import check_same, manifest_of
from real.vote.decide import Supervisor, pay

OF_RUN = {
    "answer_check", "keep_votes", "labels", "max_mismatch", "n_votes", "rule", "rule_options",
    "seed", "step_factor", "treatment",
}  # fmt: skip
"""Settings of the run that such a trainer has none of its own for."""

_SETTING = re.compile(r"(?<=\$\.)\w+|(?<![.\w])[A-Za-z]\w*(?= = )")
"""A setting that a message of `TrainConfig` names."""

Refusals = dict[str, tuple[tuple[Any, ...], str]]
"""Settings of a trainer to the values that the guard can stand beside, and why no others."""


def settings_from(
    value_of: Callable[[str], Any],
    refusals: Refusals,
    names: Mapping[str, str],
    others: Callable[[], Mapping[str, Any]],
    prefix: str = "",
) -> TrainConfig:
    """Return settings of the run, or refuse those of a trainer that the guard cannot stand beside.

    `value_of` maps a setting of the trainer to its value, `names` ours to those that decide them.
    `others` returns further ones of ours, which win; `prefix` stands before ours in messages.
    """
    for name, (allowed, reason) in refusals.items():
        if (value := value_of(name)) not in allowed:
            raise UserError(f"{name} = {value}: {reason}; set {allowed[0]}")
    values = {ours: v for ours, theirs in names.items() if (v := value_of(theirs)) is not None}
    # The trainer writes the checkpoints; this project's `resume` must not take such a folder.
    fixed = {"prompt_suffix": "", "checkpoint_every": 0}
    try:
        return from_values({**values, **others(), **fixed}, TrainConfig, "").settled()
    except (UserError, ConfigError) as error:
        named = re.sub(_SETTING, lambda m: names.get(m[0], f"{prefix}{m[0]}"), str(error))
        raise UserError(named) from error


def check_given(given: Iterable[str], known: Collection[str], prefix: str) -> None:
    """Refuse settings of the guard that are none."""
    for name in set(given).difference(known):
        raise UserError(f"{prefix}{name}: no such setting; there are {', '.join(sorted(known))}")


def is_right(
    text: str, truth: object, equality: Equality | None, extract: Extract = "strict"
) -> float | None:
    """Return 1 for a response with the true answer, else 0; None without one to compare with."""
    ids = AnswerIds([reference(truth)], equality)
    return float(ids.ids(0, [text], extract)[0] == ids.truth_id(0)) if ids.has_truth(0) else None


FOLDER = "guard"
MINORITY = "minority_advantages"
"""Column of the second stream in the rows of both trainers; the first is their `advantages`."""


class Voted(NamedTuple):
    """Votes of some problems."""

    problems_P: Ints
    """(P,) places of the problems in the data set, ascending."""
    answers_PV: Ints
    """(P, V) answer ids, -1 unparseable or never given."""
    keys: list[list[Any]]
    """(P, up to V) keys of the rows, in the order of the answers."""
    repeated: float
    """Share of the votes that answer with a formula of their question."""


class Paid(NamedTuple):
    """A visit of a batch, as its trainer needs it."""

    columns: dict[Any, NDArray[np.float64]]
    """Key of every vote to majority and minority advantage, times the problem's weight and 0 where
    it is not trained on, and its reward, 0 or 1."""
    keys: list[Any]
    """Rows to train on: the K responses of every problem that is not skipped."""
    minis: list[range]
    """Places in `keys` of the rows of every optimizer step."""
    metrics: dict[str, float]


class GuardedRun:
    """The guard's memory of every problem and, in the process that `opened` it, the run folder."""

    folder: RunFolder
    log: Journal

    def __init__(
        self,
        config: TrainConfig,
        problems: Sequence[Any],
        answers: Sequence[object],
        prompts: Sequence[Any] = (),
    ) -> None:
        """Start before any vote, with (N,) names of the problems and reference answers, if any.

        UserError where one is neither text nor a number, or is no label, and the labels are these.
        Prompts are (N,) texts or chats; without them no answer is found to repeat its question.
        """
        source = "the data set" if config.labels == "truth" else ""
        truths = [reference(given, f"the answer in row {n}") for n, given in enumerate(answers)]
        self.notices = check_answers(list(zip(problems, truths, strict=True)), source)
        self._digest = hashlib.sha256(msgspec.json.encode([list(problems), truths])).hexdigest()
        self.config, self._n_problems = config, len(truths)
        texts = (prompt if isinstance(prompt, str) else prompt[-1]["content"] for prompt in prompts)
        self._questions = list(map(str, texts)) or [""] * len(truths)
        self.supervisor = Supervisor(config, truths)
        self.saved: Checkpoint | None = None
        """What it goes on from, if anything."""
        self.step = 0
        """Batches that ended."""

    def load(self, checkpoint: Path) -> None:
        """Go back to where the trainer wrote a checkpoint."""
        folder = checkpoint / FOLDER
        if not folder.is_dir():
            raise UserError(f"{folder}: missing; start a new run from this checkpoint's model")
        self.saved = saved = read_checkpoint(folder)
        check_same(saved.config, self.config, folder)
        if saved.extra.get("problem_digest") != self._digest:
            raise UserError("problems: not the checkpoint's; give those, or start a new run")
        self.supervisor.restore(*(read_file(folder / name) for name in GUARD))
        self.step = saved.step

    @contextlib.contextmanager
    def opened(self, path: Path, task: str, backend: str) -> Iterator[None]:
        """Make the run folder, or go on with it where the loaded checkpoint left it."""
        new, saved = None, self.saved
        if saved is None:
            manifest = manifest_of(self.config, self._n_problems, task, backend)
            # By which checkpoints know their problems and their folder.
            manifest.extra |= {"problem_digest": self._digest, "started": manifest.started}
            new = RunFolder.create(path, manifest)
        elif saved.extra.get("started") != read_manifest(path).started:
            raise UserError(f"{path}: not the run of the checkpoint; name that run's folder")
        with locked(path), new or cut_back(path, saved, self.config) as self.folder:
            self.log = Journal(self.folder)
            if self.config.keep_votes:
                self.log.keep_votes(self.supervisor.answer_ids)
            yield

    def read(self, texts: Mapping[Any, str], problem_of: Mapping[Any, int]) -> Voted:
        """Return the votes of a batch, by key the texts of rows and, in order, places of votes."""
        rows = defaultdict[int, list[Any]](list)
        for key, problem in problem_of.items():
            rows[problem].append(key)
        places = sorted(rows)
        answers_PV = np.full((len(places), self.config.n_votes), UNPARSEABLE, np.int64)
        n_repeated = 0
        for answers_V, problem in zip(answers_PV, places, strict=True):
            # A vote that was never given counts as a vote for nothing, at the end.
            given = [texts[key] for key in rows[problem][: self.config.n_votes]]
            ids = self.supervisor.answer_ids.ids(problem, given, self.config.extract)
            answers_V[: len(ids)] = ids
            n_repeated += repeats(self._questions[problem], given)
        keys = [rows[place] for place in places]
        return Voted(np.array(places, np.int64), answers_PV, keys, n_repeated / answers_PV.size)

    def prime(self, batches: Iterable[Voted]) -> None:
        """Take in the votes of all problems before training, visit 0, in batches of any order."""
        for notice in self.notices:
            self.log.notice(notice)
        answers_NV = np.full((self._n_problems, self.config.n_votes), UNPARSEABLE, np.int64)
        for voted in batches:
            answers_NV[voted.problems_P] = voted.answers_PV
        columns = self.supervisor.prime(answers_NV, {})
        self.log.note(n_labels_before=self.supervisor.n_labels())
        visited = Visited(np.arange(len(answers_NV)), answers_NV, columns)
        self.log.write_visited(visited, self._place(0))

    def _place(self, step: int) -> dict[str, int]:
        n_batches = max(1, self._n_problems // self.config.batch_size)
        return {"step": step, "epoch": -(-step // n_batches)}

    def visit(self, voted: Voted, tokens: Mapping[Any, int]) -> Paid:
        """Record a visit of the next batch's problems, with the tokens of every row's response."""
        (problems_P, answers_PV, keys_P, repeated), place = voted, self._place(self.step + 1)
        visit_P = 1 + self.supervisor.state.visits[problems_P].astype(np.int64)
        decided = self.supervisor.decide(problems_P, answers_PV, visit_P, {})
        assert decided is not None  # only ranks that read no answers get none
        self.log.write_visited(Visited(problems_P, answers_PV, decided.rows), place)
        streams = pay(self.supervisor.rule, decided, self.config.guard)
        weight_P = np.where(streams.drop, 0.0, streams.weight)
        both_PK2 = np.stack([streams.majority, streams.minority], 2) * weight_P[:, None, None]
        columns_PV3 = np.zeros((*answers_PV.shape, 3))
        columns_PV3[:, : both_PK2.shape[1], :2] = both_PK2
        columns_PV3[..., 2] = (answers_PV >= 0) & (answers_PV == decided.decision.label[:, None])
        kept = np.flatnonzero(~streams.drop)
        kept_keys = [keys_P[row][: self.config.n_samples] for row in kept.tolist()]
        mini_of_row = np.repeat(kept // self.config.mini_batch, list(map(len, kept_keys)))
        ends = np.cumsum(np.unique(mini_of_row, return_counts=True)[1]).tolist()
        minis = [range(*part) for part in pairwise([0, *ends])]
        trained = list(chain(*kept_keys))
        self._row = {
            **decided.step_columns,
            **place,
            "replicate": 0,
            "repeated": repeated,
            "n_uniform": int(np.count_nonzero(~both_PK2[kept].any(axis=(1, 2)))),
            "n_updates": len(minis),
            "tokens": sum(tokens[key] for key in trained),
            "tokens_sampled": sum(tokens.values()),
            "mean_length": float(np.mean(list(tokens.values()))),
        }
        pairs = zip(keys_P, columns_PV3, strict=True)
        columns = {key: row for keys, rows in pairs for key, row in zip(keys, rows, strict=False)}
        return Paid(columns, trained, minis, metrics_of("guard", {**self._row, **decided.rows}))

    def end_step(self, measured: Mapping[str, float], progress: float) -> Mapping[str, Any]:
        """Write the row of the batch that was visited last, with what its training measured."""
        row = {**self._row, **measured}
        self.step += 1
        self.log.write("steps", row)
        if self.config.labels != "truth":
            watch_labels(self.log, row, self._n_problems)
        self.log.note(progress=progress, answers_given_up=self.supervisor.answers_given_up)
        return row

    def evaluated(self, scores: NDArray[np.float64], n_responses: float) -> None:
        """Write an evaluation, of responses to each problem; pass@1 only of scores from 0 to 1.

        Those of problems without a true answer are NaN, and left out.
        """
        known = scores[~np.isnan(scores)]
        is_share = known.size and known.min() >= 0 and known.max() <= 1
        row = {"replicate": 0, "pass_at_1": float(known.mean()) if is_share else np.nan}
        row |= {"maj_accuracy": np.nan, "n_responses": n_responses, **self._place(self.step)}
        self.log.write("evals", row)

    def save(self, checkpoint: Path) -> None:
        """Write the guard's part of a checkpoint, before the trainer makes it its latest."""
        state = self.supervisor.tensors(), self.supervisor.answer_ids.to_values()
        files = dict(zip(GUARD, state, strict=True))
        write_checkpoint(checkpoint / FOLDER, self.folder, files, self.step)


@torch.no_grad()
def update_norm(optimizer: Any) -> float:
    """Return the L2 norm of the change of all parameters by the last step, over all ranks.

    It follows from AdamW's state and the learning rates, before a schedule changes them, without a
    second copy of the weights. NaN for other optimizers, and for weights in 16 bits: how they were
    rounded does not.
    """
    moved = optimizer.state
    if not isinstance(optimizer, torch.optim.AdamW) or any(p.itemsize < 4 for p in moved):
        return math.nan
    norms: list[torch.Tensor] = []
    for group in optimizer.param_groups:
        rate, (beta1, beta2) = group["lr"], group["betas"]
        decay = rate * group["weight_decay"]
        for parameter in group["params"]:
            if state := moved.get(parameter):
                n = float(state["step"])
                squares = state.get("max_exp_avg_sq", state["exp_avg_sq"])  # the former of amsgrad
                root = (squares / (1 - beta2**n)).sqrt_().add_(group["eps"])
                move = state["exp_avg"] * (rate / (1 - beta1**n)) / root
                change = move + decay * (parameter + move) / (1 - decay)
                norms.append(torch.linalg.vector_norm(change))
    return float(whole_tensor(get_total_norm(norms)))
