"""Independent problems: z_ia = log p0_ia + u_ia, and an update moves u of its own problem alone."""

from __future__ import annotations

import numpy as np
from numba import njit

from sim.settings.config import SimConfig
from sim.world.optimizer import (
    Moments,
    Rule,
    count_kept,
    mean_and_clip,
    moments,
    own_square,
    rule,
    step_row,
)
from sim.world.policies.base import Bools, Floats, Ints, dropped, softmax
from sim.world.populations import Population


class Independent:
    """Every problem has its own logits: the null model."""

    def __init__(self, config: SimConfig, population: Population) -> None:
        """Start at the population's probabilities."""
        self._z_RNA = np.log(population.p0_RNA)
        self._rule = rule(config)
        self._moments = moments(self._rule, *self._z_RNA.shape)

    def probabilities(self, problems_RP: Ints, out_RPA: Floats) -> int:
        """Implement `Policy.probabilities`."""
        return softmax(self._z_RNA, problems_RP, out_RPA)

    def update(
        self,
        problems_RP: Ints,
        step: float,
        gradient_RPA: Floats,
        drop_RP: Bools | None = None,
    ) -> Floats:
        """Implement `Policy.update`."""
        norm_RP = np.empty(problems_RP.shape)
        drop_RP = dropped(drop_RP, problems_RP.shape)
        _update(
            self._z_RNA,
            self._rule,
            self._moments,
            problems_RP,
            step,
            gradient_RPA,
            drop_RP,
            norm_RP,
        )
        return norm_RP


@njit(cache=True)
def _update(
    z_RNA: Floats,
    rule: Rule,
    moments: Moments,
    problems_RP: Ints,
    step: float,
    gradient_RPA: Floats,
    drop_RP: Bools,
    norm_RP: Floats,
) -> None:
    R, P, _ = gradient_RPA.shape
    for r in range(R):
        for first in range(0, P, rule.mini_batch):
            last = min(first + rule.mini_batch, P)
            norm_RP[r, first:last] = 0.0
            kept = count_kept(drop_RP[r], first, last)
            if kept == 0:
                continue
            whole = own_square(gradient_RPA[r], drop_RP[r], first, last)
            scale = mean_and_clip(rule, whole, kept)
            square = 0.0
            for p in range(first, last):
                if not drop_RP[r, p]:
                    n = problems_RP[r, p]
                    square += step_row(
                        z_RNA[r, n], gradient_RPA[r, p], scale, step, rule, moments, r, n
                    )
            norm_RP[r, first:last] = np.sqrt(square)
