"""A fast stochastic simulator of answer-probability dynamics.

trace = simulate(SimConfig(replicates=20, seed=1), "runs/guard")
"""

from sim.config import SimConfig
from sim.run import simulate

__all__ = ["SimConfig", "simulate"]
