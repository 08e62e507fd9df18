"""The one question most readers have: how likely does a problem end on the wrong answer?"""

from __future__ import annotations

from typing import Literal

from lab.errors import UserError
from sim.theory.chain import lock_in_chain
from sim.theory.diffusion import lock_in_diffusion
from sim.theory.process import Process


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
