"""Pages of help, written from the dataclasses that options are made from.

The text of an option is the docstring of its field. A record of settings may have two tables:
`GROUPS`, the first field of every group to its name, and `SHORT`, the fields that `--help` shows;
`--help-all` shows all. A command may have a `SHORT` of its own. Options of the command itself are
always shown. A section "Examples:" of a docstring is shown as it is.
"""

from __future__ import annotations

import ast
import inspect
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any

from lab.options import Option, options_of

_OWN = "options"
_COLUMN, _SHORT_LINES = 28, 2
"""Column in which texts begin, and the most lines of one on a short page."""


def program_page(prog: str, about: str, commands: Mapping[str, type]) -> str:
    """Return the page of a program with several commands."""
    purpose, examples = _parts(about)
    summaries = {name: _sentence(inspect.getdoc(kind) or "") for name, kind in commands.items()}
    lines = [f"usage: {prog} COMMAND [OPTIONS]", "", *purpose, *examples, "", "commands:"]
    for name, summary in summaries.items():
        lines += _entry(name, _wrapped(summary))
    return "\n".join([*lines, "", f"Options of a command: {prog} COMMAND --help"])


def command_page(prog: str, command: type, complete: bool = False) -> str:
    """Return the page of one command.

    Args:
        complete: show every option with its whole text.
    """
    options = options_of(command)
    groups = _groups(command, options, complete)
    purpose, examples = _parts(inspect.getdoc(command) or "")
    needed = [o for o in options if o.default is MISSING or o.positional]
    usage = [f"{'' if o.positional else f'{o.flag} '}{o.metavar}".strip() for o in needed]
    lines = [f"usage: {' '.join([prog, *usage])} [OPTIONS]", "", *purpose, *examples]
    for title, members in groups.items():
        lines += ["", f"{title}:"]
        for option, text in members:
            lines += _entry(_head(option), _wrapped(text, None if complete else _SHORT_LINES))
    shown = sum(map(len, groups.values()))
    if shown < len(options):
        lines += ["", f"All {len(options)} options: {prog} --help-all"]
    return "\n".join(lines)


def field_texts(record: type) -> dict[str, str]:
    """Return the docstring of every field of a dataclass: the text below the field."""
    texts: dict[str, str] = {}
    for owner in reversed(record.__mro__[:-1]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(definition, ast.ClassDef)
        for field, below in zip(definition.body, definition.body[1:], strict=False):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Constant):
                assert isinstance(field.target, ast.Name)
                texts[field.target.id] = " ".join(str(text.value).split())
    return texts


def _groups(
    command: type, options: list[Option], complete: bool
) -> dict[str, list[tuple[Option, str]]]:
    """Options and their texts, by the title of their group."""
    records = {(): command, **_records(command)}
    texts = {path: field_texts(record) for path, record in records.items()}
    titles = {path: _titles(record, path) for path, record in records.items()}
    short = getattr(command, "SHORT", getattr(records.get(("settings",)), "SHORT", ()))
    groups: dict[str, list[tuple[Option, str]]] = {}
    for option in sorted(options, key=lambda option: len(option.path)):
        *above, name = option.path
        if complete or not above or option.name in short:
            text = texts[tuple(above)].get(name, "").replace("if None", "by default")
            shown = text if complete else _gist(text)
            members = groups.setdefault(titles[tuple(above)][name], [])
            members.append((option, f"{shown} {_default(option)}".strip()))
    return groups


def _records(command: type) -> dict[tuple[str, ...], type]:
    """The records below a command by their path, the outer ones first."""
    found: dict[tuple[str, ...], type] = {}
    for option in options_of(command):
        for depth in range(1, len(option.path)):
            found.setdefault(option.path[:depth], _record(command, option.path[:depth]))
    return found


def _record(command: type, path: tuple[str, ...]) -> type:
    value: Any = command
    for name in path:
        if isinstance(value, type):
            (field,) = (field for field in fields(value) if field.name == name)
            factory = field.default_factory
            value = field.default if factory is MISSING else factory()
        else:
            value = getattr(value, name)
    return type(value)


def _titles(record: type, path: tuple[str, ...]) -> dict[str, str]:
    """Title of the group of every field; records without groups are one."""
    groups: Mapping[str, str] = getattr(record, "GROUPS", {})
    outer = ".".join(name for name in path if name != "settings")
    titles: dict[str, str] = {}
    title = outer or _OWN
    for field in fields(record):
        if field.name in groups:
            title = f"{outer}: {groups[field.name]}" if outer else groups[field.name]
        titles[field.name] = title
    return titles


def _head(option: Option) -> str:
    """Names and type of an option."""
    names = [*option.short, option.flag]
    if option.kind is bool:
        switched = {True: [option.negative], False: names, None: [*names, option.negative]}
        names = switched.get(option.default, names)
    return f"{', '.join(names)} {'' if option.positional else option.metavar}".rstrip()


def _default(option: Option) -> str:
    if option.default is MISSING:
        return "" if option.positional else "(required)"
    if option.kind is bool or option.default in (None, (), ""):
        return ""
    values = option.default if isinstance(option.default, tuple) else (option.default,)
    return f"(default: {' '.join(map(str, values))})" if values != ({},) else ""


def _entry(head: str, lines: list[str]) -> Iterator[str]:
    """Lines of an option: its head, with the text beside it or below."""
    head = f"  {head}"
    if len(head) < _COLUMN and lines:
        yield f"{head:<{_COLUMN}}{lines[0]}"
        lines = lines[1:]
    else:
        yield head
    yield from (f"{'':<{_COLUMN}}{line}" for line in lines)


def _parts(doc: str) -> tuple[list[str], list[str]]:
    """Lines of the purpose, and those of the examples."""
    purpose, _, examples = doc.partition("\nExamples:\n")
    width = _width()
    paragraphs = [textwrap.fill(" ".join(p.split()), width) for p in purpose.split("\n\n")]
    lines = "\n\n".join(paragraphs).strip().split("\n")
    shown = textwrap.dedent(examples).rstrip().split("\n") if examples else []
    return lines, ["", "examples:", *(f"  {line}" for line in shown)] if shown else []


def _sentence(text: str) -> str:
    """The first sentence of a text, without the full stop."""
    return " ".join(text.split()).partition(". ")[0].rstrip(".")


def _gist(text: str) -> str:
    """The first clause of a text, and what its first sentence says of the default."""
    first, *others = _sentence(text).split("; ")
    return "; ".join([first, *(each for each in others if each.startswith("by default"))])


def _wrapped(text: str, most: int | None = None) -> list[str]:
    width = _width() - _COLUMN
    if most is None:
        return textwrap.wrap(text, width)
    return textwrap.wrap(text, width, max_lines=most, placeholder=" ...")


def _width() -> int:
    return max(60, min(100, shutil.get_terminal_size().columns))
