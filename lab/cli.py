"""The shared door of all command lines: one-line errors, exit codes, clean interrupts."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import tyro
from tyro.extras import subcommand_cli_from_dict

from guard_core import ConfigError, GuardConfig, __version__
from lab.arms import BASELINE, arm, matched_target, under
from lab.errors import EXIT_USER_ERROR, UserError, exit_code, one_line
from lab.signals import stops_raised

_OPTION_INDENT, _HELP_INDENT = 4, 8
"""Columns in which words begin before options do, and these before help, in messages of tyro."""
_PHRASES = (
    (r"Missing from .+?: (.+)", r"missing: \1"),
    (r"Unrecognized options: (-[^ ,]+).*", r"unknown option \1"),
    (r"Unrecognized options: ([^ ,]+).*", r"unknown word \1"),
    (r"Perhaps you meant: (.+)", r"perhaps you meant \1"),
    (r"Available subcommands: (.+)", r"the commands are \1"),
    (r"Expected one of \{(.+)\}\.", r"no command given, the commands are \1"),
    (r"Missing value for argument '(.+?)'.*", r"\1 needs a value"),
    (r"invalid choice (.+) for argument '(.+)'\. Expected .+ \((.+)\)\.", r"\2 is none of \3: \1"),
    (r"Error parsing (.+?): invalid literal for int\(\) .*: (.+)", r"\1 is no whole number: \2"),
    (r"Error parsing (.+?): could not convert string to float: (.+)", r"\1 is no number: \2"),
    (r"Error parsing (.+)", r"\1"),
)
"""Message of tyro to our words."""
EXIT_CLOSED_PIPE = 141


class Command(Protocol):
    """A dataclass whose fields are the options and whose `run` does the work.

    A command may also have a class method `defaults(argv)` that returns an instance of it: the
    values that options take when they are not given, for example from a file named on the line.
    """

    def run(self) -> int | None:
        """Do the work; the return value is the exit code."""


def run_cli(
    prog: str,
    commands: Mapping[str, type[Command]],
    argv: Sequence[str] | None = None,
    description: str | None = None,
) -> int:
    """Parse a command line, run the command, and turn user mistakes into one line.

    Args:
        prog: name of the program, as typed.
        commands: subcommand name to `Command`; a single entry named "" has no subcommand.
        argv: arguments after the program's name; those of the process if left out.
        description: first lines of `--help`.

    Returns:
        0, or the command's own exit code; 2 for a user's mistake; 130 after Ctrl-C, 143 after
        SIGTERM, 129 after SIGHUP; 141 where the reader closed the pipe.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    if argv[:1] == ["--version"]:
        print(f"{prog} {__version__}")
        return 0
    try:
        if read_option(argv, "--out") == "":
            raise UserError("--out: is empty; name a folder")
        with stops_raised():
            code = _parse(prog, commands, argv, description).run() or 0
        sys.stdout.flush()
        return code
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


def read_option(argv: Sequence[str], flag: str) -> str | None:
    """The value given to `flag`, for options that set the defaults of others."""
    for place, word in enumerate(argv):
        if word == flag and place + 1 < len(argv):
            return argv[place + 1]
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None


def with_arm_options(argv: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as plain values, with what the options say of the rule and the guard.

    `--rule scope` alone is the rule without a guard, as `--arm scope` is. A guard comes from
    `--arm`, from `--profile`, or from a single option such as `--guard.W`, which changes the guard
    of the values or else the paper's.

    Args:
        argv: the command line.
        values: of the settings file, empty without one.

    Raises:
        UserError: `--arm` contradicts `--rule` or `--profile`, or names no arm.
        ConfigError: there is no profile of that name.
    """
    made = dict(values)
    name, profile, rule = (read_option(argv, f"--{n}") for n in ("arm", "profile", "rule"))
    if rule is not None:
        made["rule"] = rule
    if name is not None:
        if profile is not None:
            raise UserError("--arm and --profile: both set the guard; give one of them")
        made |= _arm_values(name, made.get("rule", BASELINE), rule)
        factor = read_option(argv, "--step-factor") or made.get("step_factor")
        if factor is None and matched_target(name):
            raise UserError(f"arm {name!r}: needs --step-factor, which the command compare finds")
    elif profile is not None:
        made["guard"] = GuardConfig.profile(profile).to_dict()
    elif any(word.startswith("--guard.") for word in argv):
        made.setdefault("guard", {})
    if made.get("rule", BASELINE) != values.get("rule", BASELINE):
        made.pop("rule_options", None)
    return made


def _arm_values(name: str, rule: str, given: str | None) -> dict[str, Any]:
    """The settings of an arm under the rule of the settings; `given` is that of `--rule`."""
    chosen = arm(under(name, rule))
    if given not in (None, BASELINE, chosen.rule):
        raise UserError(
            f"arm {name!r}: trains by rule {chosen.rule}, and --rule is {given}; give one of them"
        )
    settings = {"guard": chosen.guard.to_dict(), "labels": chosen.labels, "rule": chosen.rule}
    return settings | dict(chosen.settings)


def _parse(
    prog: str, commands: Mapping[str, type[Command]], argv: list[str], description: str | None
) -> Command:
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            if set(commands) == {""}:
                return _options(commands[""], prog, argv, description)
            if argv and argv[0] in commands:
                return _options(commands[argv[0]], f"{prog} {argv[0]}", argv[1:], None)
            return subcommand_cli_from_dict(
                dict(commands), prog=prog, description=description, args=argv
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise UserError(_usage_error(stderr.getvalue(), prog)) from None


def _options(
    command: type[Command], prog: str, argv: list[str], description: str | None
) -> Command:
    defaults = getattr(command, "defaults", None)
    if defaults is None:
        return tyro.cli(command, prog=prog, args=argv, description=description)
    return tyro.cli(command, prog=prog, args=argv, description=description, default=defaults(argv))


def _usage_error(text: str, prog: str) -> str:
    """Tyro's framed message as one sentence.

    Its sections are a text, under which options stand further in, and under these their help.
    """
    parts, see = [], prog
    inside = "\n".join(line.strip("│|") for line in text.splitlines()[1:])
    for section in re.split(r"^ *[─-╿-]+ *$", inside, flags=re.MULTILINE):
        lines = [line for line in section.split("\n") if line[:_HELP_INDENT].strip()]
        words = " ".join(line.strip() for line in lines if line[:_OPTION_INDENT].strip())
        options = ", ".join(line.strip() for line in lines if not line[:_OPTION_INDENT].strip())
        said = f"{words} {options}".strip()
        if said.startswith("For full helptext"):
            see = said[said.index(prog) :].removesuffix(" --help")
        elif said and not said.startswith("Argument helptext"):
            parts.append(_phrase(said))
    return f"{', '.join(parts) or 'wrong options'}; see {see} --help"


def _phrase(said: str) -> str:
    for pattern, ours in _PHRASES:
        if found := re.fullmatch(pattern, said):
            return found.expand(ours)
    return said.rstrip(".")
