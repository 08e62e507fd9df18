"""Votes of problems that verl names by `extra_info.index`: the trainer's supervisor, fed by key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from guard_core import PolicyStreams
from lab.errors import UserError
from real.answers import UNPARSEABLE
from real.settings.config import TrainConfig
from real.verl.plugin.rows import votes_of
from real.vote.decide import Decided, Supervisor
from real.vote.pay import pay

Ints = NDArray[np.int64]
GUARD, ANSWERS, VISITS = "guard.safetensors", "answers.json", "visits.json"


class Voted(NamedTuple):
    """Votes of some problems."""

    problems_P: Ints
    """(P,) places of the problems in the data set, ascending."""
    answers_PV: Ints
    """(P, V) answer ids, -1 unparseable or never given."""
    keys: list[list[str]]
    """(P, up to V) rows of the queue, in the order of the answers."""


class Trained(NamedTuple):
    """Rows that stay in the batch."""

    keys: list[str]
    """Of the K responses of every problem that is not skipped."""
    columns: NDArray[np.float64]
    """(rows, 3) majority and minority advantage, times the problem's weight; reward, 0 or 1."""
    minis: list[range]
    """Places in `keys` of the rows of every optimizer step."""
    n_uniform: int
    """Problems of these whose advantages are all 0."""


class Problems:
    """The guard's memory of every problem, and how often each was visited.

    verl leaves some problems out of every epoch, so that a visit is none of an epoch.
    """

    def __init__(
        self, config: TrainConfig, ids: Sequence[int | None], truths: Sequence[str | None]
    ) -> None:
        """Start before any vote.

        Args:
            config: settled settings.
            ids: (N,) `extra_info.index` of the problems.
            truths: (N,) reference answers, for the trace; None where there is none.

        Raises:
            UserError: an index is missing or stands twice.
        """
        self.ids = [i for i in ids if i is not None]
        number, n = Counter(ids).most_common(1)[0]
        if len(self.ids) < len(ids) or n > 1:
            what = "missing" if len(self.ids) < len(ids) else f"{number} occurs {n} times"
            raise UserError(
                f"extra_info.index: {what} in data.train_files; the guard remembers problems by "
                "it, so number them, as `guard-verl problems` does"
            )
        self._place_of = {number: place for place, number in enumerate(self.ids)}
        self.supervisor = Supervisor(config, list(truths))
        self.visits_N = np.zeros(len(ids), np.int64)

    def read(self, texts: Mapping[str, str], ids: Mapping[str, int]) -> Voted:
        """Return the votes of a batch.

        Args:
            texts: key to response, in any order.
            ids: key to `extra_info.index`.
        """
        n_votes = self.supervisor.config.n_votes
        groups = votes_of(texts, {key: self._place_of[ids[key]] for key in texts})
        answers_PV = np.full((len(groups), n_votes), UNPARSEABLE, np.int64)
        for row, (problem, keys) in enumerate(groups.items()):
            # A session that failed leaves no row; it counts as a vote for nothing, at the end.
            found = self.supervisor.answer_ids.ids(problem, [texts[key] for key in keys[:n_votes]])
            answers_PV[row, : len(found)] = found
        return Voted(np.array(list(groups), np.int64), answers_PV, list(groups.values()))

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
        visits = {"ids": self.ids, "visits": self.visits_N.tolist()}
        answers = self.supervisor.answer_ids.to_values()
        return {GUARD: self.supervisor.tensors(), ANSWERS: answers, VISITS: visits}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to where `state` was.

        Raises:
            UserError: the problems are others.
        """
        if state[VISITS]["ids"] != self.ids:
            raise UserError(
                "data.train_files: other problems than the checkpoint's; give the old file, or "
                "start a new run"
            )
        self.supervisor.restore(state[GUARD], state[ANSWERS])
        self.visits_N = np.array(state[VISITS]["visits"], np.int64)


def _trained(
    voted: Voted, decided: Decided, streams: PolicyStreams, config: TrainConfig
) -> Trained:
    answers_PK = voted.answers_PV[:, : config.n_samples]
    rewarded_PK = (answers_PK >= 0) & (answers_PK == decided.decision.label[:, None])
    weight_P1 = streams.weight[:, None]
    both = weight_P1 * streams.majority, weight_P1 * streams.minority
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
