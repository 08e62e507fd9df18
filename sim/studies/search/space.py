"""The candidates of a search: arms with settings, each different run once."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lab.errors import UserError
from sim.settings.config import SimConfig
from sim.studies.sweep.axes import Assignments, Axis, Range, Value, check_axis, read
from sim.studies.sweep.plan import Cell

ARMS = ("ttrl", "guard", "frs", "rcsu", "frozen", "memory", "memory_guard")
"""Sources of labels, strengths and skipping, as arms."""
AXES: Mapping[str, tuple[Value, ...]] = {
    "kl_coef": (0.0, 0.05, 0.2, 1.0),
    "guard.negative_scale": (1.0, 0.5, 0.0),
    "guard.hysteresis": (0.0, 0.25),
    "guard.discount": (1.0, 0.8),
}
"""Settings that are combined with every arm."""
LRS = (5e-5, 1e-4, 2e-4, 3e-4, 5e-4)
"""Learning rates that a candidate is judged over."""
LR = "lr"
Objective = Literal["mean", "minimum"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An arm with settings."""

    arm: str
    values: tuple[tuple[str, Value], ...] = ()
    """Settings that differ from those that all candidates share, by dotted name."""

    @property
    def title(self) -> str:
        """The arm and its settings in one line."""
        changed = (f"{name.rpartition('.')[2]}={value}" for name, value in self.values)
        return " ".join((self.arm, *changed))

    def cell(self, lr: float) -> Cell:
        """Return the candidate's cell at one learning rate."""
        values: Assignments = {**dict(self.values), LR: lr}
        return Cell(0, "search", values)


def combinations(base: SimConfig, arms: Sequence[str], axes: Mapping[str, Axis]) -> list[Candidate]:
    """Return every arm with every combination of settings other than the shared ones.

    Args:
        base: the shared settings.
        arms: to be combined.
        axes: values by setting.

    Raises:
        UserError: an axis is no list of values.
    """
    values = []
    for name, axis in axes.items():
        check_axis(name, axis)
        if isinstance(axis, Range) or name == LR:
            raise UserError(f"vary {name}: a search takes values, and learning rates by --lrs")
        values.append(axis)
    made = []
    for arm, chosen in itertools.product(arms, itertools.product(*values)):
        pairs = zip(axes, chosen, strict=True)
        changed = tuple((n, value) for n, value in pairs if value != read(base, n))
        made.append(Candidate(arm, changed))
    return [candidate for candidate in made if candidate.values]
