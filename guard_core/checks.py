"""The one checker of settings: types and bounds of the guard, the rules and both worlds.

A setting's bound is part of its type, so that it stands once, next to the default:

    tau_FR: Share = 0.3
    W: Count = 5
"""

from __future__ import annotations

import functools
import math
from dataclasses import fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


class ConfigError(ValueError):
    """A configuration value is wrong; the message names the field, the value and the bound."""


class Interval:
    """The bound of a number, written as in mathematics: `[0, 1)`, `[1, inf)`."""

    def __init__(self, text: str) -> None:
        low, high = text[1:-1].split(",")
        self.text, self.low, self.high = text, float(low), float(high)

    def __contains__(self, value: float) -> bool:
        above = self.low <= value if self.text.startswith("[") else self.low < value
        below = value <= self.high if self.text.endswith("]") else value < self.high
        return above and below

    def __str__(self) -> str:
        if self.low == -math.inf:
            return f"be {'at most' if self.text.endswith(']') else 'below'} {self.high:g}"
        if self.high < math.inf:
            return f"lie in {self.text}"
        return f"be {'at least' if self.text.startswith('[') else 'above'} {self.low:g}"


Count = Annotated[int, Interval("[1, inf)")]
"""A whole number from 1."""
Natural = Annotated[int, Interval("[0, inf)")]
"""A whole number from 0."""
Positive = Annotated[float, Interval("(0, inf)")]
"""A finite number above 0."""
NotNegative = Annotated[float, Interval("[0, inf)")]
"""A finite number from 0."""
Share = Annotated[float, Interval("[0, 1]")]
"""A number from 0 to 1."""
PositiveShare = Annotated[float, Interval("(0, 1]")]
"""A number above 0, up to 1."""
ShareBelowOne = Annotated[float, Interval("[0, 1)")]
"""A number from 0, below 1."""


def check_fields(
    record: Any, error: type[Exception] = ConfigError, prefix: str = "", owner: str = ""
) -> None:
    """Check the type and the bounds of every field of a dataclass.

    Args:
        record: an instance, whose annotations may hold an `Interval`.
        error: raised for the first field that is wrong.
        prefix: put before the field's name in the message.
        owner: name of the record in messages; that of its class if left out.

    Raises:
        ConfigError: the annotations cannot be resolved.
    """
    kinds = _kinds(type(record), owner or type(record).__name__)
    for name, kind in kinds.items():
        if message := fault(prefix + name, getattr(record, name), kind):
            raise error(message)


def fault(name: str, value: Any, kind: Any) -> str | None:
    """Returns the message for a value that does not fit a type, None where it fits.

    Args:
        name: of the setting, the first word of the message.
        value: to be checked.
        kind: a class, `Literal`, union, tuple or mapping type; `Annotated` with an `Interval`
            bounds a number. Other types are not checked.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        inner, *marks = parts
        bound = next((mark for mark in marks if isinstance(mark, Interval)), None)
        if bound is None or not _is_number(value):
            return fault(name, value, inner)
        return _outside(name, value, bound) or fault(name, value, inner)
    if origin is Literal:
        known = ", ".join(map(str, parts))
        return None if value in parts else f"{name} = {value!r}: must be one of {known}"
    if origin in (Union, UnionType):
        faults = [fault(name, value, part) for part in parts if part is not NoneType]
        return None if None in faults or (value is None and NoneType in parts) else faults[0]
    if origin is tuple and isinstance(value, tuple):
        return _tuple_fault(name, value, parts)
    return _class_fault(name, value, origin or kind)


def _outside(name: str, value: float, bound: Interval) -> str | None:
    if value in bound:
        return None
    closed = math.isfinite(value) or math.isfinite(bound.high - bound.low)
    finite = "" if closed else " and finite"
    return f"{name} = {value}: must {bound}{finite}"


def _tuple_fault(name: str, values: tuple[Any, ...], parts: tuple[Any, ...]) -> str | None:
    kinds = parts[:1] * len(values) if parts[-1:] == (Ellipsis,) else parts
    if len(values) != len(kinds):
        return f"{name} = {values!r}: must have {len(kinds)} entries"
    named = (f"{name}[{i}]" for i in range(len(values)))
    faults = (fault(*each) for each in zip(named, values, kinds, strict=True))
    return next(filter(None, faults), None)


def _class_fault(name: str, value: Any, kind: Any) -> str | None:
    if not isinstance(kind, type):
        return None
    # bool is an int to Python, but `W = true` in a settings file is a mistake.
    allowed = (int, float) if kind is float else kind
    if not isinstance(value, allowed) or (kind in (int, float) and isinstance(value, bool)):
        return f"{name} = {value!r}: must be of type {kind.__name__}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{name} = {value}: must be a finite number"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@functools.cache
def _kinds(record: type, owner: str) -> dict[str, Any]:
    """Types of the fields by name, with their bounds."""
    try:
        hints = get_type_hints(record, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"{owner}: the types of its settings cannot be read ({error}); "
            "import what they name outside of TYPE_CHECKING"
        ) from error
    return {field.name: hints[field.name] for field in fields(record)}
