"""TTRL-Guard in verl's PPO trainer on Ray: a plugin of verl, and the commands of `guard-verl`."""

from __future__ import annotations

from collections.abc import Sequence

from lab.entry import enter


def main(argv: Sequence[str] | None = None) -> int:
    """Run `guard-verl`; returns the exit code."""
    return enter("guard-verl", "real.verl.commands", "verl", argv)
