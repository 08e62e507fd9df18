"""The shared door of all command lines: one-line errors, exit codes, clean interrupts."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

import tyro
from tyro.extras import subcommand_cli_from_dict

from guard_core import ConfigError
from lab.errors import Terminated, UserError

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_CLOSED_PIPE = 141
EXIT_TERMINATED = 143


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
        0, or the command's own exit code; 2 for a user's mistake; 130 after Ctrl-C;
        143 after SIGTERM; 141 where the reader closed the pipe.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _parse(prog, commands, argv, description).run() or 0
        sys.stdout.flush()
        return code
    except (UserError, ConfigError) as error:
        print(f"{prog}: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt as stop:
        print(f"{prog}: interrupted; what was written so far can be read", file=sys.stderr)
        return EXIT_TERMINATED if isinstance(stop, Terminated) else EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has enough; Python's own flush at exit must not complain of it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CLOSED_PIPE


def read_option(argv: Sequence[str], flag: str) -> str | None:
    """The value given to `flag`, for options that set the defaults of others."""
    for place, word in enumerate(argv):
        if word == flag and place + 1 < len(argv):
            return argv[place + 1]
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None


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
        raise UserError(_one_line(stderr.getvalue(), prog)) from None


def _options(
    command: type[Command], prog: str, argv: list[str], description: str | None
) -> Command:
    defaults = getattr(command, "defaults", None)
    if defaults is None:
        return tyro.cli(command, prog=prog, args=argv, description=description)
    return tyro.cli(command, prog=prog, args=argv, description=description, default=defaults(argv))


def _one_line(text: str, prog: str) -> str:
    """Tyro's framed message without its frame."""
    lines = [re.sub(r"[─-╿]", " ", line).strip() for line in text.splitlines()]
    body = [line for line in lines[1:] if line]
    for end, line in enumerate(body):
        if line.startswith(("Argument helptext", "For full helptext")):
            body = body[:end]
            break
    return f"{'; '.join(body) or 'wrong options'}; see {prog} --help"
