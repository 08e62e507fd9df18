"""Checks of single settings; what they refuse is told with name, value and bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, get_args, get_origin

from lab.errors import UserError
from lab.trace.schema import PASS_AT


def check_type(name: str, value: object, kind: Any) -> None:
    """Refuse a value of another type than the field's, or outside its closed set of values."""
    options = get_args(kind)
    if options and isinstance(options[0], str):
        if value not in options:
            raise UserError(f"{name} = {value!r}: must be one of {', '.join(options)}")
        return
    if type(None) in options:
        if value is None:
            return
        kind = options[0]
    kind = get_origin(kind) or kind
    allowed = (int, float) if kind is float else (kind,)
    if not isinstance(value, allowed) or (kind is not bool and isinstance(value, bool)):
        raise UserError(f"{name} = {value!r}: must be of type {kind.__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name} = {value}: must be a finite number")


def at_least(low: int) -> Any:
    """A rule: a number from `low` on, or None."""

    def check(name: str, value: int | None) -> None:
        if value is not None and value < low:
            raise UserError(f"{name} = {value}: must be at least {low}")

    return check


def above_zero(name: str, value: float | None) -> None:
    """A rule: a number above 0, or None."""
    if value is not None and value <= 0:
        raise UserError(f"{name} = {value}: must be above 0")


def unit(name: str, value: float) -> None:
    """A rule: a number in [0, 1]."""
    if not 0 <= value <= 1:
        raise UserError(f"{name} = {value}: must lie in [0, 1]")


def open_unit(name: str, value: float) -> None:
    """A rule: a number in (0, 1]."""
    if not 0 < value <= 1:
        raise UserError(f"{name} = {value}: must lie in (0, 1]")


def pass_at(name: str, value: tuple[int, ...] | None) -> None:
    """A rule: k that the trace has columns for, or None."""
    for k in value or ():
        if k not in PASS_AT:
            known = ", ".join(map(str, PASS_AT))
            raise UserError(f"{name} = {k!r}: must be some of {known}")


def each_once(known: Sequence[str]) -> Any:
    """A rule: some of `known`, none of them twice."""

    def check(name: str, value: tuple[str, ...]) -> None:
        for place, kind in enumerate(value):
            if kind not in known or kind in value[:place]:
                raise UserError(f"{name} = {kind!r}: name each of {', '.join(known)} at most once")

    return check
