"""Interface of the answer policies."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sim.settings.config import SimConfig

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Policy(Protocol):
    """A model of what the network would answer, for R replicates at once."""

    def probabilities(self, problems_RP: Ints, out_RPA: Floats) -> int:
        """Write the answer probabilities of the given problems.

        Returns:
            -1, or the flat place r * P + p of the first problem with a logit that is not finite.
        """
        ...

    def update(
        self,
        problems_RP: Ints,
        step: float,
        gradient_RPA: Floats,
        drop_RP: Bools | None = None,
    ) -> Floats:
        """Take the optimizer steps of one batch, see `sim.world.optimizer`.

        Args:
            problems_RP: the batch, no problem twice.
            step: step size of the schedule.
            gradient_RPA: weighted gradient of every problem, 0 where it was dropped.
            drop_RP: problems that left the batch, none if left out. It matters beyond the zero
                gradient for mini-batches of several problems and for Adam.

        Returns:
            (R, P) norm of the parameter change of the optimizer step that the problem was
            scheduled for, 0 where that step was left out.
        """
        ...


def replicate_numbers(config: SimConfig) -> list[int]:
    """Number of the replicate whose draws each replicate uses for its problems."""
    if config.fixed_population:
        return [0] * config.replicates
    return [config.first_replicate + r for r in range(config.replicates)]


def dropped(drop_RP: Bools | None, shape: tuple[int, ...]) -> Bools:
    """The given problems, or none of them."""
    return np.zeros(shape, np.bool_) if drop_RP is None else drop_RP
