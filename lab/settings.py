"""Configuration files: TOML in, a checked dataclass out, and back to plain values."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_origin, get_type_hints

import msgspec

from guard_core.checks import fault
from lab.errors import UserError

T = TypeVar("T")


def read_toml(path: Path, kind: type[T]) -> T:
    """Read a settings file.

    Args:
        path: a TOML file with one table per nested dataclass.
        kind: the dataclass to fill; what the file leaves out takes its default.

    Raises:
        UserError: the file cannot be read, is no TOML, or holds an unknown or wrong setting.
    """
    return from_values(toml_values(path), kind, str(path))


def toml_values(path: Path) -> dict[str, Any]:
    """Read the content of a settings file, unchecked.

    Raises:
        UserError: the file cannot be read or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give an existing TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from error


def from_values(values: Mapping[str, Any], kind: type[T], source: str) -> T:
    """Fill a dataclass from plain values.

    Args:
        values: nested mappings, as read from TOML or JSON.
        kind: the dataclass.
        source: named at the beginning of error messages, if any.

    Raises:
        UserError: a setting is unknown or has a wrong value.
    """
    origin = f"{source}: " if source else ""
    _refuse_unknown(values, kind, origin, "")
    try:
        return msgspec.convert(dict(values), kind)
    except (msgspec.ValidationError, ValueError, UserError) as error:
        raise UserError(f"{origin}{error}") from error


def to_values(config: Any) -> dict[str, Any]:
    """A dataclass as plain nested values that JSON and TOML can hold."""
    return msgspec.to_builtins(config)


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by their names joined by dots; an empty mapping stays a value."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        inner = isinstance(value, Mapping) and value
        flat |= flattened(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return flat


def _refuse_unknown(values: Mapping[str, Any], kind: Any, origin: str, prefix: str) -> None:
    fields = {f.name: f for f in dataclasses.fields(kind)}
    hints = get_type_hints(kind)
    for name, value in values.items():
        if name not in fields:
            raise UserError(f"{origin}{prefix}{name}: no such setting; see --help for the names")
        # Checked here, since the converter does not name the values that a choice has.
        chooses = get_origin(hints[name]) is Literal
        if chooses and (message := fault(prefix + name, value, hints[name])):
            raise UserError(f"{origin}{message}")
        nested = _nested(fields[name])
        if nested is not None and isinstance(value, Mapping):
            _refuse_unknown(value, nested, origin, f"{prefix}{name}.")


def _nested(field: dataclasses.Field[Any]) -> Any:
    """The dataclass that a field holds by default, if it holds one."""
    factory = field.default_factory
    if factory is not dataclasses.MISSING and dataclasses.is_dataclass(factory):
        return factory
    if dataclasses.is_dataclass(field.default) and not isinstance(field.default, type):
        return type(field.default)
    if factory is not dataclasses.MISSING:
        made = factory()
        return type(made) if dataclasses.is_dataclass(made) else None
    return None
