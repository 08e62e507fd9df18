"""A uniform grid of logits and the visit's law as sparse matrices on it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import csc_array, csr_array

from sim.theory.process import Floats, Process


class Moves(NamedTuple):
    """One visit as an operator on functions of the logit, split by the label."""

    x_N: Floats
    """(N,) grid."""
    up_NN: csr_array
    """Moves up (correct label) that stay on the grid."""
    down_NN: csr_array
    """Moves down (wrong label) that stay on the grid."""
    stay_up_N: Floats
    """(N,) probability of the correct label without a move."""
    stay_down_N: Floats
    """(N,) probability of the wrong label without a move."""
    up_N: Floats
    """(N,) probability of any move up, summed rather than one minus the rest: it may be tiny."""
    down_N: Floats
    """(N,) probability of any move down."""
    up_out_N: Floats
    """(N,) probability to leave the grid at its upper end."""
    down_out_N: Floats
    """(N,) probability to leave the grid at its lower end."""
    order: int
    """Points per interpolation: 2 linear, 4 cubic."""

    def value(self, f_N: Floats, x: float) -> float:
        """A function on the grid, evaluated at a logit on it."""
        return float(interpolate(self.x_N, f_N, np.array([x]), self.order)[0])


def interpolate(x_N: Floats, f_N: Floats, y_E: Floats, order: int = 4) -> Floats:
    """(E,) values at logits `y` between the grid's ends of a function on the grid."""
    first_E, weights_EO = _stencil(x_N, y_E, order)
    return (weights_EO * f_N[first_E[:, None] + np.arange(order)]).sum(1)


def grid(process: Process, half_width: float, spacing: float) -> Floats:
    """(N,) uniform logits from `-half_width` to `half_width`, at most `spacing` apart.

    Raises:
        UserError: the process needs more points than fit into memory.
    """
    n_cells = 2 * max(4, int(np.ceil(half_width / spacing)))
    process.check_grid(n_cells + 1)
    return np.linspace(-half_width, half_width, n_cells + 1)


def moves(process: Process, x_N: Floats, order: int) -> Moves:
    """The visit's operator by local Lagrange interpolation on `order` points.

    Args:
        process: the two-answer problem.
        x_N: (N,) uniform grid; what moves beyond its ends is absorbed there.
        order: 4 for functions that are smooth across the grid, 2 where they jump at its ends.
    """
    law = process.law(x_N)
    up_NN, up_out_N = _operator(x_N, law.sizes_M[1:], law.up_NM[:, 1:], order)
    down_NN, down_out_N = _operator(x_N, -law.sizes_M[1:], law.down_NM[:, 1:], order)
    stays = law.up_NM[:, 0], law.down_NM[:, 0]
    goes = law.up_NM[:, 1:].sum(1), law.down_NM[:, 1:].sum(1)
    return Moves(x_N, up_NN, down_NN, *stays, *goes, up_out_N, down_out_N, order)


def system(diagonal_N: Floats, *minus: csr_array) -> csc_array:
    """The matrix `diag(diagonal_N) - sum(minus)`, ready to be factorised."""
    size = diagonal_N.size
    place = np.arange(size)
    matrix = csr_array((diagonal_N, (place, place)), shape=(size, size))
    for operator in minus:
        matrix = matrix - operator
    return csc_array(matrix)


def _operator(x_N: Floats, shifts_S: Floats, chance_NS: Floats, order: int) -> tuple:
    """Sum over S moves of chance * shift, and the (N,) chance to leave the grid."""
    target_NS = x_N[:, None] + shifts_S
    inside_NS = (target_NS >= x_N[0]) & (target_NS <= x_N[-1])
    row_E, _ = np.nonzero(inside_NS)
    starts_E, weights_EO = _stencil(x_N, target_NS[inside_NS], order)
    values_EO = weights_EO * chance_NS[inside_NS][:, None]
    columns_EO = starts_E[:, None] + np.arange(order)
    rows_EO = np.broadcast_to(row_E[:, None], columns_EO.shape)
    entries = (values_EO.ravel(), (rows_EO.ravel(), columns_EO.ravel()))
    operator_NN = csr_array(entries, shape=(x_N.size, x_N.size))
    return operator_NN, np.where(inside_NS, 0.0, chance_NS).sum(1)


def _stencil(x_N: Floats, y_E: Floats, order: int) -> tuple[np.ndarray, Floats]:
    """First grid point (E,) and Lagrange weights (E, order) that interpolate at each `y`."""
    place_E = (y_E - x_N[0]) / (x_N[1] - x_N[0])
    first_E = np.floor(place_E).astype(np.int64) - (order // 2 - 1)
    first_E = np.clip(first_E, 0, x_N.size - order)
    t_E = place_E - first_E
    weights_EO = np.ones((y_E.size, order))
    for node in range(order):
        for other in range(order):
            if other != node:
                weights_EO[:, node] *= (t_E - other) / (node - other)
    return first_E, weights_EO
