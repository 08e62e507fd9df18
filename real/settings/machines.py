"""The machines that a run is planned for. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from guard_core.config import Count, Positive
from real.settings.groups import Settings


@dataclass(kw_only=True)
class Machines(Settings):
    """GPUs and what connects them, for responses of some length."""

    gpus: Count = 1
    """GPUs of a machine, a rank each."""
    nodes: Count = 1
    """Machines, each with so many GPUs."""
    network: Positive = 400.0
    """Gb/s from a machine to the others over all links."""
    gpu: Literal["a100", "h100", "h200"] = "h100"
    """Kind of GPU: its speed, and its memory unless that is given."""
    gpu_memory: Positive | None = None
    """GiB of each GPU."""
    mean_tokens: Count = 700
    """Mean tokens of a response, of which one in a batch reaches the limit."""

    @property
    def world(self) -> int:
        """All GPUs, each with a rank and a share of an engine."""
        return self.gpus * self.nodes
