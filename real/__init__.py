"""A real GRPO trainer with majority-vote labels.

from real import TrainConfig, train
trace = train(TrainConfig(epochs=12), "runs/guard")
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from guard_core import __version__ as __version__
from real.settings.config import TrainConfig

if TYPE_CHECKING:
    from real.trainer import resume, train

# transformers misses a widget library of notebooks that no bar here needs.
warnings.filterwarnings("ignore", "IProgress not found")

__all__ = ["TrainConfig", "resume", "train"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import, and settings and --help do not need it.
    if name in ("resume", "train"):
        from real import trainer

        return getattr(trainer, name)
    raise AttributeError(f"module 'real' has no attribute {name!r}")
