"""A fast stochastic simulator of answer-probability dynamics.

trace = simulate(SimConfig(replicates=20, seed=1), "runs/guard")
"""

# ruff: noqa: E402
from sim.settings.machine_code import use_own_cache

use_own_cache()

from guard_core import __version__ as __version__
from sim.engine.run import simulate
from sim.settings.config import SimConfig

__all__ = ["SimConfig", "simulate"]
