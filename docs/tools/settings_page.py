"""Insert tables of all settings into the docs, generated from the dataclasses."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from guard_core.checks import Interval

HEAD = "| setting | type | default | meaning |\n| --- | --- | --- | --- |"


def on_page_markdown(markdown: str, **others: Any) -> str:
    """Replace a line `SETTINGS module.Class` by the table of that dataclass's fields."""
    lines = [
        settings_table(_named(line.split()[1])) if line.startswith("SETTINGS ") else line
        for line in markdown.split("\n")
    ]
    return "\n".join(lines)


def settings_table(config: type) -> str:
    """One row per field of a dataclass, in the order of its definition."""
    hints, meanings = get_type_hints(config, include_extras=True), dict(_docstrings(config))
    rows = [
        f"| `{field.name}` | {_cell(kind_text(hints[field.name]))} | {_cell(_default(field))} | "
        f"{_cell(meanings.get(field.name, ''))} |"
        for field in fields(config)
    ]
    return "\n".join([HEAD, *rows])


def kind_text(kind: Any) -> str:
    """A type in words, with the bound of a number and the values of a closed set."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        bound = next((part.text for part in parts if isinstance(part, Interval)), "")
        return f"{kind_text(parts[0])} in {bound}".removesuffix(" in ")
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (Union, UnionType):
        return " or ".join(kind_text(part) for part in parts)
    if origin is tuple:
        inner = [kind_text(part) for part in parts if part is not Ellipsis]
        return f"list of {inner[0]}" if Ellipsis in parts else f"({', '.join(inner)})"
    if origin is dict or is_dataclass(kind):
        return "table"
    return "none" if kind is NoneType else kind.__name__


def _docstrings(config: type) -> Iterator[tuple[str, str]]:
    """Name and docstring of every field; the docstring is the string below the field."""
    (definition,) = ast.parse(inspect.getsource(config)).body
    assert isinstance(definition, ast.ClassDef)
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        text = below.value if isinstance(below, ast.Expr) else None
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Constant):
            assert isinstance(field.target, ast.Name)
            yield field.target.id, " ".join(str(text.value).split())


def _default(field: Field[Any]) -> str:
    made = field.default_factory() if field.default_factory is not MISSING else field.default
    if is_dataclass(made):
        return "see text"
    return f"`{made!r}`" if made not in (None, (), {}) else "none"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _named(path: str) -> type:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
