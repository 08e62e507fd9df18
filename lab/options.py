"""Command-line options made from the fields of dataclasses, and dataclasses made from options.

A field `n_votes` is the option `--n-votes`, the field `W` of a record in the field `guard` is
`--guard.W`; only the fields of a record called `settings` have no prefix. A `GuardConfig` counts as
one record with the fields of all its parts. The types decide how many words an option takes: none
for a bool, one for a number, a text or a choice, any number for tuples and mappings.

The text of an option in pages of help is the docstring of its field. A record of settings may have
two tables: `GROUPS`, the first field of every group to its name, and `SHORT`, the fields that
`--help` shows; `--help-all` shows all. A command may have a `SHORT` of its own. Options of the
command itself are always shown. A section "Examples:" of a docstring is shown as it is.
"""

from __future__ import annotations

import ast
import inspect
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from guard_core.config import GROUP_OF, KINDS, RECORDS, GuardConfig
from lab.base.errors import UserError
from lab.base.settings import hint

POSITIONAL = "positional"
"""`Annotated[T, POSITIONAL]` is a field that is given without an option's name. A text that begins
with a dash, as in `Annotated[T, "-o"]`, is a short name of the option."""
_FLAT = "settings"
_SWITCH = {"true": True, "false": False}
_WANTED = {int: "a whole number", float: "a number", bool: "true or false"}
_SHOWN = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}


class UsageError(UserError):
    """The words of a command line are no options of the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a command."""

    path: tuple[str, ...]
    """Names of the fields from the command down to its own."""
    kind: Any
    """Its type without bounds and None."""
    optional: bool
    """None is a value."""
    default: Any
    """`MISSING` if it has to be given."""
    marks: tuple[Any, ...]
    """Of its type, such as `POSITIONAL`."""

    @property
    def name(self) -> str:
        """Name in settings files, such as `guard.W`."""
        return ".".join(self.path[self.path[0] == _FLAT :])

    @property
    def flag(self) -> str:
        """Name on the command line; that of a positional one is only shown."""
        if self.positional:
            return self.name.upper()
        return "--" + self.name.replace("_", "-")

    @property
    def negative(self) -> str:
        """Name that switches a bool off."""
        group, dot, name = self.flag[2:].rpartition(".")
        return f"--{group}{dot}no-{name}"

    @property
    def short(self) -> tuple[str, ...]:
        """Short names."""
        return tuple(mark for mark in self.marks if str(mark).startswith("-"))

    @property
    def positional(self) -> bool:
        """Given without a name."""
        return POSITIONAL in self.marks

    @property
    def several(self) -> bool:
        """Takes any number of words."""
        return get_origin(self.kind) in (tuple, dict)

    @property
    def metavar(self) -> str:
        """The type as help shows it; empty for a bool."""
        return _metavar(self.kind)

    def value(self, words: Sequence[str]) -> Any:
        """Read the option's words; a UserError where they do not fit the type."""
        if self.optional and [word.lower() for word in words] == ["none"]:
            return None
        if not words and not self.several:
            raise UsageError(f"{self.flag} needs a value: {self.metavar}")
        try:
            return _value(self.kind, words)
        except ValueError as error:
            said = f"{self.flag} {' '.join(words)}" if not self.positional else " ".join(words)
            raise UserError(f"{said}: must be {error}") from None


def options_of(command: type, given: Mapping[str, Any] | None = None) -> list[Option]:
    """Return all options of a command, some with values in place of their defaults."""
    return list(_options(command, {**_defaults(command), **(given or {})}, ()))


def make(command: type, argv: Sequence[str], given: Mapping[str, Any] | None = None) -> Any:
    """Make a command from the words of its command line, see `options_of`.

    A UserError where an option is unknown, missing or wrong.
    """
    options = options_of(command, given)
    words = _words(options, argv)
    for option in options:
        if option.default is MISSING and option.path not in words and not _may_lack(option):
            raise UsageError(f"missing: {' '.join((option.flag, option.metavar))}".rstrip())
    values = {o.path: o.value(words[o.path]) for o in options if o.path in words}
    base = {**_defaults(command), **(given or {})}
    made = _changed(base, values, ())
    empty = {o.path[0]: () for o in options if o.positional and _may_lack(o)}
    return command(**{**empty, **made})


def _may_lack(option: Option) -> bool:
    return option.positional and option.several


