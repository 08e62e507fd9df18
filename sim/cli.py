"""The entry point of `guard-sim`; its commands stand in `sim.commands`."""

from __future__ import annotations

from collections.abc import Sequence

from lab.entry import enter


def main(argv: Sequence[str] | None = None) -> int:
    """Run `guard-sim`; returns the exit code."""
    return enter("guard-sim", "sim.commands", "sim", argv)
