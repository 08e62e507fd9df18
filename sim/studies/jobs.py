"""The jobs of a sweep, one run each, and its axes.

Cells whose runs cannot differ share a job: plain TTRL is run once for all values of the guard's
thresholds. A job is known by a hash of all its settings and of the content of the files that they
name, which is how a sweep is continued. An axis is a setting of `SimConfig` by its dotted name,
with its values.
"""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import numpy as np
import pandas as pd

from guard_core import ConfigError, GuardConfig
from guard_core.config import RECORDS, USUAL, fault
from guard_core.rules import Need, make_rule
from lab.arm_settings import with_arm
from lab.base.arms import BASELINE, GUARD, REPLAYED, Arm, arm, for_cell, split_settings, with_own
from lab.base.errors import UserError, first_line
from lab.base.files import file_digest
from lab.base.named_arms import PERMUTED
from lab.base.own_rules import load_rules
from lab.base.settings import hint, plain, readings, to_values
from lab.measures import MEASURES
from lab.study import Control, Effort, check_arms, control, needs
from sim.engine.run import measure
from sim.settings.config import SimConfig, cell_of
from sim.settings.populations import NAMED
from sim.world.populations import ability_sampler
from sim.world.tree import read_measured

Value = bool | int | float | str | None
Assignments = Mapping[str, Value]
"""Dotted name to value."""
Run = Callable[[SimConfig], pd.DataFrame]
"""From settings to measures by replicate."""

GUARD_FIELDS = "guard."
_OF_ARMS = {"guard", "labels", "treatment", "rule", "rule_options", "step_factor", "skip_rate"}
_OF_ARMS |= {"guard.frs", "guard.mps", "guard.rcsu", "guard.label_from"}
_OF_ROWS = {"replicates", "first_replicate"}
FILES = ("histogram", "trace", "response")
"""Settings of `SimConfig` that name a file, or a run folder."""
FACTS = ("step_factor", "skip_rate", "achieved_ratio")
"""Columns other than the measures: the number of a control and the match that it achieved."""


@functools.cache
def kinds() -> dict[str, Any]:
    """Name of every setting that a sweep may vary, and its type.

    Types are without bounds: a value beyond them fails its own cells alone.
    """
    hints = get_type_hints(SimConfig)
    types = {field.name: hints[field.name] for field in fields(SimConfig)}
    for record in RECORDS.values():
        types |= {f"{GUARD_FIELDS}{name}": kind for name, kind in get_type_hints(record).items()}
    return {name: kind for name, kind in types.items() if name not in _OF_ARMS | _OF_ROWS}


def read(config: SimConfig, name: str) -> Any:
    """The value of a dotted name."""
    group, _, field = name.rpartition(".")
    return config.guard.flat()[field] if group else getattr(config, name)


def assign(config: SimConfig, values: Assignments) -> SimConfig:
    """The settings with some values changed, but not those of a part of the guard that is off.

    An impossible one is a UserError or a ConfigError.
    """
    settings: dict[str, Any] = {n: v for n, v in values.items() if not n.startswith(GUARD_FIELDS)}
    guard: dict[str, Any] = {n.partition(".")[2]: v for n, v in values.items() if n not in settings}
    if guard:
        settings["guard"] = GuardConfig.from_dict(config.guard.flat() | guard)
    return replace(config, **settings) if settings else config


