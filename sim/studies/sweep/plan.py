"""From a sweep's definition to its cells, and from cells to the runs that they share.

A cell is one choice of the varied settings; every arm is run in every cell. Two (cell, arm) pairs
whose runs cannot differ share one job: plain TTRL is run once for all values of the guard's
thresholds. A job is known by a hash of all its settings and of what is in the files that they
name, which is how a sweep is continued.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from guard_core import ConfigError, GuardConfig
from lab.arms import GUARD, arm
from lab.errors import UserError
from lab.settings import from_values, to_values
from sim.engine.run import of_arm
from sim.settings.config import SimConfig
from sim.settings.populations import NAMED
from sim.studies.arms.controls import Control, check_arms, control, has_own_guard
from sim.studies.sweep import content
from sim.studies.sweep.axes import Assignments, Axis, Range, assign, check_axis, draw, parse, read
from sim.world.observe.strength import only_read

_MOST_CELLS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomCells:
    """Cells drawn at random, each axis on its own."""

    cells: int
    axes: Mapping[str, Axis]
    """Dotted name to a law, or to values that are equally likely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Which settings are run.

    Raises:
        UserError: an axis names no setting or has values of a wrong type, an arm is unknown or
            lacks the arms that it is matched to, or there is nothing to vary.
    """

    base: SimConfig = field(default_factory=SimConfig)
    """All that is not varied; its guard is that of the arm `guard`, its seed also draws cells."""
    arms: tuple[str, ...] = (GUARD,)
    groups: tuple[Mapping[str, tuple[Any, ...]], ...] = ()
    """Grids: all combinations of the values in a group, one group after the other."""
    draws: RandomCells | None = None

    def __post_init__(self) -> None:
        """Check names, values and arms."""
        check_arms(self.arms)
        axes = [item for group in self.groups for item in group.items()]
        for name, axis in [*axes, *(self.draws.axes.items() if self.draws else ())]:
            check_axis(name, axis)
        if not axes and not (self.draws and self.draws.axes):
            raise UserError("sweep: nothing to vary; give --vary name=values or --preset")
        if any(isinstance(axis, Range) for _, axis in axes):
            raise UserError("sweep: a grid needs values or a count; laws are for --random")
        if self.draws is not None and self.draws.cells < 1:
            raise UserError(f"random = {self.draws.cells}: must be at least 1")

    @property
    def names(self) -> list[str]:
        """Varied settings in order."""
        groups = [*self.groups, *([self.draws.axes] if self.draws else [])]
        return list(dict.fromkeys(name for group in groups for name in group))

    def cells(self) -> list[Cell]:
        """All cells in order, numbered from 0.

        Raises:
            UserError: there are too many.
        """
        found: list[tuple[str, Assignments]] = []
        for group in self.groups:
            size = int(np.prod([len(values) for values in group.values()]))
            if size > _MOST_CELLS:
                raise UserError(f"sweep: {size} cells, at most {_MOST_CELLS}; use --random")
            found += [
                (" x ".join(group), dict(zip(group, values, strict=True)))
                for values in itertools.product(*group.values())
            ]
        found += [("random", values) for values in self._drawn()]
        return [Cell(number, *cell) for number, cell in enumerate(found)]

    def _drawn(self) -> list[Assignments]:
        if self.draws is None:
            return []
        axes = self.draws.axes
        # Spawned apart from the seed of the runs, whose random numbers these must not repeat.
        rng = np.random.default_rng(np.random.SeedSequence(self.base.seed, spawn_key=(0, 0, 1)))
        shares = rng.random((self.draws.cells, len(axes)))
        return [
            {name: draw(name, axes[name], float(s)) for name, s in zip(axes, row, strict=True)}
            for row in shares
        ]

    def definition(self) -> dict[str, Any]:
        """The sweep as plain values: what must agree for it to be continued."""
        drawn = self.draws
        values = {
            "arms": list(self.arms),
            "groups": [{name: list(v) for name, v in group.items()} for group in self.groups],
            "random": None if drawn is None else drawn.cells,
            "laws": {} if drawn is None else {n: _plain(a) for n, a in drawn.axes.items()},
            "settings": to_values(self.base),
        }
        # As it will be read again: tuples are lists there.
        return msgspec.json.decode(msgspec.json.encode(values))

    @classmethod
    def of_definition(cls, values: Mapping[str, Any], source: str) -> Sweep:
        """The sweep of which `definition` gave these values.

        Raises:
            UserError: a value is wrong; `source` is named.
        """
        laws = {n: _axis(n, v) for n, v in values["laws"].items()}
        return cls(
            base=from_values(values["settings"], SimConfig, source),
            arms=tuple(values["arms"]),
            groups=tuple({n: tuple(v) for n, v in g.items()} for g in values["groups"]),
            draws=RandomCells(cells=values["random"], axes=laws) if values["random"] else None,
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """One choice of the varied settings."""

    number: int
    group: str
    """What is varied around it."""
    values: Assignments


@dataclass(frozen=True, slots=True)
class Job:
    """One run, or the search for a control's number."""

    key: str
    """Hash of all settings and files."""
    config: SimConfig
    control: Control | None = None
    guard_key: str = ""
    """Job of the guarded arm that a control is matched to."""
    unguarded_key: str = ""
    """Job of the arm that a control runs before its number is set."""


