"""The two-answer process: one visit's votes, label and logit move, written down exactly.

One problem has a correct and a wrong answer; `x` is the logit of the correct one. A visit draws V
votes, labels the problem by their majority (a tie by a fair coin) and makes one GRPO step on the
first K. With standardised advantages that step moves `x` towards the label by
`2 * step * sqrt(ph * (1 - ph) * (K - 1) / K)`, `ph` the share of either answer among the K.
The 1e-6 that GRPO adds to the standard deviation is left out: it is below 1e-5 of any move.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csc_array, csr_array, diags_array
from scipy.sparse.linalg import SuperLU, splu
from scipy.special import gammaln, log_expit

from lab.base.columns import Floats
from lab.base.errors import UserError

_MOST_TABLE_CELLS = 8_000_000
_FAR = 300.0
"""Logits are cut here, where chances are still larger than the smallest double."""


class VisitLaw(NamedTuple):
    """Joint law of the label and of the size of the move, from each of N logits."""

    sizes_M: Floats
    """(M,) sizes of the moves, M = K // 2 + 1; the first is 0, a group that agrees with itself."""
    up_NM: Floats
    """(N, M) probability that the correct answer is the label and the move has that size."""
    down_NM: Floats


@dataclass(frozen=True, slots=True)
class Process:
    """A two-answer problem under TTRL."""

    step: float
    """Logit step per unit of standardised advantage (eta in docs/method.md)."""
    n_votes: int
    """V, at least 3: of two votes only ties move the logit, and a fair walk never locks in."""
    n_samples: int
    """K, the first K of the votes are trained on; at least 2."""

    def __post_init__(self) -> None:
        _check_number("step", self.step, math.inf, "a finite number > 0")
        check_count("n_votes", self.n_votes, 3)
        check_count("n_samples", self.n_samples, 2, self.n_votes)

    def sizes(self) -> Floats:
        """(M,) sizes of the possible moves, by the number of samples for the rarer answer."""
        share_M = np.arange(self.n_samples // 2 + 1) / self.n_samples
        unbiased = (self.n_samples - 1) / self.n_samples
        return 2.0 * self.step * np.sqrt(share_M * (1.0 - share_M) * unbiased)

    def law(self, x_N: ArrayLike) -> VisitLaw:
        """Exact law of one visit."""
        # Label and sampled share depend on each other through the K common votes, so the law sums
        # over both counts: k correct among the first K, r among the other V - K.
        x_N = np.atleast_1d(np.asarray(x_N, np.float64))
        self.check_grid(x_N.size)
        n_rest, k_K = self.n_votes - self.n_samples, np.arange(self.n_samples + 1)
        sampled_NK, rest_NR = binomial(self.n_samples, x_N), binomial(n_rest, x_N)
        # Both tails are summed from their own end: one minus the other would lose small ones.
        zero_N1 = np.zeros((x_N.size, 1))
        at_most_NR = np.hstack([zero_N1, np.cumsum(rest_NR, axis=1)])
        at_least_NR = np.hstack([np.cumsum(rest_NR[:, ::-1], axis=1)[:, ::-1], zero_N1])
        needed = (self.n_votes + 1) // 2, self.n_votes // 2 + 1  # a tie counts half
        wins_NK, loses_NK = (
            0.5 * sum(tail_NR[:, np.clip(n - k_K, 0, n_rest + 1)] for n in needed)
            for tail_NR in (at_least_NR, at_most_NR)
        )
        return VisitLaw(self.sizes(), _fold(sampled_NK * wins_NK), _fold(sampled_NK * loses_NK))

    def check_grid(self, n_points: int) -> None:
        """Raise a `UserError` if the law at so many logits is too large a table."""
        if n_points * max(self.n_votes + 1, 16) > _MOST_TABLE_CELLS:
            raise UserError(
                f"theory: step = {self.step:g} with n_votes = {self.n_votes} needs {n_points} grid "
                "points, too many for the chain; take a larger step, fewer votes or the diffusion"
            )

    def wrong_vote(self, x_N: ArrayLike) -> Floats:
        """(N,) probability that the wrong answer is the label of one visit."""
        x_N = np.atleast_1d(np.asarray(x_N, np.float64))
        below_NV = np.cumsum(binomial(self.n_votes, x_N), axis=1)
        return 0.5 * (below_NV[:, (self.n_votes - 1) // 2] + below_NV[:, self.n_votes // 2])

    def wrong_first_move(self, x_N: ArrayLike) -> Floats:
        """(N,) probability that the first move is down: lock-in in the limit of a large step."""
        law = self.law(np.clip(x_N, -_FAR, _FAR))
        up_N, down_N = law.up_NM[:, 1:].sum(1), law.down_NM[:, 1:].sum(1)
        return down_N / (up_N + down_N)

    def barrier(self, risk: float = 1e-10) -> float:
        """Logit beyond which a problem counts as locked in: where a share `risk` moves back."""
        return _crossing(lambda x: float(self.wrong_first_move(x)[0]), risk)

    def extinction(self, delta: float = 0.01) -> float:
        """Logit (> 0) at which the losing answer wins a vote with probability `delta`."""
        _check_number("delta", delta, 0.5, "in (0, 0.5)")
        return _crossing(lambda x: float(self.wrong_vote(x)[0]), delta)


def logit(p: float) -> float:
    """Logit of a chance in (0, 1) of the correct answer."""
    _check_number("p0", p, 1.0, "in (0, 1)")
    return math.log(p) - math.log1p(-p)


def _check_number(name: str, value: Any, most: float, bound: str) -> None:
    if not (isinstance(value, int | float | np.number) and 0 < value < most):
        raise UserError(f"theory: {name} = {value} must be {bound}")


def check_count(name: str, value: Any, least: int, most: float = math.inf) -> None:
    """Raise a `UserError` unless `value` is a whole number in `least..most`."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not (whole and least <= value <= most):
        bound = f">= {least}" if most == math.inf else f"in {least}..{most}"
        raise UserError(f"theory: {name} = {value} must be a whole number {bound}")


def _crossing(fall: Callable[[float], float], level: float) -> float:
    """Logit at which a falling function, 1/2 at 0, passes `level`."""
    low, high = 0.0, 1.0
    while fall(high) > level:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if fall(middle) > level else (low, middle)
    return high


def binomial(n: int, x_N: Floats) -> Floats:
    """(N, n + 1) probabilities of the number of correct answers among `n`."""
    k_n = np.arange(n + 1)
    ways_n = gammaln(n + 1) - gammaln(k_n + 1) - gammaln(n - k_n + 1)
    return np.exp(ways_n + k_n * log_expit(x_N)[:, None] + (n - k_n) * log_expit(-x_N)[:, None])


def _fold(table_NK: Floats) -> Floats:
    """(N, M) sums of the columns k and K - k, which move `x` equally far."""
    n_sizes = (table_NK.shape[1] + 1) // 2
    folded_NM = table_NK[:, :n_sizes] + table_NK[:, ::-1][:, :n_sizes]
    if table_NK.shape[1] % 2:
        folded_NM[:, -1] /= 2.0
    return folded_NM


class Moves(NamedTuple):
    """One visit as an operator on functions of the logit, split by the label, correct or wrong."""

    x_N: Floats
    """(N,) grid."""
    go_NN: tuple[csr_array, csr_array]
    """Moves up, with the correct label, and down that stay on the grid."""
    stay_N: tuple[Floats, Floats]
    """(N,) probability of the label without a move."""
    move_N: tuple[Floats, Floats]
    """(N,) probability of any move, summed rather than one minus the rest: it may be tiny."""
    out_N: tuple[Floats, Floats]
    """(N,) probability to leave the grid, at its upper or lower end."""
    order: int
    """Points per interpolation: 2 linear, 4 cubic."""

    def after(self, label: int, f_N: Floats, beyond: float = 0.0) -> Floats:
        """(N,) mean of a function after a visit with a label, 0 correct; `beyond` off the grid."""
        go_NN, stay_N, out_N = self.go_NN[label], self.stay_N[label], self.out_N[label]
        return go_NN @ f_N + stay_N * f_N + beyond * out_N

    def value(self, f_N: Floats, x: float) -> float:
        """A function on the grid, evaluated at a logit on it."""
        return float((reader(self.x_N, np.array([x]), self.order) @ f_N)[0])


def moves(process: Process, half_width: float, spacing: float, order: int) -> Moves:
    """The visit's operator by local Lagrange interpolation on a uniform grid around 0.

    Args:
        half_width: logit of the grid's upper end; what moves beyond its ends is absorbed there.
        spacing: greatest distance of two points.
        order: 4 for functions that are smooth across the grid, 2 where they jump at its ends.
    """
    n_cells = 2 * max(4, int(np.ceil(half_width / spacing)))
    process.check_grid(n_cells + 1)
    x_N = np.linspace(-half_width, half_width, n_cells + 1)
    law = process.law(x_N)
    up_NN, up_out_N = shift(x_N, law.sizes_M[1:], law.up_NM[:, 1:], order)
    down_NN, down_out_N = shift(x_N, -law.sizes_M[1:], law.down_NM[:, 1:], order)
    stays = law.up_NM[:, 0], law.down_NM[:, 0]
    goes = law.up_NM[:, 1:].sum(1), law.down_NM[:, 1:].sum(1)
    return Moves(x_N, (up_NN, down_NN), stays, goes, (up_out_N, down_out_N), order)


def lu(diagonal_N: Floats, *minus: csr_array) -> SuperLU:
    """The factorised matrix `diag(diagonal_N) - sum(minus)`."""
    matrix = diags_array(diagonal_N, format="csr")
    for operator in minus:
        matrix = matrix - operator
    return splu(csc_array(matrix))


def shift(x_N: Floats, shifts_S: Floats, chance_NS: Floats, order: int) -> tuple:
    """Sum over S moves of chance * shift, and the (N,) chance to leave the grid."""
    target_NS = x_N[:, None] + shifts_S
    inside_NS = (target_NS >= x_N[0]) & (target_NS <= x_N[-1])
    read_EN = reader(x_N, target_NS[inside_NS], order)
    values = read_EN.data * np.repeat(chance_NS[inside_NS], order)
    rows = order * np.append(0, np.cumsum(inside_NS.sum(1)))
    operator_NN = csr_array((values, read_EN.indices, rows), shape=(x_N.size, x_N.size))
    operator_NN.sum_duplicates()
    return operator_NN, np.where(inside_NS, 0.0, chance_NS).sum(1)


def reader(x_N: Floats, y_E: Floats, order: int = 4) -> csr_array:
    """(E, N) operator that reads a function on the grid at logits `y` between its ends.

    By local Lagrange interpolation, of `order` points each.
    """
    place_E = (y_E - x_N[0]) / (x_N[1] - x_N[0])
    first_E = np.floor(place_E).astype(np.int64) - (order // 2 - 1)
    first_E = np.clip(first_E, 0, x_N.size - order)
    t_E = place_E - first_E
    weights_EO = np.ones((y_E.size, order))
    for node, other in itertools.permutations(range(order), 2):
        weights_EO[:, node] *= (t_E - other) / (node - other)
    columns_EO = first_E[:, None] + np.arange(order)
    rows = order * np.arange(y_E.size + 1)
    entries = weights_EO.ravel(), columns_EO.ravel(), rows
    return csr_array(entries, shape=(y_E.size, x_N.size))
