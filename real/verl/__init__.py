"""TTRL-Guard in verl's PPO trainer on Ray: a plugin of verl, and the commands of `guard-verl`."""

from __future__ import annotations

from functools import partial

from lab.entry import enter

main = partial(enter, "guard-verl", "real.verl.commands", "verl")
"""Run `guard-verl`; returns the exit code."""
