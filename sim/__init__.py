"""A fast stochastic simulator of answer-probability dynamics.

trace = simulate(SimConfig(replicates=20, seed=1), "runs/guard")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guard_core import __version__
    from sim.engine.run import simulate
    from sim.settings.config import SimConfig

# numba and pandas take seconds to import, and settings and --help do not need them.
_HOMES = {
    "SimConfig": "sim.settings.config",
    "__version__": "guard_core",
    "simulate": "sim.engine.run",
}

__all__ = ["SimConfig", "__version__", "simulate"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
