"""Exact and closed-form theory of the two-answer problem, to check the simulator against."""

from sim.theory.chain import lock_in_chain, windows, wrong_by_visit
from sim.theory.closed_form import lock_in
from sim.theory.flips import flip_law, flip_rate_by_visit, single_flip_share
from sim.theory.monte_carlo import monte_carlo
from sim.theory.process import Process
from sim.theory.tables import regime_chart

__all__ = [
    "Process",
    "flip_law",
    "flip_rate_by_visit",
    "lock_in",
    "lock_in_chain",
    "monte_carlo",
    "regime_chart",
    "single_flip_share",
    "windows",
    "wrong_by_visit",
]
