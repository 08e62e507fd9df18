"""Interface of the answer policies, and what those of this package share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sim.settings.config import SimConfig
from sim.world.optimizer import make_optimizer
from sim.world.softmax import softmax_rows

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


class OptimizedPolicy(ABC):
    """A policy whose parameters are moved by `sim.world.optimizer`."""

    def __init__(self, config: SimConfig, p0_RNA: Floats) -> None:
        """Start at the given probabilities."""
        self._z_RNA = np.log(p0_RNA)
        self._optimizer = make_optimizer(config)

    def probabilities(self, problems_RP: Ints, out_RPA: Floats) -> int:
        """Implement `Policy.probabilities`."""
        self._write_logits(problems_RP, out_RPA)
        return softmax_rows(out_RPA)

    def update(
        self, problems_RP: Ints, step: float, gradient_RPA: Floats, drop_RP: Bools | None = None
    ) -> Floats:
        """Implement `Policy.update`."""
        norm_RP = np.empty(problems_RP.shape)
        if drop_RP is None:
            drop_RP = np.zeros(problems_RP.shape, np.bool_)
        self._take_steps(problems_RP, step, gradient_RPA, drop_RP, norm_RP)
        return norm_RP

    @abstractmethod
    def _write_logits(self, problems_RP: Ints, out_RPA: Floats) -> None:
        """Write the logits of the given problems."""

    @abstractmethod
    def _take_steps(
        self, problems_RP: Ints, step: float, gradient_RPA: Floats, drop_RP: Bools, norm_RP: Floats
    ) -> None:
        """Take the optimizer steps of one batch and write their norms."""
