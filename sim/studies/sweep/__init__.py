"""Sweeps: many settings, several arms, paired seeds, one table that can be continued.

rows = run_sweep(Sweep(groups=({"guard.tau_FR": (0.1, 0.3, 0.5)},)), "runs/tau")
"""

from sim.studies.sweep.plan import RandomCells, Sweep
from sim.studies.sweep.run import read_sweep, run_sweep

__all__ = ["RandomCells", "Sweep", "read_sweep", "run_sweep"]
