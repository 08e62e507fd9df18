"""The axes of a sweep: fields of `SimConfig` by dotted name, their values, or laws to draw from.

On the command line an axis is `name=values`: `guard.W=2,3,5`, `step=loguniform:0.01:0.1:5` (five
values of a grid, equally spaced in the logarithm) or `load_sd=uniform:0:0.5` (drawn at random).
"""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from guard_core import GuardConfig
from lab.errors import UserError
from sim.settings.config import SimConfig

Value = bool | int | float | str | None
Assignments = Mapping[str, Value]
"""Dotted name to value."""

GUARD_FIELDS = "guard."
_OF_ARMS = {"guard", "labels", "rule", "rule_options"}
_OF_ARMS |= {"guard.frs", "guard.mps", "guard.rcsu", "guard.label_from"}
_OF_ROWS = {"replicates", "first_replicate"}


@dataclass(frozen=True, slots=True)
class Range:
    """A law over numbers, or a grid between two of them."""

    law: Literal["uniform", "loguniform"]
    low: float
    high: float

    def __post_init__(self) -> None:
        """Check the bounds."""
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise UserError(f"{self}: the first bound must be below the second, both finite")
        if self.law == "loguniform" and self.low <= 0:
            raise UserError(f"{self}: a logarithm needs bounds above 0")

    def __str__(self) -> str:
        """As typed."""
        return f"{self.law}:{self.low!r}:{self.high!r}"

    def at(self, share: float) -> float:
        """The number below which lies this share of the law; 0 and 1 give the bounds."""
        if self.law == "uniform":
            return self.low + share * (self.high - self.low)
        return self.low * (self.high / self.low) ** share


Axis = tuple[Value, ...] | Range


def names() -> list[str]:
    """Every name that a sweep may vary."""
    own = [n for n in get_type_hints(SimConfig) if n not in _OF_ARMS | _OF_ROWS]
    guard = [f"{GUARD_FIELDS}{name}" for name in get_type_hints(GuardConfig)]
    return own + [name for name in guard if name not in _OF_ARMS]


def read(config: SimConfig, name: str) -> Value:
    """The value of a dotted name."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def assign(config: SimConfig, values: Assignments) -> SimConfig:
    """The settings with some values changed.

    Raises:
        UserError: a value is impossible, alone or together with the others.
        ConfigError: the same for the guard's.
    """
    own = {name: value for name, value in values.items() if "." not in name}
    guard = {
        name.removeprefix(GUARD_FIELDS): value for name, value in values.items() if "." in name
    }
    if guard:
        own["guard"] = replace(config.guard, **guard)  # pyright: ignore[reportArgumentType]
    return replace(config, **own) if own else config  # pyright: ignore[reportArgumentType]


def parse(text: str) -> tuple[str, Axis]:
    """An axis from `name=values`.

    Raises:
        UserError: no such field, no values, or values of a wrong type.
    """
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise UserError(f"vary {text!r}: give name=value,value or name=uniform:low:high")
    check_name(name)
    law, _, bounds = values.partition(":")
    if law in ("uniform", "loguniform") and bounds:
        return name, _parse_range(name, law, bounds)
    return name, tuple(_parse_value(name, word) for word in values.split(","))


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
        near = difflib.get_close_matches(name, names(), 1)
        hint = f"did you mean {near[0]}?" if near else "see guard-sim sweep --help for the names"
        raise UserError(f"vary {name}: no such setting; {hint}")


def check_axis(name: str, axis: Axis) -> None:
    """Refuse values of a wrong type, and laws over what is no number.

    Raises:
        UserError: naming the axis.
    """
    check_name(name)
    if isinstance(axis, Range):
        _check_number(name)
        return
    if not axis:
        raise UserError(f"vary {name}: no values")
    for value in axis:
        if not _fits(value, _kinds(name)):
            raise UserError(f"vary {name}: {value!r}: {_expected(name)}")


def draw(name: str, axis: Axis, share: float) -> Value:
    """The value of an axis at one uniform number in [0, 1)."""
    if not isinstance(axis, Range):
        return axis[int(share * len(axis))]
    if float in _kinds(name):
        return axis.at(share)
    # Whole numbers, both bounds included, each with the share of the law around it.
    low, high = math.ceil(axis.low), math.floor(axis.high)
    least = low - 0.5 if axis.law == "uniform" else max(low - 0.5, low / 2)
    return min(max(round(Range(axis.law, least, high + 0.5).at(share)), low), high)


def _parse_range(name: str, law: Literal["uniform", "loguniform"], bounds: str) -> Axis:
    _check_number(name)
    words = bounds.split(":")
    try:
        low, high = float(words[0]), float(words[1])
        count = int(words[2]) if len(words) > 2 else None
    except (ValueError, IndexError):
        raise UserError(f"vary {name}={law}:{bounds}: give {law}:low:high or with :count") from None
    law_of = Range(law, low, high)
    if count is None:
        return law_of
    if len(words) > 3 or count < 2:
        raise UserError(f"vary {name}={law}:{bounds}: count must be a number of at least 2")
    return tuple(_unique(name, [law_of.at(float(s)) for s in np.linspace(0, 1, count)]))


def _unique(name: str, values: list[float]) -> list[Value]:
    if float in _kinds(name):
        # Twelve digits: a step of .1 shall read .3 and not .30000000000000004.
        return [float(f"{value:.12g}") for value in values]
    return list(dict.fromkeys(round(value) for value in values))


def _parse_value(name: str, word: str) -> Value:
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


def _check_number(name: str) -> None:
    if not {int, float} & set(_kinds(name)):
        raise UserError(f"vary {name}: is no number, so give its values one by one")


@functools.cache
def _kinds(name: str) -> tuple[Any, ...]:
    """The types of a field; the words themselves where it takes one of several."""
    owner: type = GuardConfig if name.startswith(GUARD_FIELDS) else SimConfig
    hint = get_type_hints(owner)[name.removeprefix(GUARD_FIELDS)]
    return get_args(hint) if get_origin(hint) in (Union, UnionType, Literal) else (hint,)


def _fits(value: Value, kinds: tuple[Any, ...]) -> bool:
    if isinstance(value, str):
        return value in kinds or str in kinds
    if isinstance(value, bool) or value is None:
        return type(value) in kinds
    return type(value) in kinds or (isinstance(value, int) and float in kinds)


def _expected(name: str) -> str:
    kinds = _kinds(name)
    if all(isinstance(kind, str) for kind in kinds):
        return f"must be one of {', '.join(kinds)}"
    return f"must be of type {' or '.join(k.__name__ for k in kinds if k is not NoneType)}"
