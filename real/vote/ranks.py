"""The guard of a run with several ranks: the first decides, the others are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from real.answers import UNPARSEABLE, AnswerIds
from real.ranks.distributed import Ranks
from real.settings.config import TrainConfig
from real.vote.between_ranks import packed, tell_further, told_further, unpacked
from real.vote.paying import Observed
from real.vote.supervision import Ints, Supervision, Supervisor


def make_supervisor(config: TrainConfig, truths: list[str | None], ranks: Ranks) -> Supervisor:
    """The supervisor of this rank; see `Supervisor`.

    Comparisons of answers have a time limit, so two ranks that read the same answers could find
    different ones equal. Hence one rank decides for all.
    """
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
        self._ranks.broadcast(torch.from_numpy(packed(found.streams)))
        self._ranks.broadcast(torch.tensor(found.n_skipped))
        if found.paid is not None:
            tell_further(self._ranks, found.paid)
        return found


class Follower(Supervisor):
    """Does as it is told: it reads no answers, and knows no problem's state."""

    def __init__(self, config: TrainConfig, truths: list[str | None], ranks: Ranks) -> None:
        super().__init__(config, truths)
        self.close()
        self.equality = None
        self.answer_ids = _Unread(truths)
        self._ranks = ranks

    def visit(
        self, problems_P: Ints, answers_PV: Ints, visit: int, observed: Observed | None = None
    ) -> Supervision:
        """What the first rank decided; without rows for the trace."""
        if observed is not None and observed.verify is not None:
            observed.verify(None)
        shape = (len(problems_P), 2 * self.config.n_samples + 2)
        sent_PC = self._ranks.broadcast(torch.zeros(shape, dtype=torch.float64))
        streams = unpacked(sent_PC.numpy())
        n_skipped = int(self._ranks.broadcast(torch.tensor(0)))
        paid = None if self.rule is None else told_further(self._ranks, streams)
        return Supervision(streams, {}, n_skipped, {}, paid)

    def ballots(self, problems_P: Ints, answers_PV: Ints, visit: int) -> None:
        """Nothing: this rank writes no trace."""

    def restore(self, arrays: dict[str, Any], answers: dict[str, object]) -> None:
        """Nothing to go back to."""


class _Unread(AnswerIds):
    """Takes no time over answers that another rank reads."""

    def ids(self, problem: int, responses: Any) -> NDArray[np.int64]:
        return np.full(len(responses), UNPARSEABLE, np.int64)
