"""The files that a sweep's runs read: what is in them is part of the sweep."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.errors import UserError
from sim.settings.config import SimConfig

if TYPE_CHECKING:
    from sim.studies.sweep.plan import Sweep

FILES = ("kernel", "histogram", "trace")
"""Settings of `SimConfig` that name a file, or a run folder."""
_BLOCK = 1 << 20


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


def of_config(config: SimConfig, known: Mapping[str, str]) -> dict[str, str]:
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
    # Compiled policies take a second to import, which `guard-sim sweep --help` need not.
    from sim.world.policies.kernel_file import read_kernel
    from sim.world.populations import ability_sampler

    if config.policy == "kernel" and config.kernel is not None:
        read_kernel(config.kernel, config.n_problems)
    ability_sampler(config)
