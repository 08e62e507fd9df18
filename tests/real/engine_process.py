"""A scripted process of an engine, and a model for it."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

COMMAND = (sys.executable, str(Path(__file__).with_name("scripted_child.py")))


class TinyModel(torch.nn.Module):
    """Four weights that sum to `total`."""

    def __init__(self, total: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4,), total / 4))

    class config:
        @staticmethod
        def get_text_config() -> None:
            return None
