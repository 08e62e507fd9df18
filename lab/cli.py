"""The shared door of all command lines: one-line errors, exit codes, clean interrupts."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from guard_core import ConfigError, GuardConfig, __version__
from lab.base.arms import BASELINE, arm, for_cell, joined, matched_target, with_rule
from lab.base.errors import EXIT_USER_ERROR, UserError, exit_code, one_line
from lab.base.own_rules import load_rules
from lab.base.settings import hint, toml_values
from lab.options import command_page, make, program_page
from lab.signals import stops_raised

EXIT_CLOSED_PIPE = 141


class Command(Protocol):
    """A dataclass whose fields are the options (`lab.options`) and whose `run` does the work."""

    def run(self) -> int | None:
        """Do the work; the return value is the exit code."""


def run_cli(
    prog: str,
    commands: Mapping[str, type[Command]],
    argv: Sequence[str] | None = None,
    about: str = "",
) -> int:
    """Parse a command line, run the command, and turn user mistakes into one line.

    Args:
        commands: subcommand name to `Command`; a single entry named "" has no subcommand.
        argv: arguments after the program's name; those of the process if left out.
        about: purpose and examples, for the help of a program with several commands.

    Returns:
        0, or the command's own exit code; 2 for a user's mistake; 130 after Ctrl-C, 143 after
        SIGTERM, 129 after SIGHUP; 141 where the reader closed the pipe.
    """
    argv = [_dashed(word) for word in (sys.argv[1:] if argv is None else argv)]
    _open_streams()
    try:
        page = _page(prog, commands, argv, about)
        command = None if page else parse(prog, commands, argv)
        with stops_raised():
            code = print(page) if command is None else command.run()
        sys.stdout.flush()
        return code or 0
    except (UserError, ConfigError) as error:
        print(f"{prog}: {one_line(error)}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt as stop:
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(f"{prog}: interrupted; what was written so far can be read", file=sys.stderr)
        return exit_code(stop)
    except BrokenPipeError:
        # The reader (`| head`) has enough; Python's own flush at exit must not complain of it.
        _drop_output()
        return EXIT_CLOSED_PIPE
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            place = str(error.filename)
            print(f"{prog}: {place[:40]}...: the name is too long; shorten it", file=sys.stderr)
        elif _output_fails():
            print(f"{prog}: stdout cannot be written ({error.strerror})", file=sys.stderr)
            _drop_output()
        else:
            raise
        return EXIT_USER_ERROR


def _open_streams() -> None:
    """Open standard streams that the parent closed, so that no file of a run takes their place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.dup(number), "w", encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the name of a folder may hold any bytes
            stream.reconfigure(errors="backslashreplace")


def _output_fails() -> bool:
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def arms_of(path: Path | None, usual: Sequence[str]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The arms of a comparison, and the other values of its settings file, which may be a pipe.

    The arms are the list `arms` of the file, or the usual ones. The list holds names, and tables
    with a name and the arm's own settings, such as `{arm = "guard", flip_rate = "instant"}`.
    """
    values = toml_values(path)
    try:
        entries = msgspec.convert(values.pop("arms", list(usual)), list[str | dict[str, Any]])
        return tuple(e if isinstance(e, str) else joined(e.pop("arm"), e) for e in entries), values
    except (msgspec.ValidationError, KeyError, TypeError):
        raise UserError(
            f"{path}: arms: give a list of names and of tables with a name as `arm`"
        ) from None


def with_arm_options(
    given: Mapping[str, Any], values: Mapping[str, Any], cell: str | None = None
) -> dict[str, Any]:
    """Settings as plain values, with what the options say of the rule and the guard.

    `--rule scope` alone is the rule without a guard, as `--arm scope` is. A guard comes from
    `--arm`, from `--profile`, or from a single option such as `--guard.W`, which changes the guard
    of the values or else the paper's.

    Args:
        given: values of the options on the command line, by name.
        values: of the settings file, empty without one.
        cell: of the paper, see `lab.base.arms.for_cell`.
    """
    made = dict(values)
    if "rules" in given:
        made["rules"] = given["rules"]
    load_rules(made.get("rules", ()))  # now, since the other options may name them
    name, profile, rule = map(given.get, ("arm", "profile", "rule"))
    if rule is not None:
        made["rule"] = rule
    if name is not None:
        if profile is not None:
            raise UserError("--arm and --profile: both set the guard; give one of them")
        named = for_cell(name, cell)
        chosen = arm(with_rule(named, made.get("rule", BASELINE)))
        if rule not in (None, BASELINE, chosen.rule):
            trains = f"trains by rule {chosen.rule}, and --rule is {rule}"
            raise UserError(f"arm {named!r}: {trains}; give one of them")
        made |= chosen.values()
        if matched_target(name) and given.get("step_factor", made.get("step_factor")) is None:
            raise UserError(f"arm {name!r}: needs --step-factor, which the command compare finds")
    elif profile is not None:
        made["guard"] = GuardConfig.profile(profile).to_dict()
    elif any(option.startswith("guard.") for option in given):
        made.setdefault("guard", {})
    if made.get("rule", BASELINE) != values.get("rule", BASELINE):
        made.pop("rule_options", None)
    return made


def _dashed(word: str) -> str:
    """A word with the dashes of options, where it is one: `--n_votes=3` is `--n-votes=3`."""
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value if word.startswith("--") else word


def _page(prog: str, commands: Mapping[str, type[Command]], argv: list[str], about: str) -> str:
    """Text to print instead of running a command; empty if none."""
    if argv[:1] == ["--version"]:
        return f"{prog} {__version__}"
    first = {word for word in argv[:1] if not word.startswith("-")}
    is_unknown = bool(first) and not (first | {""}) & set(commands)
    if is_unknown or not {"-h", "--help", "--help-all"} & set(argv):
        return ""
    name = next((word for word in argv if word in commands), "")
    if name not in commands:
        return program_page(prog, about, commands)
    return command_page(f"{prog} {name}".rstrip(), commands[name], "--help-all" in argv)


def parse(prog: str, commands: Mapping[str, type[Command]], argv: list[str]) -> Command:
    """Return the command of a command line, whose name is taken off `argv`."""
    name = argv.pop(0) if argv and "" not in commands else ""
    if name not in commands:
        wrong = f"unknown command {name}{hint(name, commands)}" if name else "no command given"
        raise UserError(f"{wrong}; the commands are {', '.join(commands)}; see {prog} --help")
    return make(f"{prog} {name}".rstrip(), commands[name], argv)
