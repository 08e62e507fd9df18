"""A real GRPO trainer with majority-vote labels.

Example:
    from real import TrainConfig, train
    trace = train(TrainConfig(epochs=12), "runs/guard")
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guard_core import __version__
    from real.settings.config import TrainConfig
    from real.trainer import resume, train

# transformers misses a widget library of notebooks that no bar here needs.
warnings.filterwarnings("ignore", "IProgress not found")

# torch takes seconds to import, and settings and --help do not need it.
_HOMES = {
    "TrainConfig": "real.settings.config",
    "__version__": "guard_core",
    "resume": "real.trainer",
    "train": "real.trainer",
}

__all__ = ["TrainConfig", "__version__", "resume", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'real' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
