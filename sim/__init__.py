"""A fast stochastic simulator of answer-probability dynamics.

Example:
    trace = simulate(SimConfig(replicates=20, seed=1), "runs/guard")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guard_core import __version__
    from sim.engine.run import simulate
    from sim.settings.config import SimConfig
    from sim.studies.compare import compare
    from sim.studies.sweep import Sweep, run_sweep

# numba and pandas take seconds to import, and settings and --help do not need them.
_HOMES = {
    "SimConfig": "sim.settings.config",
    "__version__": "guard_core",
    "compare": "sim.studies.compare",
    "Sweep": "sim.studies.sweep",
    "run_sweep": "sim.studies.sweep",
    "simulate": "sim.engine.run",
}

__all__ = ["SimConfig", "Sweep", "__version__", "compare", "run_sweep", "simulate"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