def parse_all(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """The axes of a command line."""
    axes = dict(map(parse, texts))
    if len(axes) < len(texts):
        raise UserError("vary: a setting is there twice; give all its values at once")
    return axes


def parse(text: str) -> tuple[str, tuple[Value, ...]]:
    """An axis from `name=values`."""
    name, equals, words = text.partition("=")
    if not equals or not words:
        raise UserError(f"vary {text!r}: give name=value,value or name=uniform:low:high:count")
    _check_name(name)
    law, _, bounds = words.partition(":")
    if law in ("uniform", "loguniform") and bounds:
        return name, _spaced(name, law, bounds)
    values = tuple(_value(name, word) for word in words.split(","))
    if len(set(values)) < len(values):
        raise UserError(f"vary {text!r}: a value is there twice; give each once")
    return name, values


def _check_name(name: str) -> None:
    if name in _OF_ARMS:
        raise UserError(f"vary {name}: this is what the arms differ in; choose --arms")
    if name in _OF_ROWS:
        raise UserError(f"vary {name}: every replicate is a row; give --{name.replace('_', '-')}")
    if name not in kinds():
        near = hint(name, kinds()) or "; see guard-sim sweep --help-all for the names"
        raise UserError(f"vary {name}: no such setting{near}")


def check_shared(config: SimConfig, *names: str) -> None:
    """Refuse settings, besides the guard and the rule, that every arm of a study has of its own."""
    usual = SimConfig()
    for name in ("labels", "treatment", *names):
        if getattr(config, name) != getattr(usual, name):
            raise UserError(f"{name}: every arm has its own; leave it out and choose --arms")


def plain_values(name: str, values: Any) -> tuple[Any, ...]:
    """The values of an axis, those of NumPy or PyTorch as Python's; one alone is refused."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UserError(f"vary {name}: must be a list of values, not {values!r}")
    return tuple(value.item() if hasattr(value, "item") else value for value in values)


def check_grid(
    base: SimConfig, arms: Sequence[str], axes: Iterable[tuple[str, tuple[Value, ...]]]
) -> None:
    """Refuse arms and axes that cannot be varied: without values, or with those of a wrong type."""
    check_arms(arms)
    check_shared(base)
    for name, values in axes:
        _check_name(name)
        if not values:
            raise UserError(f"vary {name}: no values")
        for value in values:
            if message := fault(name, value, kinds()[name]):
                raise UserError(f"vary {message}")


def _spaced(name: str, law: str, bounds: str) -> tuple[Value, ...]:
    if fault(name, 1, kinds()[name]):
        raise UserError(f"vary {name}: is no number, so give its values one by one")
    try:
        low, high, count = bounds.split(":")
        low, high, count = float(low), float(high), int(count)
        if not (0 if law == "loguniform" else -np.inf) < low < high < np.inf or count < 2:
            raise ValueError
    except ValueError:
        raise UserError(
            f"vary {name}={law}:{bounds}: give {law}:low:high:count with finite low < high "
            f"{'above 0 ' if law == 'loguniform' else ''}and count at least 2"
        ) from None
    spaced = np.geomspace if law == "loguniform" else np.linspace
    values = spaced(low, high, count).tolist()
    if fault(name, 0.5, kinds()[name]) is None:
        # Twelve digits: a step of .1 shall read .3 and not .30000000000000004.
        return tuple(float(f"{value:.12g}") for value in values)
    return tuple(dict.fromkeys(round(value) for value in values))


def _value(name: str, word: str) -> Value:
    """The first reading of a word that fits the setting's type."""
    message = None
    for value in readings(word):
        if (message := fault(name, value, kinds()[name])) is None:
            return value
    raise UserError(f"vary {message}")


@dataclass(frozen=True, slots=True)
class SweepJob:
    """One run, or the search for a control's number."""

    key: str
    """Hash of all settings and files."""
    config: SimConfig
    control: Control | None = None
    partners: tuple[str, ...] = ()
    """Jobs of the arms that a control needs, see `lab.study.needs`."""
    reason: str = ""
    """Why the settings contradict each other: such a job cannot be run."""

    @property
    def visits(self) -> int:
        """Visits of one run: how much work it is."""
        c = self.config
        return c.replicates * c.n_problems * (c.epochs + 1)

    def failed(self, reason: str) -> pd.DataFrame:
        """The outcome of a job that failed: as of `perform`, without numbers."""
        table = pd.DataFrame({"replicate": self.config.replicate_numbers})
        return table.assign(status="failed", reason=reason, key=self.key)


def named(name: str, config: SimConfig) -> Arm:
    """An arm or control by name among settings that several arms share.

    `guard`, also under a rule, has the guard of the settings. Where these name a rule alone, they
    have none, and the arm has its own.
    """
    if (as_control := control(name)) is not None:
        return as_control.arm
    made, (base, settings) = arm(name), split_settings(name)
    shared = base in (GUARD, PERMUTED, REPLAYED) or base.endswith(f"+{GUARD}")
    alone = config.rule != BASELINE and config.guard == arm(config.rule).guard
    return replace(made, guard=with_own(config.guard, settings)) if shared and not alone else made


def job_of(
    base: SimConfig, values: Assignments, name: str, files: Mapping[str, str] | None = None
) -> SweepJob:
    """The job of one arm in one cell; `files` are paths to hashes, see `contents`."""

    def by_content(config: SimConfig) -> dict[str, Any]:
        values = to_values(config)
        return values | {n: (files or {}).get(values[n], values[n]) for n in FILES}

    try:
        if (as_control := control(name)) is None:
            if needs(name):
                raise UserError(f"arm {name}: replays a run's folder; guard-sim compare has one")
            config = _arm_config(base, values, name)
            return SweepJob(_key("", by_content(config)), config)
        config, guard = (_arm_config(base, values, other) for other in needs(name))
    except (UserError, ConfigError) as error:
        settings = {"arm": name, **values, "definition": to_values(base)}
        return SweepJob(_key("impossible", settings), base, reason=str(error))
    both = {"unguarded": by_content(config), "guard": by_content(guard)}
    partners = tuple(_key("", definition) for definition in both.values())
    return SweepJob(_key(as_control.kind, both), config, as_control, partners)


def _arm_config(base: SimConfig, values: Assignments, name: str) -> SimConfig:
    """The settings of an arm; the varied settings of the guard apply to every arm's guard."""
    policy, population = (str(values.get(n, getattr(base, n))) for n in ("policy", "population"))
    cell = cell_of(policy, population)
    made = replace(named(for_cell(name, cell), base), step_factor=base.step_factor)
    config = assign(with_arm(base, made), {**_size(base, values), **values})
    # What cannot reach the run, such as `W` with all parts off, takes its default.
    guard = config.guard
    idle = ["brake_on", "brake_above"] if guard.brake.brake == 1 else []
    idle += ["discount"] if guard.labels.label_from != "memory" else []
    idle += ["hysteresis"] if guard.labels.label_from == "frozen" else []
    idle += [] if guard.acts else ["W", "flip_rate", "tau_FR", "tau_MR", "weight_on"]
    is_observed = make_rule(config.rule).needs - {Need.TEACHER}
    signal = config.signal if is_observed else SimConfig.__dataclass_fields__["signal"].default
    return replace(config, signal=signal, guard=guard.set(**{name: USUAL[name] for name in idle}))


def _size(base: SimConfig, values: Assignments) -> Assignments:
    """A varied population brings its size and length, unless the sweep's own were set by hand."""
    law, usual = NAMED.get(str(values.get("population"))), NAMED.get(base.population)
    if law is None or usual is None:
        return {}
    sizes = ("n_problems", "epochs")
    return {n: getattr(law, n) for n in sizes if getattr(base, n) == getattr(usual, n)}


def _key(kind: str, values: Mapping[str, Any]) -> str:
    text = msgspec.json.encode([kind, values], enc_hook=plain, order="deterministic")
    return hashlib.sha256(text).hexdigest()[:20]


def find(
    control: Control, config: SimConfig, unguarded: pd.DataFrame, guard: pd.DataFrame, run: Run
) -> tuple[SimConfig, float, pd.DataFrame]:
    """Run a control, its number set from the unguarded and the guard's run of the same seeds.

    Args:
        config: of the unguarded run; its step factor is multiplied by the control's.

    Returns:
        Settings, see `Control.ratio`, and what `run` returned.
    """
    target = _effort(guard)
    # The factor 1, for the case that no other one comes closer.
    runs = {1.0: (config, control.ratio(_effort(unguarded), target), unguarded)}

    def ratio_at(number: float) -> float:
        factor = config.step_factor if control.setting == "step_factor" else 1.0
        varied = assign(config, {control.setting: factor * number})
        table = run(varied)
        runs[number] = varied, control.ratio(_effort(table), target), table
        return runs[number][1]

    return runs[control.find(_effort(unguarded), target, ratio_at)]


def _effort(table: pd.DataFrame) -> Effort:
    update, skipped = (float(table[n].to_numpy().mean()) for n in ("update_norm", "skipped"))
    return Effort(update, skipped / 100)


def perform(task: tuple[SweepJob, Sequence[pd.DataFrame]]) -> pd.DataFrame:
    """Do a job, given the outcomes of its partners.

    A run that cannot be computed is an outcome, not an error.

    Returns:
        One row per replicate: replicate, `MEASURES`, `FACTS`, status, reason, key.
    """
    job, partners = task
    try:
        load_rules(job.config.rules)  # this may be a new process
        with warnings.catch_warnings():
            # A step that explodes passes through infinity before the engine names it.
            warnings.simplefilter("ignore", RuntimeWarning)
            if job.control is None:
                config, ratio, table = job.config, float("nan"), measure(job.config)
            else:
                plain, guard = (table.set_index("replicate") for table in partners)
                config, ratio, table = find(job.control, job.config, plain, guard, measure)
    except (UserError, ValueError, ArithmeticError) as error:
        return job.failed(first_line(error))
    facts = {"step_factor": config.step_factor, "skip_rate": config.skip_rate}
    table = table[list(MEASURES)].reset_index()
    return table.assign(**facts, achieved_ratio=ratio, status="done", reason="", key=job.key)


def contents(files: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Path of every file to a hash of what is in it, from settings' names and paths or None."""
    hashes: dict[str, str] = {}
    for name, path in sorted({(name, path) for name, path in files if path is not None}):
        parts = sorted(Path(path).glob("visits/*.parquet")) if Path(path).is_dir() else [Path(path)]
        try:
            digests = "".join(map(file_digest, parts))
        except OSError as error:
            raise UserError(f"{name}: {path} cannot be read ({error.strerror or error})") from error
        hashes[path] = hashlib.sha256(digests.encode()).hexdigest()[:20]
    return hashes


def check_files(configs: Iterable[SimConfig]) -> None:
    """Refuse a sweep of which no run can read its files, with the defect that the first met."""
    read = ("policy", "population", *FILES, "n_problems", "fixed_population")
    first: UserError | None = None
    for config in {tuple(getattr(c, name) for name in read): c for c in configs}.values():
        try:
            if config.response is None:
                ability_sampler(config)
            else:
                read_measured(config.response, config.n_problems, config.n_answers)
            return
        except UserError as error:
            first = first or error
    if first is not None:
        raise first
