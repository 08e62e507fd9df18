"""The guard of a run with several ranks: the first decides, the others are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from guard_core import PolicyStreams
from real.answers import UNPARSEABLE, AnswerBook
from real.config import TrainConfig
from real.ranks.distributed import Ranks
from real.rules.checks import check_ranks, rule_of
from real.rules.paying import Observed
from real.supervision import Ints, Supervision, Supervisor


def make_supervisor(config: TrainConfig, truths: list[str | None], ranks: Ranks) -> Supervisor:
    """The supervisor of this rank; see `Supervisor`.

    Comparisons of answers have a time limit, so two ranks that read the same answers could find
    different ones equal. Hence one rank decides for all.

    Raises:
        UserError: the rule has needs that several ranks cannot serve.
    """
    check_ranks(rule_of(config), ranks.world)
    if ranks.world == 1:
        return Supervisor(config, truths)
    return (Leader if ranks.first else Follower)(config, truths, ranks)


class Leader(Supervisor):
    """Reads answers, asks the guard, and tells the other ranks what comes of it."""

    def __init__(self, config: TrainConfig, truths: list[str | None], ranks: Ranks) -> None:
        super().__init__(config, truths)
        self._ranks = ranks

    def visit(
        self, problems_P: Ints, answers_PV: Ints, visit: int, observed: Observed | None = None
    ) -> Supervision:
        """See `Supervisor`; all ranks must call this."""
        found = super().visit(problems_P, answers_PV, visit, observed)
        s = found.streams
        columns = [s.majority, s.minority, s.weight[:, None], s.drop[:, None]]
        packed = torch.from_numpy(np.concatenate(columns, axis=1, dtype=np.float64))
        self._ranks.broadcast(packed)
        self._ranks.broadcast(torch.tensor(found.n_skipped))
        return found


class Follower(Supervisor):
    """Does as it is told: it reads no answers, and knows no problem's state."""

    def __init__(self, config: TrainConfig, truths: list[str | None], ranks: Ranks) -> None:
        super().__init__(config, truths)
        self.close()
        self.equality = None
        self.book = _Unread(truths)
        self._ranks = ranks

    def visit(
        self, problems_P: Ints, answers_PV: Ints, visit: int, observed: Observed | None = None
    ) -> Supervision:
        """What the first rank decided; without rows for the trace."""
        n_samples = self.config.n_samples
        shape = (len(problems_P), 2 * n_samples + 2)
        packed = self._ranks.broadcast(torch.zeros(shape, dtype=torch.float64)).numpy()
        n_skipped = int(self._ranks.broadcast(torch.tensor(0)))
        streams = PolicyStreams(
            majority=packed[:, :n_samples],
            minority=packed[:, n_samples : 2 * n_samples],
            weight=packed[:, -2],
            drop=packed[:, -1] > 0,
        )
        return Supervision(streams, {}, n_skipped, {})

    def ballots(self, problems_P: Ints, answers_PV: Ints, visit: int) -> None:
        """Nothing: this rank writes no trace."""

    def restore(self, arrays: dict[str, Any], answers: dict[str, object]) -> None:
        """Nothing to go back to."""


class _Unread(AnswerBook):
    """Takes no time over answers that another rank reads."""

    def ids(self, problem: int, responses: Any) -> NDArray[np.int64]:
        return np.full(len(responses), UNPARSEABLE, np.int64)
