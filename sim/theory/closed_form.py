"""Closed forms of the two-answer chain in the diffusion limit, and `lock_in`.

For a small step the logit follows dx = drift dt + sqrt(variance) dB, one unit of time a visit:
drift `2 * step * sqrt(p q) * s(p)`, where s is the probability that the correct answer wins the
vote minus the probability that it loses, and variance `4 * step**2 * p q`. Its separatrix is
p = 1/2. The closed forms linearise the drift there, with s(p) = x * sqrt(V / (2 pi)) (many votes)
and (K - 1) / K = 1 (many samples). `step` is in logit per unit of standardised advantage; times are
in visits.
"""

from __future__ import annotations

import math
from typing import Literal

from scipy.special import ndtr, ndtri

from lab.errors import UserError
from sim.theory.chain import lock_in_chain
from sim.theory.process import Process, logit


def lock_in(
    p0: float,
    step: float,
    n_votes: int,
    n_samples: int,
    method: Literal["chain", "diffusion"] = "chain",
) -> float:
    """Probability that a two-answer problem ends on the wrong answer for ever.

    Args:
        p0: chance of the correct answer before training, in (0, 1).
        step: logit step per unit of standardised advantage (eta), > 0.
        n_votes: V, at least 3.
        n_samples: K, the first K votes are trained on; in 2..V.
        method: `chain` is exact (error below 1e-6); `diffusion` is the closed form for a small
            step * sqrt(V), which does not depend on K.

    Raises:
        UserError: a value is out of bounds, or the step is too small for the chain's grid.
    """
    process = Process(step, n_votes, n_samples)
    if method == "chain":
        return float(lock_in_chain(process).at(p0))
    if method == "diffusion":
        return lock_in_diffusion(p0, step, n_votes)
    raise UserError(f"theory: method = {method!r} must be 'chain' or 'diffusion'")


def escape_rate(step: float, n_votes: int) -> float:
    """Rate per visit at which a small logit grows: `lambda = .399 * step * sqrt(V)`.

    Valid while |x| < 1 / sqrt(V), where s is linear in x, and V >= 8 or so.
    """
    return step * math.sqrt(n_votes / (2.0 * math.pi))


def separatrix_width(step: float, n_votes: int) -> float:
    """Width in logit of the zone where either answer can win.

    `sigma_x = sqrt(step / (.798 * sqrt(V)))`, from variance `step**2` and rate `lambda`. Valid
    while it is below the 2 / sqrt(V) over which the drift saturates: step * sqrt(V) < 1.
    """
    return step / math.sqrt(2.0 * escape_rate(step, n_votes))


def lock_in_diffusion(p0: float, step: float, n_votes: int) -> float:
    """Probability to end on the wrong answer, `Phi(-x0 / sigma_x)`.

    Valid for small step * sqrt(V): against the exact chain with K = V = 64 the error is at most
    .004 up to step * sqrt(V) = .25, .013 at 1, .03 at 2.5, .11 at 8. A small K adds an error at
    every step size, .01 at K = 8. It does better than the diffusion deserves, since what it leaves
    out nearly cancels: visits are discrete (fewer wrong ends) and the drift saturates (more).
    As the step grows the truth tends to `Process.wrong_first_move`.

    Raises:
        UserError: `p0` is not in (0, 1).
    """
    return float(ndtr(-logit(p0) / separatrix_width(step, n_votes)))


def window_closed_form(p0: float, step: float, n_votes: int, delta: float = 0.01) -> float:
    """Visits until the loser wins a vote with probability below `delta`.

    `ln(x_d / max(|x0|, sigma_x)) / lambda` with `x_d = 2 * z_delta / sqrt(V)`, 0 where the start
    is beyond x_d. A scale, not a mean: it leaves out the slowing of the drift beyond 1 / sqrt(V),
    the time spent within sigma_x (on average .635 / lambda from x0 = 0), and that a problem on
    its way to the other side must first cross 1/2. At V = 64, step .1, p0 = .52 it gives 5.0, the
    exact mean is 8.5, and 9.9 for the problems that are lost. `sim.theory.chain.windows` is exact.

    Args:
        p0: chance of the correct answer, in (0, 1).
        step: logit per unit of standardised advantage.
        n_votes: V.
        delta: in (0, 1/2).

    Raises:
        UserError: `p0` is not in (0, 1).
    """
    extinct = -2.0 * float(ndtri(delta)) / math.sqrt(n_votes)
    start = max(abs(logit(p0)), separatrix_width(step, n_votes))
    return max(0.0, math.log(extinct / start)) / escape_rate(step, n_votes)