def _defaults(record: type) -> dict[str, Any]:
    made = {field.name: _default(field) for field in fields(record) if field.init}
    return {name: value for name, value in made.items() if value is not MISSING}


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _options(record: type, values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Option]:
    hints = get_type_hints(record, include_extras=True)
    for field in fields(record):
        value = values.get(field.name, MISSING)
        own = (*path, field.name)
        if isinstance(value, GuardConfig):
            flat = value.flat()
            yield from (_option(KINDS[name], flat[name], (*own, name)) for name in flat)
        elif is_dataclass(value) and not isinstance(value, type):
            inner = {each.name: getattr(value, each.name) for each in fields(value)}
            yield from _options(type(value), inner, own)
        else:
            yield _option(hints[field.name], value, own)


def _option(hint: Any, default: Any, path: tuple[str, ...]) -> Option:
    kind, optional, marks = _stripped(hint)
    return Option(path=path, kind=kind, optional=optional, default=default, marks=marks)


def _stripped(kind: Any) -> tuple[Any, bool, tuple[Any, ...]]:
    """A type without None and marks, whether None belonged to it, and the marks."""
    if get_origin(kind) is Annotated:
        inner, *marks = get_args(kind)
        plain, optional, more = _stripped(inner)
        return plain, optional, (*marks, *more)
    parts = [part for part in get_args(kind) if part is not NoneType]
    if get_origin(kind) in (Union, UnionType) and len(parts) == 1:
        plain, _, marks = _stripped(parts[0])
        return plain, True, marks
    return kind, False, ()


def _words(options: Sequence[Option], argv: Sequence[str]) -> dict[tuple[str, ...], list[str]]:
    """The words given to every option; of one that is given twice the last."""
    named = [option for option in options if not option.positional]
    known = {name: option for option in named for name in (option.flag, *option.short)}
    known |= {option.negative: option for option in named if option.kind is bool}
    given: dict[tuple[str, ...], list[str]] = {}
    free: list[str] = []
    left = list(argv)
    while left:
        word = left.pop(0)
        flag, equals, value = word.partition("=")
        if not _is_name(word, known):
            free.append(word)
        elif flag not in known:
            raise UsageError(f"unknown option {flag}{hint(flag, [o.flag for o in named])}")
        elif equals:
            given[known[flag].path] = [value]
        else:
            given[known[flag].path] = _taken(known[flag], flag, left, known)
    return given | _placed([option for option in options if option.positional], free)


def _is_name(word: str, known: Mapping[str, Option]) -> bool:
    return (word.startswith("--") and len(word) > 2) or word in known


def _taken(option: Option, flag: str, left: list[str], known: Mapping[str, Option]) -> list[str]:
    """Take the words that belong to an option off the words that are left."""
    if option.kind is bool:
        if left and left[0].lower() in (*_SWITCH, "none"):
            return [left.pop(0)]
        return [str(flag != option.negative)]
    taken: list[str] = []
    while left and not _is_name(left[0], known) and (option.several or not taken):
        taken.append(left.pop(0))
    return taken


def _placed(options: Sequence[Option], free: list[str]) -> dict[tuple[str, ...], list[str]]:
    """Words without a name, dealt to the positional options in order."""
    given: dict[tuple[str, ...], list[str]] = {}
    for option in options:
        count = len(free) if option.several else 1
        if free:
            given[option.path], free = free[:count], free[count:]
    if free:
        raise UsageError(f"unknown word {free[0]}")
    return given


def _changed(
    base: Any, values: Mapping[tuple[str, ...], Any], path: tuple[str, ...]
) -> dict[str, Any] | Any:
    """A record, or the fields of the command as a mapping, with the values given below `path`."""
    changes: dict[str, Any] = {}
    for name in dict.fromkeys(own[len(path)] for own in values if own[: len(path)] == path):
        own = (*path, name)
        if own in values:
            changes[name] = values[own]
        else:
            inner = base.get(name) if isinstance(base, Mapping) else getattr(base, name)
            changes[name] = _changed(inner, values, own)
    if isinstance(base, Mapping):
        return {**base, **changes}
    return base.set(**changes) if isinstance(base, GuardConfig) else replace(base, **changes)


