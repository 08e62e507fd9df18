"""Start of a program: it handles stop signals before its commands are imported."""

from __future__ import annotations

import gc
import importlib
import signal
from collections.abc import Sequence

from lab.signals import end_at_once


def enter(prog: str, commands: str, argv: Sequence[str] | None = None) -> int:
    """Import a program's commands and run its command line; returns the exit code.

    Args:
        commands: module with `COMMANDS` and `ABOUT`, as of `lab.cli.run_cli`.
        argv: arguments after the program's name; those of the process if left out, and then stop
            signals end the process in one line until its work is done.
    """
    if argv is None:
        gc.set_threshold(10_000)  # the usual 700 takes a tenth of the imports, which free nothing
    before = end_at_once(prog)
    try:
        from lab.cli import run_cli

        module = importlib.import_module(commands)
        return run_cli(prog, module.COMMANDS, argv, module.ABOUT)
    finally:
        for number, old in before.items():
            # Python resets its own handlers at its end, and a signal would then kill it.
            signal.signal(number, signal.SIG_IGN if argv is None else old)
