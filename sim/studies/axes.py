"""The axes of a sweep: settings of `SimConfig` by dotted name, each with its values.

On the command line an axis is `name=values`: `guard.W=2,3,5`, or `step=loguniform:0.01:0.1:5` and
`load_sd=uniform:0:0.5:6`, grids equally spaced in the logarithm or in the value.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields, replace
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from guard_core import GuardConfig
from lab.errors import UserError
from lab.settings import hint
from sim.settings.config import SimConfig

Value = bool | int | float | str | None
Assignments = Mapping[str, Value]
"""Dotted name to value."""

GUARD_FIELDS = "guard."
_OF_ARMS = {"guard", "labels", "rule", "rule_options"}
_OF_ARMS |= {"guard.frs", "guard.mps", "guard.rcsu", "guard.label_from"}
_OF_ROWS = {"replicates", "first_replicate"}


def names() -> list[str]:
    """Every name that a sweep may vary."""
    own = [f.name for f in fields(SimConfig) if f.name not in _OF_ARMS | _OF_ROWS]
    guard = [f"{GUARD_FIELDS}{field.name}" for field in fields(GuardConfig)]
    return own + [name for name in guard if name not in _OF_ARMS]


def read(config: SimConfig, name: str) -> Value:
    """The value of a dotted name."""
    return functools.reduce(getattr, name.split("."), config)  # pyright: ignore[reportReturnType]


def assign(config: SimConfig, values: Assignments) -> SimConfig:
    """The settings with some values changed.

    Raises:
        UserError: a value is impossible, alone or together with the others.
        ConfigError: the same for the guard's.
    """
    own: dict[str, Any] = {n: v for n, v in values.items() if not n.startswith(GUARD_FIELDS)}
    guard: dict[str, Any] = {
        n.removeprefix(GUARD_FIELDS): v for n, v in values.items() if n.startswith(GUARD_FIELDS)
    }
    if guard:
        own["guard"] = replace(config.guard, **guard)
    return replace(config, **own) if own else config


def parse(text: str) -> tuple[str, tuple[Value, ...]]:
    """An axis from `name=values`.

    Raises:
        UserError: no such field, no values, or values of a wrong type.
    """
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise UserError(f"vary {text!r}: give name=value,value or name=uniform:low:high:count")
    check_name(name)
    law, _, bounds = values.partition(":")
    if law in ("uniform", "loguniform") and bounds:
        return name, _spaced(name, law, bounds)
    return name, tuple(_value(name, word) for word in values.split(","))


def check_name(name: str) -> None:
    """Refuse names that are no field, or not a sweep's to vary.

    Raises:
        UserError: with the nearest name.
    """
    if name in _OF_ARMS:
        raise UserError(f"vary {name}: this is what the arms differ in; choose --arms")
    if name in _OF_ROWS:
        raise UserError(f"vary {name}: every replicate is a row; give --{name.replace('_', '-')}")
    if name not in names():
        near = hint(name, names()) or "; see guard-sim sweep --help-all for the names"
        raise UserError(f"vary {name}: no such setting{near}")


def check_axis(name: str, values: tuple[Value, ...]) -> None:
    """Refuse an axis without values, or with values of a wrong type.

    Raises:
        UserError: naming the axis.
    """
    check_name(name)
    if not values:
        raise UserError(f"vary {name}: no values")
    for value in values:
        if not _fits(value, _kinds(name)):
            raise UserError(f"vary {name}: {value!r}: {_expected(name)}")


def _spaced(name: str, law: str, bounds: str) -> tuple[Value, ...]:
    kinds = _kinds(name)
    if not {int, float} & set(kinds):
        raise UserError(f"vary {name}: is no number, so give its values one by one")
    try:
        low, high, count = (
            kind(w) for kind, w in zip((float, float, int), bounds.split(":"), strict=True)
        )
        if not (0 if law == "loguniform" else -np.inf) < low < high < np.inf or count < 2:
            raise ValueError
    except ValueError:
        raise UserError(
            f"vary {name}={law}:{bounds}: give {law}:low:high:count with finite low < high "
            f"{'above 0 ' if law == 'loguniform' else ''}and count at least 2"
        ) from None
    spaced = np.geomspace if law == "loguniform" else np.linspace
    values = spaced(low, high, int(count)).tolist()
    if float in kinds:
        # Twelve digits: a step of .1 shall read .3 and not .30000000000000004.
        return tuple(float(f"{value:.12g}") for value in values)
    return tuple(dict.fromkeys(round(value) for value in values))


def _value(name: str, word: str) -> Value:
    kinds = _kinds(name)
    if bool in kinds and word.lower() in ("true", "false"):
        return word.lower() == "true"
    if NoneType in kinds and word.lower() == "none":
        return None
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(word)
            except ValueError:
                continue
    if _fits(word, kinds):
        return word
    raise UserError(f"vary {name}: {word!r}: {_expected(name)}")


@functools.cache
def _kinds(name: str) -> tuple[Any, ...]:
    """The types of a field; the words themselves where it takes one of several."""
    owner: type = GuardConfig if name.startswith(GUARD_FIELDS) else SimConfig
    hint = get_type_hints(owner)[name.removeprefix(GUARD_FIELDS)]
    return get_args(hint) if get_origin(hint) in (Union, UnionType, Literal) else (hint,)


def _fits(value: Value, kinds: tuple[Any, ...]) -> bool:
    if isinstance(value, str):
        return value in kinds or str in kinds
    return type(value) in kinds or (type(value) is int and float in kinds)


def _expected(name: str) -> str:
    kinds = _kinds(name)
    if all(isinstance(kind, str) for kind in kinds):
        return f"must be one of {', '.join(kinds)}"
    return f"must be of type {' or '.join(k.__name__ for k in kinds if k is not NoneType)}"
