"""The problems of a run before training, checked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.errors import UserError


@dataclass(frozen=True, slots=True)
class Population:
    """The problems of every replicate before training.

    Raises:
        UserError: an answer's probability is negative or no number, those of a problem do not sum
            to one, or an id names no answer; the message names the field, replicate and problem.
    """

    p0_RNA: NDArray[np.float64]
    """Answer probabilities; rows sum to one."""
    truth_RN: NDArray[np.int64]
    """Id of the correct answer."""
    attractor_RN: NDArray[np.int64]
    """Id of the attractor, a wrong answer."""

    def __post_init__(self) -> None:
        """Check probabilities and ids."""
        total_RN = self.p0_RNA.sum(axis=-1)
        # A comparison with NaN is false, so this finds it too.
        wrong_RN = ~((self.p0_RNA >= 0).all(axis=-1) & (np.abs(total_RN - 1) < 1e-6))
        if wrong_RN.any():
            r, n = np.argwhere(wrong_RN)[0]
            raise UserError(
                f"population: p0_RNA of replicate {r}, problem {n} must be probabilities that sum "
                f"to 1; they sum to {total_RN[r, n]:g}, the least is {self.p0_RNA[r, n].min():g}"
            )
        for name in ("truth_RN", "attractor_RN"):
            self._check_ids(name, getattr(self, name))
        if (same_RN := self.truth_RN == self.attractor_RN).any():
            r, n = np.argwhere(same_RN)[0]
            raise UserError(
                f"population: attractor_RN of replicate {r}, problem {n} is the correct answer"
            )

    def _check_ids(self, name: str, ids_RN: NDArray[np.int64]) -> None:
        R, N, A = self.p0_RNA.shape
        if ids_RN.shape != (R, N):
            raise UserError(f"population: {name} has shape {ids_RN.shape}, must be ({R}, {N})")
        if (bad_RN := (ids_RN < 0) | (ids_RN >= A)).any():
            r, n = np.argwhere(bad_RN)[0]
            raise UserError(
                f"population: {name} of replicate {r}, problem {n} is {ids_RN[r, n]}, must be an "
                f"answer id in 0..{A - 1}"
            )
