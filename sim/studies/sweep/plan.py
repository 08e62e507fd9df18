"""The definition of a sweep, its cells, and the files that its runs read.

A cell is one choice of the varied settings; every arm is run in every cell. The content of the
files that the settings name is part of the sweep.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lab.arms import GUARD
from lab.errors import UserError
from lab.settings import from_values, to_values
from sim.settings.config import SimConfig
from sim.studies.arms.controls import check_arms
from sim.studies.sweep.axes import Assignments, Axis, Range, check_axis, draw, parse, read
from sim.world.measured.tree import read_measured
from sim.world.populations import ability_sampler

CHOSEN = "step"
"""Setting that every arm may also choose for itself."""
_MAX_CELLS = 1_000_000

FILES = ("histogram", "trace", "response")
"""Settings of `SimConfig` that name a file, or a run folder."""
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomCells:
    """Cells drawn at random, each axis on its own."""

    cells: int
    axes: Mapping[str, Axis]
    """Dotted name to a law, or to values that are equally likely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The settings that are run.

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
            if size > _MAX_CELLS:
                raise UserError(f"sweep: {size} cells, at most {_MAX_CELLS}; use --random")
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
    """The group of settings that it is of."""
    values: Assignments


def shown(sweep: Sweep, cell: Cell) -> dict[str, Any]:
    """Return the value of every varied setting in a cell, also of those that its group keeps."""
    return {n: cell.values[n] if n in cell.values else read(sweep.base, n) for n in sweep.names}


def contents(sweep: Sweep) -> dict[str, str]:
    """Every file that a sweep names, and a hash of what is in it.

    Raises:
        UserError: a file is missing or cannot be read.
    """
    found: dict[str, str] = {}
    for name in FILES:
        for path in _paths(sweep, name):
            found.setdefault(path, _digest(name, Path(path)))
    return dict(sorted(found.items()))


def files_of(config: SimConfig, known: Mapping[str, str]) -> dict[str, str]:
    """Setting to hash, for the files that a run reads; empty for most runs."""
    paths = {name: getattr(config, name) for name in FILES}
    return {name: known[path] for name, path in paths.items() if path in known}


def check_files(configs: Iterable[SimConfig]) -> None:
    """Refuse a sweep of which no run can read its files.

    Raises:
        UserError: the defect that the first run met.
    """
    first: UserError | None = None
    for config in _reading_differently(configs):
        try:
            _read(config)
            return
        except UserError as error:
            first = first or error
    if first is not None:
        raise first


def _paths(sweep: Sweep, name: str) -> Iterator[str]:
    groups: list[Mapping[str, Any]] = [*sweep.groups]
    groups += [sweep.draws.axes] if sweep.draws is not None else []
    for values in ((getattr(sweep.base, name),), *(group.get(name, ()) for group in groups)):
        yield from (value for value in values if value is not None)


def _digest(name: str, path: Path) -> str:
    """Of a file, or of the visits of a run folder."""
    parts = sorted((path / "visits").glob("*.parquet")) if path.is_dir() else [path]
    hashed = hashlib.sha256()
    try:
        for part in parts:
            hashed.update(part.name.encode() if path.is_dir() else b"")
            with part.open("rb") as file:
                while block := file.read(_BLOCK):
                    hashed.update(block)
    except OSError as error:
        raise UserError(f"{name}: {path} cannot be read ({error.strerror or error})") from error
    return hashed.hexdigest()[:20]


def _reading_differently(configs: Iterable[SimConfig]) -> list[SimConfig]:
    """One of all runs that read the same files in the same way."""
    names = ("policy", "population", *FILES, "n_problems", "fixed_population")
    return list({tuple(getattr(c, name) for name in names): c for c in configs}.values())


def _read(config: SimConfig) -> None:
    if config.response is None:
        ability_sampler(config)
    else:
        read_measured(config.response, config.n_problems, config.n_answers)


def _axis(name: str, value: Any) -> Axis:
    return parse(f"{name}={value}")[1] if isinstance(value, str) else tuple(value)


def _plain(axis: Axis) -> Any:
    return str(axis) if isinstance(axis, Range) else list(axis)