@dataclass(frozen=True, slots=True)
class Impossible:
    """A run whose settings contradict each other."""

    key: str
    reason: str


def shown(sweep: Sweep, cell: Cell) -> dict[str, Any]:
    """The value of every varied name in a cell, also of those that its group leaves alone."""
    return {n: cell.values[n] if n in cell.values else read(sweep.base, n) for n in sweep.names}


def job_of(
    sweep: Sweep, cell: Cell, name: str, files: Mapping[str, str] | None = None
) -> Job | Impossible:
    """The job of one arm in one cell.

    Args:
        sweep: that the cell is of.
        cell: the settings.
        name: of the arm.
        files: path to hash, see `sim.studies.sweep.content.contents`.
    """

    def plain(config: SimConfig) -> dict[str, Any]:
        read_files = content.of_config(config, files or {})
        # Only where there are any: runs that read no file keep the keys they always had.
        return to_values(config) | ({"files": read_files} if read_files else {})

    try:
        found = control(name)
        if found is None:
            config = _arm_config(sweep, cell, name)
            return Job(_key("", plain(config)), config)
        config = _arm_config(sweep, cell, found.unguarded)
        guard = _arm_config(sweep, cell, found.target)
    except (UserError, ConfigError) as error:
        values = {"arm": name, **cell.values, "definition": to_values(sweep.base)}
        return Impossible(_key("impossible", values), str(error))
    values = {"unguarded": plain(config), "guard": plain(guard)}
    return Job(
        _key(found.kind, values),
        config,
        found,
        guard_key=_key("", plain(guard)),
        unguarded_key=_key("", plain(config)),
    )


def _arm_config(sweep: Sweep, cell: Cell, name: str) -> SimConfig:
    """The settings of an arm; the varied settings of the guard apply to every arm's guard."""
    own = arm(name)
    base = sweep.base
    guard = base.guard if has_own_guard(name) else own.guard
    own = replace(own, guard=guard, step_factor=base.step_factor * own.step_factor)
    config = assign(of_arm(base, own), {**_size(sweep, cell), **cell.values})
    return only_read(replace(config, guard=_needed(config.guard)))


def _needed(guard: GuardConfig) -> GuardConfig:
    """The guard without settings that cannot reach the run: with all parts off, most."""
    if guard.frs or guard.mps or guard.rcsu:
        return guard
    return GuardConfig(
        frs=False,
        mps=False,
        rcsu=False,
        tie_break=guard.tie_break,
        label_from=guard.label_from,
        discount=guard.discount,
        skip_by=guard.skip_by,
        advantage_scale=guard.advantage_scale,
    )


def _size(sweep: Sweep, cell: Cell) -> Assignments:
    """A varied population brings its size and length, unless the sweep's own were set by hand."""
    name = cell.values.get("population")
    usual = NAMED.get(sweep.base.population)
    law = NAMED.get(name) if isinstance(name, str) else None
    if law is None or usual is None:
        return {}
    sizes = {}
    for field_name in ("n_problems", "epochs"):
        if getattr(sweep.base, field_name) == getattr(usual, field_name):
            sizes[field_name] = getattr(law, field_name)
    return sizes


def _key(kind: str, values: Mapping[str, Any]) -> str:
    text = msgspec.json.encode([kind, values], order="deterministic")
    return hashlib.sha256(text).hexdigest()[:20]


def _axis(name: str, value: Any) -> Axis:
    return parse(f"{name}={value}")[1] if isinstance(value, str) else tuple(value)


def _plain(axis: Axis) -> Any:
    return str(axis) if isinstance(axis, Range) else list(axis)
