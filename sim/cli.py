"""The entry point of `guard-sim`; its commands stand in `sim.commands`."""

from __future__ import annotations

from functools import partial

from lab.entry import enter

main = partial(enter, "guard-sim", "sim.commands", "sim")
"""Run `guard-sim`; returns the exit code."""
