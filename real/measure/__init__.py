"""Measurement of a model's token tree and gradients, from which the simulator predicts runs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from guard_core.config import Count, Interval
from real.settings.groups import Settings


@dataclass(kw_only=True)
class MeasureSettings(Settings):
    """Settings of a measurement."""

    responses: Count = 256
    """Sampled responses per problem."""
    min_p: Annotated[float, Interval("(0, 1)")] = 1e-3
    """Sampled responses that the model gives with less probability are left out."""
    min_novel: Annotated[float, Interval("(0, 1)")] = 1e-5
    """Unseen tokens are left out if their leaf has less probability."""
    weights: Count = 8192
    """Weights, drawn at random, on which gradients are kept."""
    max_edges: Count = 4096
    """Most edges of a problem's token tree; the unlikeliest are left out, and counted."""
    unit: Literal["token", "response", "answer"] = "token"
    """Of which gradients are measured; responses or answers for models with long responses."""

    @property
    def numbers(self) -> dict[str, float]:
        """All but the unit, as a response file has them."""
        names = (field.name for field in fields(MeasureSettings) if field.name != "unit")
        return {name: float(getattr(self, name)) for name in names}
