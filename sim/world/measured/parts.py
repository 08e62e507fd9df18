"""One replicate in which every problem reads weights of its own.

AdamW's change of the weights is a sum over the gradients of all visited problems, each divided by
the common root mean square. So the change that problem i causes can be separated: with
`others` switched off problem i reads the part that its own gradients caused, with `own` switched
off the part that all other gradients caused. Both parts keep the common mean square, so an update
is of the size that it has in the whole model. Weight decay and, with curvature, the distance from
the start are those of the weights that a problem reads.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.world.measured.training import (
    Adam,
    Batch,
    add_gradients,
    draw_batch,
    move,
    rows_of,
    take_in,
)
from sim.world.measured.tree import Tree, Weights, largest, on_all_weights, turning

Floats = NDArray[np.float64]


class Apart:
    """The weights that each of N problems reads."""

    def __init__(self, start: Weights, n_problems: int, own: bool) -> None:
        """Start all problems at the same weights.

        Args:
            start: the replicate's weights before training.
            n_problems: N.
            own: a problem reads the effect of its own updates; otherwise that of all others.
        """
        self._start, self._own = start, own
        shape = (n_problems, len(start.w))
        self._w_ND, self._first_ND = np.zeros(shape), np.zeros(shape)
        self._travelled_ND = np.zeros(shape)
        """Integral of `turning` d(scale w)."""
        # Directions of curvature are computed when they are read: all problems move at every step.
        self._linear = start._replace(basis=start.basis[:0], u=np.zeros(0))

    def read_by(self, problem: int) -> Weights:
        """Return the weights that a problem reads."""
        w_D = self._w_ND[problem]
        return self._start._replace(
            w=w_D,
            moved=on_all_weights(self._start.scale, w_D),
            u=self._start.basis @ self._travelled_ND[problem],
            first_moment=self._first_ND[problem],
        )

    def train(
        self, tree: Tree, adam: Adam, taken: int, batch: Batch, key: np.uint64, norm_P: Floats
    ) -> int:
        """Take one optimizer step per problem of a batch; as `training.train_batch`."""
        drawn = []
        for p, n in enumerate(batch.problems_P):
            one = rows_of(batch, p, p + 1)
            edges, leaves = largest(tree, one.problems_P)
            before_1E, leaves_1L = np.empty((1, edges)), np.empty((1, leaves), np.int64)
            tokens_1 = draw_batch(tree, self.read_by(n), one, key, before_1E, leaves_1L)
            drawn.append((one, before_1E, leaves_1L, tokens_1[0]))
        gradient_D = np.empty(self._w_ND.shape[1])
        for p, (one, before_1E, leaves_1L, tokens) in enumerate(drawn):
            n, norm_P[p] = batch.problems_P[p], 0.0
            given = (adam.kl_coef, one, before_1E, leaves_1L, gradient_D)
            if not add_gradients(tree, self.read_by(n), *given):
                norm_P[p] = np.nan
                return taken
            if tokens:
                gradient_D /= tokens
                taken += 1
                state = (self._linear, self._w_ND, self._first_ND, self._travelled_ND)
                given = (n, self._own, batch.rates_P[p], adam, taken)
                norm_P[p] = move_all(*state, gradient_D, *given)
        return taken


@njit(cache=True, nogil=True)
def move_all(
    start: Weights,
    w_ND: Floats,
    first_ND: Floats,
    travelled_ND: Floats,
    gradient_D: Floats,
    problem: int,
    own: bool,
    rate: float,
    adam: Adam,
    t: int,
) -> float:
    """Move what every problem reads by the gradient of one visited problem.

    Args:
        start: of all problems, with the common mean square and without curvature.
        w_ND: change of the weights that each problem reads.
        first_ND: Adam's mean gradients.
        travelled_ND: integrals of `turning` d(scale w).
        gradient_D: of the visited problem; clipped in place.
        problem: the visited problem.
        own: it alone reads the gradient; otherwise all others do.
        rate: learning rate.
        adam: the optimizer.
        t: optimizer steps taken, with this one.

    Returns:
        Norm of the change that the visited problem reads.
    """
    take_in(start, gradient_D, adam)
    none_D, norm = np.zeros_like(gradient_D), 0.0
    for n in range(w_ND.shape[0]):
        before_D = w_ND[n].copy()
        moved_D = on_all_weights(start.scale, w_ND[n])
        at = Weights(
            start.features,
            start.first,
            start.basis,
            start.curvature,
            start.growth,
            start.sampling,
            start.scale,
            start.start,
            w_ND[n],
            moved_D,
            start.u,
            first_ND[n],
            start.second_moment,
            start.mean_w,
            start.mean_u,
        )
        turned = turning(at)
        felt_D = gradient_D if (n == problem) == own else none_D
        change = move(at, felt_D, rate, adam, t)
        if n == problem:
            norm = change
        for i in range(before_D.shape[0]):
            travelled_ND[n, i] += turned * start.scale[i] * (w_ND[n, i] - before_D[i])
    return norm
