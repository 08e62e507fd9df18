"""The candidates of a search: arms with settings, each different run once."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.errors import UserError
from lab.settings import to_values
from sim.studies.sweep.axes import Assignments, Axis, Range, Value, check_axis, read
from sim.studies.sweep.jobs import Job, job_of
from sim.studies.sweep.plan import Cell, Sweep

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


def candidates(
    sweep: Sweep, axes: Mapping[str, Axis], most: int, rng: np.random.Generator
) -> list[Candidate]:
    """Return candidates whose runs differ: all plain arms first, then others in random order.

    Args:
        sweep: gives the shared settings and the arms.
        axes: settings to combine with every arm; the first value need not be the default.
        most: so many at most, but all plain arms.
        rng: chooses those of too many.

    Raises:
        UserError: an axis is no list of values, or no candidate can be run.
    """
    for name, axis in axes.items():
        check_axis(name, axis)
        if isinstance(axis, Range) or name == LR:
            raise UserError(f"vary {name}: a search takes values, and learning rates by --lrs")
    plain = [Candidate(arm) for arm in sweep.arms]
    combined = _combinations(sweep, axes)
    others = [combined[place] for place in rng.permutation(len(combined))]
    found: dict[str, Candidate] = {}
    for candidate in [*plain, *others]:
        if candidate.values and len(found) >= most:
            break
        job = job_of(sweep, candidate.cell(LRS[0]), candidate.arm)
        if isinstance(job, Job):
            found.setdefault(repr(to_values(job.config)), candidate)
        elif not candidate.values:
            raise UserError(f"arm {candidate.arm}: {job.reason}")
    return list(found.values())


def _combinations(sweep: Sweep, axes: Mapping[str, Axis]) -> list[Candidate]:
    values: Sequence[tuple[Value, ...]] = [
        axis for axis in axes.values() if isinstance(axis, tuple)
    ]
    made = []
    for arm, chosen in itertools.product(sweep.arms, itertools.product(*values)):
        pairs = zip(axes, chosen, strict=True)
        changed = tuple((n, value) for n, value in pairs if value != read(sweep.base, n))
        made.append(Candidate(arm, changed))
    return [candidate for candidate in made if candidate.values]
