"""The diffusion limit of the two-answer chain and its closed forms.

For a small step the logit follows dx = drift dt + sqrt(variance) dB, one unit of time a visit:
drift `2 * step * sqrt(p q) * s(p)`, s the correct answer's lead in winning votes, and variance
`4 * step**2 * p q`. Its separatrix is p = 1/2. The closed forms linearise the drift there, with
s(p) = x * sqrt(V / (2 pi)) (many votes) and (K - 1) / K = 1 (many samples). `step` is in logit per
unit of standardised advantage; times are in visits.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import cumulative_simpson
from scipy.special import expit, ndtr, ndtri

from sim.theory.process import Floats, Process, logit


def escape_rate(step: float, n_votes: int) -> float:
    """Rate per visit at which a small logit grows: `lambda = .399 * step * sqrt(V)`.

    Valid while |x| < 1 / sqrt(V), where the lead in votes is linear in x, and V >= 8 or so.
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


def lock_in_scale(p0: float, process: Process, n_points: int = 4001) -> float:
    """The same from the full diffusion: exact drift and variance, not linearised.

    The chance to leave at the lower barrier, by the scale function
    `S' = exp(-integral of 2 * drift / variance)`. Still a diffusion: jumps must be small.

    Args:
        p0: chance of the correct answer, in (0, 1).
        process: the two-answer problem.
        n_points: quadrature points between the barriers.

    Raises:
        UserError: `p0` is not in (0, 1).
    """
    x0 = logit(p0)
    half = process.barrier()
    if abs(x0) >= half:
        return float(x0 < 0)
    # Denser near 0, where S' has its only hump, of width sigma_x.
    x_N = half * np.linspace(-1.0, 1.0, n_points) ** 3
    drift_N, square_N = process.moments(x_N)
    slope_N = 2.0 * drift_N / square_N
    exponent_N = cumulative_simpson(slope_N, x=x_N, initial=0)
    scale_N = cumulative_simpson(np.exp(exponent_N.min() - exponent_N), x=x_N, initial=0)
    return 1.0 - float(np.interp(x0, x_N, scale_N / scale_N[-1]))


def drift(x_N: ArrayLike, process: Process) -> Floats:
    """(N,) `2 * step * sqrt(p q) * s(p)`, with the exact lead s of V votes.

    Valid while the rarer answer has several of the K samples, K * min(p, q) > 5 or so; below that
    whole groups agree and do not move. `Process.moments` is exact.
    """
    x_N = np.atleast_1d(np.asarray(x_N, np.float64))
    lead_N = process.wrong_vote(-x_N) - process.wrong_vote(x_N)
    return 2.0 * process.step * np.sqrt(expit(x_N) * expit(-x_N)) * lead_N


def variance(x_N: ArrayLike, step: float) -> Floats:
    """(N,) `4 * step**2 * p q`; valid for many samples (exactly: times ((K - 1) / K)**2)."""
    x_N = np.atleast_1d(np.asarray(x_N, np.float64))
    return 4.0 * step**2 * expit(x_N) * expit(-x_N)


def logit_after(x0: float, step: float, visits: ArrayLike) -> Floats:
    """Logit after some visits with every vote won: `sinh(x/2) = sinh(x0/2) + step * t / 2`.

    Valid off the separatrix (x0 > 2 / sqrt(V)) and until the rarer answer's share falls to 1 / K;
    up to there that share decays like (step * t)**-2. For what follows see `tail_share`.
    """
    grown = math.sinh(x0 / 2.0) + step * np.asarray(visits, np.float64) / 2.0
    return 2.0 * np.arcsinh(grown)


def tail_share(share: float, step: float, n_samples: int, visits: ArrayLike) -> Floats:
    """Share of the rarer answer some visits after it held `share` < 1 / K.

    Then only groups with a single sample of it move the logit, each by about
    `2 * step / sqrt(K)`, and they come at K times its share: its odds q / p fall as
    `1 / odds = 1 / odds0 + 2 * step * (K - 1) / sqrt(K) * t`. So it decays like (step * t)**-1,
    slower than by the sinh law, which counts moves that whole groups in agreement do not make.
    """
    speed = 2.0 * step * (n_samples - 1) / math.sqrt(n_samples)
    inverse_odds = (1.0 - share) / share + speed * np.asarray(visits, np.float64)
    return 1.0 / (1.0 + inverse_odds)


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
