"""The one exception for mistakes that a user can mend, and other errors in one line."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

EXIT_USER_ERROR = 2


class UserError(Exception):
    """Something the user gave is wrong; the message says what, where and the remedy in one line."""


@contextlib.contextmanager
def refusing(what: str, remedy: str = "") -> Iterator[None]:
    """Turn an error of the operating system into a UserError, `WHAT (REASON); REMEDY`."""
    try:
        yield
    except OSError as error:
        reason = f"{what} ({error.strerror or error})"
        raise UserError(f"{reason}; {remedy}" if remedy else reason) from error


class Unfit(UserError):
    """The model or the problems cannot be used, whatever the arm and the seed of the run."""


def one_line(text: object) -> str:
    """Return a text on one line, with escapes for what a terminal or a file cannot show.

    Control characters, marks that turn the direction of writing, and bytes that are not UTF-8 stay
    visible and do nothing.
    """
    words = " ".join(str(text).split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)


class Terminated(KeyboardInterrupt):
    """The process was asked to end by a signal other than Ctrl-C, whose number is the argument."""


def exit_code(error: BaseException) -> int:
    """Return the exit code of a command that an error ended; 1 for those not a user's."""
    if isinstance(error, KeyboardInterrupt):
        return 128 + (error.args[0] if isinstance(error, Terminated) else 2)  # 2 is Ctrl-C
    return EXIT_USER_ERROR if isinstance(error, UserError) else 1


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text without a full stop; its type's name without text.

    A line that ends in a colon goes on with the next one. More than 200 characters are cut.
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    line = " ".join(part.strip() for part in lines[: 1 + lines[0].endswith(":")])
    return line.rstrip(".") if len(line) <= 200 else f"{line[:197]}..."


def install(extra: str) -> str:
    """Return the command that installs an extra from the clone that this file stands in.

    Without a clone, as after `pip install .`, that is the command to give inside of one.
    """
    clone = Path(__file__).resolve().parents[2]
    away = (clone / "pyproject.toml").is_file() and clone != Path.cwd()
    return f"pip install -e '{clone if away else '.'}[{extra}]'"


def installed(package: str) -> bool:
    """Return whether a package can be imported; a mere folder of its name does not count."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def require_packages(extra: str, *packages: str, name: str = "") -> None:
    """Refuse where packages are missing that the option or setting `name` needs.

    The message has the command that installs the extra of them.
    """
    if missing := ", ".join(package for package in packages if not installed(package)):
        words = f"{missing} not installed; install with {install(extra)}"
        raise UserError(f"{name}: {words}" if name else words)
