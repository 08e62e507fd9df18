"""What compiled rules read of a batch, drawn once and only if asked for."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from guard_core import Votes
from guard_core.rules import Observations
from sim.world.observe import Observer, Visit
from sim.world.observe.confidence import LOGPROB

Floats = NDArray[np.float64]


class Told:
    """Observations of one visit of a batch."""

    def __init__(self, observer: Observer, visit: Visit, prior_RPA: Floats | None = None) -> None:
        """Draw nothing yet.

        Args:
            observer: of the run.
            visit: the batch.
            prior_RPA: the memory of its problems before this visit, where labels remember.
        """
        self.observer, self.visit, self.prior_RPA = observer, visit, prior_RPA

    @property
    def votes(self) -> Votes:
        """Of the batch."""
        return self.visit.votes

    @property
    def shape(self) -> tuple[int, int]:
        """(R, P)."""
        return self.visit.p_RPA.shape[:2]

    @property
    def place(self) -> tuple[int, int, int, NDArray[np.int64]]:
        """What names the batch's random numbers: seed, first replicate, epoch, problems."""
        return (*self.observer.seeds, self.visit.epoch, self.visit.problems_RP)

    @property
    def confidence(self) -> tuple[float, float]:
        """Signal and share of confidences."""
        strength = self.observer.strength
        return strength.confidence_signal, strength.confidence_share

    @cached_property
    def answers_RPV(self) -> NDArray[np.int32]:
        """Answers of all responses."""
        return self.observer.answers(self.visit)

    @cached_property
    def weights_RPV(self) -> Floats:
        """Weights that SCOPE gives all responses, by their log-probs."""
        return np.exp(self.observer.confidence(self.visit, self.answers_RPV, LOGPROB))

    @cached_property
    def counted(self) -> Observations:
        """The votes alone, for what guard_core computes of them."""
        return Observations(self.votes, np.zeros((*self.shape, 0)))
