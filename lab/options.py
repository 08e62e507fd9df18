"""Command lines and pages of help made from dataclasses, by argparse.

A field `n_votes` is the option `--n-votes`, the field `W` of a record in the field `guard` is
`--guard.W`; only the fields of a record called `settings` have no prefix. A `GuardConfig` counts as
one record with the fields of all its parts. The types decide how many words an option takes: none
for a bool, one for a number, a text or a choice, any number for tuples and mappings. The words of a
repeated option are appended where it takes any number; else it is refused.

The text of an option in pages of help is the docstring of its field. A record of settings may have
two tables: `GROUPS`, the first field of every group to its name, and `SHORT`, the fields that
`--help` shows; `--help-all` shows all. A command may have a `SHORT` of its own, and `OPTIONS`, the
settings that it takes where it refuses others, whose defaults are not those of the record. Options
of the command itself are always shown.
"""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import shutil
import textwrap
from argparse import SUPPRESS, Action, ArgumentError, ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from guard_core.config import GROUP_OF, KINDS, RECORDS, GuardConfig
from lab.base.errors import UserError
from lab.base.settings import default_of, hint, readings

POSITIONAL = "positional"
"""`Annotated[T, POSITIONAL]` is a field that is given without an option's name. A text that begins
with a dash, as in `Annotated[T, "-o"]`, is a short name of the option."""
_FLAT = "settings."
_WANTED = {int: "a whole number", float: "a number", bool: "true or false", Path: "a name"}
_COLUMN, _SHORT_TEXT = 30, 84
"""Column in which texts begin, and the most characters of one on a short page."""


def make(prog: str, command: type, argv: Sequence[str]) -> Any:
    """Make a command from the words of its command line.

    A command may have a class method `defaults`, which gets the values given, by the names of their
    options, and returns values of fields in place of their defaults, for example from a file. A
    UserError where an option is unknown, missing or wrong.
    """
    parser = _parser(prog)
    actions = list(_added(parser, command, "", lambda *_: ""))
    bools = {action.option_strings[-1] for action in actions if action.metavar == ""}
    words = [
        f"{word}=true" if word in bools and after.lower() not in ("true", "false", "none") else word
        for word, after in zip(argv, [*argv[1:], ""], strict=False)
    ]
    try:
        options, others = parser.parse_known_intermixed_args(words)
    except ArgumentError as error:
        raise UserError(f"{error.argument_name} {error.message}; see {prog} --help") from None
    for word in others:
        flag = word.partition("=")[0]
        near = hint(flag, [name for action in actions for name in action.option_strings])
        wrong = f"option {flag}{near}" if flag.startswith("-") else f"word {word}"
        raise UserError(f"unknown {wrong}; see {prog} --help")
    for action in actions:
        if getattr(options, action.dest, None) is MISSING:
            raise UserError(f"missing: {_shown(action)}; see {prog} --help")
    values = {n: tuple(v) if isinstance(v, list) else v for n, v in vars(options).items()}
    defaults = getattr(command, "defaults", lambda _: {})
    base = {field.name: default_of(field) for field in fields(command)}
    base |= defaults({name.removeprefix(_FLAT): value for name, value in values.items()})
    base |= {name: value for name, value in values.items() if "." not in name}
    return _changed(command(**base), values)


def _changed(record: Any, values: Mapping[str, Any]) -> Any:
    """A record with values by their names below it, such as `guard.W`."""
    made = {name: value for name, value in values.items() if "." not in name}
    for part in dict.fromkeys(name.partition(".")[0] for name in values if "." in name):
        inner = {n.partition(".")[2]: v for n, v in values.items() if n.startswith(f"{part}.")}
        made[part] = _changed(getattr(record, part), inner)
    return record.set(**made) if isinstance(record, GuardConfig) else replace(record, **made)


def _parser(prog: str) -> ArgumentParser:
    width = max(60, min(100, shutil.get_terminal_size().columns))
    layout = argparse.RawDescriptionHelpFormatter
    return ArgumentParser(
        prog,
        usage="",
        formatter_class=functools.partial(layout, max_help_position=_COLUMN, width=width),
        add_help=False,
        allow_abbrev=False,
        exit_on_error=False,
    )


def _added(
    parser: ArgumentParser, record: Any, prefix: str, text: Callable[[type, str, Any], str]
) -> Iterator[Action]:
    """Add an option for every field, those that have to be given first, nested records last.

    The record is one of settings, or the class of a command. `text` returns what help says of a
    field with its value; `SUPPRESS` hides the option.
    """
    owner = record if isinstance(record, type) else type(record)
    kinds, titles = get_type_hints(owner, include_extras=True), getattr(owner, "GROUPS", {})
    if isinstance(record, GuardConfig):
        values, kinds = record.flat(), KINDS
        titles = {name: f"guard: {GROUP_OF.get(name, 'parts')}" for name in KINDS}
    elif owner is record:
        values = {field.name: default_of(field) for field in fields(owner)}
    else:
        values = {field.name: getattr(record, field.name) for field in fields(owner)}
    title = prefix.removeprefix(_FLAT)[:-1] or "options"
    groups: dict[str, Any] = {}
    nested = {name: value for name, value in values.items() if is_dataclass(value)}
    for name, value in sorted(values.items(), key=lambda item: item[1] is not MISSING):
        title = titles.get(name, title)
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        if name not in nested:
            shown = text(owner, name, value)
            yield _option(groups[title], prefix + name, kinds[name], value, shown)
    for name, value in nested.items():
        yield from _added(parser, value, f"{prefix}{name}.", text)


