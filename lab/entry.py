"""Start of a program: it handles stop signals before its commands are imported."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Sequence

from lab.base.errors import EXIT_USER_ERROR, install, installed
from lab.signals import ends_at_once


def enter(prog: str, commands: str, part: str, argv: Sequence[str] | None = None) -> int:
    """Import a program's commands and run its command line; returns the exit code.

    Args:
        commands: module with `COMMANDS` and `ABOUT`, as of `lab.cli.run_cli`.
        part: optional part of this package that brings the libraries of the program.
        argv: arguments after the program's name; those of the process if left out, and then stop
            signals end the process in one line until its work is done.
    """
    if argv is None:
        gc.set_threshold(10_000)  # the usual 700 takes a tenth of the imports, which free nothing
    with ends_at_once(prog, last=argv is None):
        try:
            from lab.cli import run_cli

            module = importlib.import_module(commands)
            return run_cli(prog, module.COMMANDS, argv, module.ABOUT)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if not package or installed(package):
                raise
            print(f"{prog}: {package} not installed; install with {install(part)}", file=sys.stderr)
            return EXIT_USER_ERROR
