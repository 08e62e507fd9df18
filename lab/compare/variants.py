"""Runs of one arm under several guard settings, named as arms of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from guard_core import GuardConfig
from lab.arms import GUARD
from lab.settings import to_values
from lab.trace.manifest import Manifest

_CUSTOM = "custom"


def arm_names(runs: Sequence[Manifest]) -> list[str]:
    """Name of each run's arm, with the guard settings in which runs of that arm differ.

    Args:
        runs: of one comparison.

    Returns:
        One name per run: `guard` where all runs of the arm agree or where all that differs is at
        its default, else for example `guard (W=3)`.
    """
    bases = base_arms(runs)
    by_arm: dict[str, list[Mapping[str, Any]]] = {}
    for base, run in zip(bases, runs, strict=True):
        by_arm.setdefault(base, []).append(guard_settings(run))
    differing = {arm: _differing(own) for arm, own in by_arm.items()}
    return [_name(base, run, differing[base]) for base, run in zip(bases, runs, strict=True)]


def base_arms(runs: Sequence[Manifest]) -> list[str]:
    """The arm that each run is with other guard settings: its own.

    The simulator calls a guard with other settings `custom`; in a comparison that also has the
    guard itself, it counts as the guard with other settings.

    Args:
        runs: of one comparison.
    """
    guarded = any(run.arm == GUARD and guard_settings(run) for run in runs)
    return [
        GUARD if guarded and run.arm == _CUSTOM and guard_settings(run) else run.arm for run in runs
    ]


def guard_settings(run: Manifest) -> Mapping[str, Any]:
    """The guard's settings that a run noted; empty if none."""
    guard = run.config.get("guard")
    return guard if isinstance(guard, dict) else {}


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Settings that all runs noted and in which they differ."""
    shared = [key for key in settings[0] if all(key in own for own in settings)]
    return [key for key in shared if any(own[key] != settings[0][key] for own in settings)]


def _name(base: str, run: Manifest, differing: Sequence[str]) -> str:
    own, defaults = guard_settings(run), to_values(GuardConfig.paper())
    if all(key in defaults and own[key] == defaults[key] for key in differing):
        return base
    return f"{base} ({', '.join(f'{key}={own[key]}' for key in differing)})"