def _option(group: Any, name: str, wanted: Any, value: Any, text: str) -> Action:
    """Add one option; a bool also has one that switches it off."""
    kind, optional, marks = _stripped(wanted)
    several = get_origin(kind) in (tuple, dict)
    one = get_args(kind)[0] if several else kind
    default = MISSING if value is MISSING else SUPPRESS
    how: dict[str, Any] = {"type": functools.partial(_read, one, optional), "default": default}
    if POSITIONAL in marks:
        nargs = "*" if several else "?"
        return group.add_argument(name, nargs=nargs, metavar=name.upper(), help=text, **how)
    names = [mark for mark in marks if str(mark).startswith("-")]
    flag = "--" + name.removeprefix(_FLAT).replace("_", "-")
    how |= {"dest": name, "help": text, "action": _Given, "nargs": "*" if several else None}
    how["metavar"] = getattr(one, "__name__", "").upper()
    if get_origin(kind) is dict:
        how |= {"metavar": "NAME VALUE", "action": _Pairs}
    if get_origin(one) is Literal:
        how["metavar"] = f"{{{','.join(map(str, get_args(one)))}}}"
    if kind is not bool:
        return group.add_argument(*names, flag, **how)
    how |= {"metavar": "", "help": SUPPRESS if value is True else text}
    action = group.add_argument(*names, flag, **how)
    hidden = value is False or text == SUPPRESS
    off = {"dest": name, "default": default, "help": SUPPRESS if hidden else f"Off: {text}"}
    head, dot, last = flag[2:].rpartition(".")
    group.add_argument(f"--{head}{dot}no-{last}", action=_Given, nargs=0, const=False, **off)
    return action


class _Given(Action):
    """Appends the words of an option that takes any number; refuses a second value of others."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        before = getattr(namespace, self.dest, MISSING)
        if self.nargs == 0:
            values = self.const
        if before is not MISSING and not isinstance(values, list):
            raise ArgumentError(self, f"is given twice ({before}, {values}); give it once")
        setattr(namespace, self.dest, values if before is MISSING else [*before, *values])


class _Pairs(Action):
    """Reads names and values in turn; a value is a number or a bool where it can be one."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        if len(values) % 2:
            raise ArgumentError(self, f"{' '.join(values)}: must be pairs of a name and a value")
        made = dict(getattr(namespace, self.dest, {}))
        for name, word in zip(values[::2], values[1::2], strict=True):
            if name in made:
                raise ArgumentError(self, f"{name} is given twice; give it once")
            made[name] = next(v for v in readings(word) if v is not None)
        setattr(namespace, self.dest, made)


def _read(kind: Any, optional: bool, word: str) -> Any:
    """A word as a value of a type, or None where that is one too."""
    if optional and word.lower() == "none":
        return None
    if get_origin(kind) is Literal:
        known = {str(part): part for part in get_args(kind)}
        if word in known:
            return known[word]
        raise ArgumentTypeError(f"{word}: must be one of {', '.join(known)}{hint(word, known)}")
    if kind is Path and word:
        return Path(word)
    for value in readings(word):
        if type(value) is kind:
            return value
    raise ArgumentTypeError(f"{word}: must be {_WANTED[kind]}")


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


def _shown(action: Action) -> str:
    """An option as the usage shows it."""
    return " ".join([*action.option_strings[-1:], str(action.metavar)])


def program_page(prog: str, about: str, commands: Mapping[str, type]) -> str:
    """Return the page of a program with several commands."""
    parser = _parser(prog)
    parser.usage, parser.description = f"{prog} COMMAND [OPTIONS]", about
    parser.epilog = f"Options of a command: {prog} COMMAND --help"
    group = parser.add_argument_group("commands")
    for name, command in commands.items():
        summary = _sentence(inspect.getdoc(command) or "")
        group.add_argument(name, help=summary.replace("%", "%%"))
    return parser.format_help().rstrip()


def command_page(prog: str, command: type, complete: bool = False) -> str:
    """Return the page of one command; the complete one shows every option with its whole text."""
    options: list[str] = []
    fixed = hasattr(command, "OPTIONS")

    def text(record: type, name: str, value: Any) -> str:
        if record is not command and name not in getattr(command, "OPTIONS", (name,)):
            return SUPPRESS
        options.append(name)
        short = getattr(command, "SHORT", getattr(record, "SHORT", ()))
        if not (complete or record is command or name in short):
            return SUPPRESS
        said = field_texts(record).get(name, "").replace("if None", "by default")
        if not complete:
            said = textwrap.shorten(_gist(said), _SHORT_TEXT, placeholder=" ...")
        if value is MISSING:
            said += " (required)"
        elif not (isinstance(value, bool) or value in (None, (), "", {}) or fixed):
            values = value if isinstance(value, tuple) else (value,)
            said += f" (default: {' '.join(map(str, values))})"
        return said.replace("%", "%%")

    parser = _parser(prog)
    actions = list(_added(parser, command, "", text))
    needed = [_shown(a) for a in actions if a.default is MISSING or not a.option_strings]
    parser.usage = " ".join([prog, *needed, "[OPTIONS]"])
    parser.description = inspect.getdoc(command)
    parser.epilog = None if complete else f"All {len(options)} options: {prog} --help-all"
    return parser.format_help().rstrip()


@functools.cache
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


def _sentence(text: str) -> str:
    return " ".join(text.split()).partition(". ")[0].rstrip(".")


def _gist(text: str) -> str:
    """The first clause of a text, and what its first sentence says of the default."""
    first, *others = _sentence(text).split("; ")
    return "; ".join([first, *(each for each in others if each.startswith("by default"))])
