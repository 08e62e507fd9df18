"""Runs of one arm under several settings of guard, rule or labels, named as arms of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from guard_core import GuardConfig
from guard_core.rules import RULES
from lab.arms import BASELINE, CUSTOM, GUARD, matched_target
from lab.settings import to_values
from lab.trace.manifest import Manifest


def arm_names(runs: Sequence[Manifest]) -> list[str]:
    """Name of each run's arm, with the settings of guard, rule and labels in which its runs differ.

    Args:
        runs: of one comparison.

    Returns:
        One name per run: `guard` where all runs of the arm agree or where all that differs is at
        its default, else for example `guard (W=3)` or `srt (keep=0.5)`.
    """
    bases = base_arms(runs)
    by_arm: dict[str, list[Mapping[str, Any]]] = {}
    for base, run in zip(bases, runs, strict=True):
        by_arm.setdefault(base, []).append(_settings(run))
    differing = {arm: _differing(own) for arm, own in by_arm.items()}
    return [_name(base, run, differing[base]) for base, run in zip(bases, runs, strict=True)]


def base_arms(runs: Sequence[Manifest]) -> list[str]:
    """The arm that each run is with other guard settings: its own.

    A guard with settings that no arm has is called `custom`, under a rule `RULE+custom`; in a
    comparison that also has the guard itself, it counts as the guard with other settings.

    Args:
        runs: of one comparison.
    """
    guarded = {run.arm for run in runs if guard_settings(run)}
    return [_base(run, guarded) for run in runs]


def guard_settings(run: Manifest) -> Mapping[str, Any]:
    """The guard's settings that a run noted; empty if none."""
    guard = run.config.get("guard")
    return guard if isinstance(guard, dict) else {}


def _base(run: Manifest, guarded: set[str]) -> str:
    rule = _rule(run)
    prefix = "" if rule == BASELINE else f"{rule}+"
    is_variant = run.arm == f"{prefix}{CUSTOM}" and f"{prefix}{GUARD}" in guarded
    return f"{prefix}{GUARD}" if is_variant and guard_settings(run) else run.arm


def _settings(run: Manifest) -> Mapping[str, Any]:
    """Every setting of the run that can make it another arm."""
    names = ("labels", "kl_coef", "average", *(() if matched_target(run.arm) else ("step_factor",)))
    others = {name: run.config[name] for name in names if name in run.config}
    return {**guard_settings(run), **_rule_settings(run), **others}


def _rule(run: Manifest) -> str:
    """Name of the rule that a run noted."""
    return str(run.config.get("rule", BASELINE))


def _rule_settings(run: Manifest) -> Mapping[str, Any]:
    """Every setting of the run's rule: the options that it noted over the rule's defaults."""
    options = run.config.get("rule_options")
    return {**_rule_defaults(run), **(options if isinstance(options, dict) else {})}


def _rule_defaults(run: Manifest) -> Mapping[str, Any]:
    rule = RULES.get(_rule(run))
    return {} if rule is None else {field.name: field.default for field in fields(rule)}


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Settings that all runs noted and in which they differ."""
    shared = [key for key in settings[0] if all(key in own for own in settings)]
    return [key for key in shared if any(own[key] != settings[0][key] for own in settings)]


def _name(base: str, run: Manifest, differing: Sequence[str]) -> str:
    own = _settings(run)
    defaults = {**to_values(GuardConfig.paper()), **_rule_defaults(run)}
    defaults |= {"labels": "votes", "kl_coef": 0.0, "average": 0.0, "step_factor": 1.0}
    if all(key in defaults and own[key] == defaults[key] for key in differing):
        return base
    return f"{base} ({', '.join(f'{key}={own[key]}' for key in differing)})"