def _value(kind: Any, words: Sequence[str]) -> Any:
    """Read words as a type; a ValueError says what it wants."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is dict:
        if len(words) % 2:
            raise ValueError("pairs of a name and a value")
        inner = get_args(parts[1]) or (parts[1],)
        pairs = zip(words[::2], words[1::2], strict=True)
        return {name: _first(inner, word) for name, word in pairs}
    if origin is not tuple:
        return _scalar(kind, words[0])
    inner = _stripped(parts[0])[0]
    if get_origin(inner) is not tuple:
        return tuple(_scalar(inner, word) for word in words)
    kinds = [_stripped(part)[0] for part in get_args(inner)]
    if len(words) % len(kinds):
        raise ValueError(f"groups of {len(kinds)} values")
    rows = zip(*[iter(words)] * len(kinds), strict=True)
    return tuple(tuple(_scalar(k, w) for k, w in zip(kinds, row, strict=True)) for row in rows)


def _first(kinds: Sequence[Any], word: str) -> Any:
    """Read a word as the first of several types that it fits."""
    for kind in kinds:
        try:
            return _scalar(kind, word)
        except ValueError:
            continue
    raise ValueError(" or ".join(_WANTED[kind] for kind in kinds))


def _scalar(kind: Any, word: str) -> Any:
    if get_origin(kind) is Literal:
        for part in get_args(kind):
            if word == str(part):
                return part
        known = [str(part) for part in get_args(kind)]
        raise ValueError(f"one of {', '.join(known)}{hint(word, known)}")
    if kind is bool and word.lower() in _SWITCH:
        return _SWITCH[word.lower()]
    if kind not in _WANTED:
        return kind(word)
    try:
        return {int: int, float: float}[kind](word)
    except (ValueError, KeyError):
        raise ValueError(_WANTED[kind]) from None


def _metavar(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"{{{','.join(map(str, parts))}}}"
    if origin is dict:
        return "NAME VALUE ..."
    if origin is tuple:
        inner = [part for part in parts if part is not Ellipsis]
        shown = " ".join(_metavar(_stripped(part)[0]) for part in inner)
        return f"{shown} ..." if Ellipsis in parts else shown
    return "" if kind is bool else _SHOWN.get(kind, "TEXT")


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
    """Return the page of one command; the complete one shows every option with its whole text."""
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
    inner = RECORDS.values() if record is GuardConfig else ()
    return texts | {name: text for part in inner for name, text in field_texts(part).items()}


def _groups(
    command: type, options: list[Option], complete: bool
) -> dict[str, list[tuple[Option, str]]]:
    """Options and their texts, by the title of their group; first those that have to be given."""
    paths = dict.fromkeys(o.path[:depth] for o in options for depth in range(1, len(o.path)))
    records = {(): command, **{path: _record(command, path) for path in paths}}
    texts = {path: field_texts(record) for path, record in records.items()}
    titles = {path: _titles(record, path) for path, record in records.items()}
    short = getattr(command, "SHORT", getattr(records.get(("settings",)), "SHORT", ()))
    groups: dict[str, list[tuple[Option, str]]] = {}
    for option in sorted(options, key=lambda o: (len(o.path), o.default is not MISSING)):
        *above, name = option.path
        if complete or not above or option.name in short:
            text = texts[tuple(above)].get(name, "").replace("if None", "by default")
            shown = text if complete else _gist(text)
            members = groups.setdefault(titles[tuple(above)][name], [])
            members.append((option, f"{shown} {_default_text(option)}".strip()))
    return groups


def _record(command: type, path: tuple[str, ...]) -> type:
    value = _defaults(command)[path[0]]
    for name in path[1:]:
        value = getattr(value, name)
    return type(value)


def _titles(record: type, path: tuple[str, ...]) -> dict[str, str]:
    """Title of the group of every field; records without groups are one."""
    if record is GuardConfig:
        return {name: f"guard: {GROUP_OF.get(name, 'parts')}" for name in KINDS}
    groups: Mapping[str, str] = getattr(record, "GROUPS", {})
    titles: dict[str, str] = {}
    title = ".".join(name for name in path if name != "settings") or _OWN
    for field in fields(record):
        if field.name in groups:
            title = groups[field.name]
        titles[field.name] = title
    return titles


def _head(option: Option) -> str:
    names = [*option.short, option.flag]
    if option.kind is bool:
        switched = {True: [option.negative], False: names, None: [*names, option.negative]}
        names = switched.get(option.default, names)
    return f"{', '.join(names)} {'' if option.positional else option.metavar}".rstrip()


def _default_text(option: Option) -> str:
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
