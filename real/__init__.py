"""A real GRPO trainer with majority-vote labels.

from real import TrainConfig, train
trace = train(TrainConfig(epochs=12), "runs/guard")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from real.config import TrainConfig

if TYPE_CHECKING:
    from real.trainer import train

__all__ = ["TrainConfig", "train"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import, and settings and --help do not need it.
    if name == "train":
        from real.trainer import train

        return train
    raise AttributeError(f"module 'real' has no attribute {name!r}")
