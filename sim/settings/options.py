"""Options that the commands of `guard-sim` share: settings from a file, a population, a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import tyro

from guard_core import GuardConfig
from guard_core.rules import make_rule
from lab.arms import GUARD, arm, can_combine
from lab.cli import read_option
from lab.errors import UserError
from lab.settings import read_toml
from sim.settings.config import SimConfig
from sim.settings.populations import NAMED

FLAT = tyro.conf.arg(name="")
"""The settings' names are options as they are."""


def read_settings(argv: Sequence[str], base: SimConfig) -> SimConfig:
    """Settings of the file, else `base` with the size of the named population.

    Raises:
        UserError: the file cannot be read, or holds an unknown or wrong setting.
    """
    if (path := read_option(argv, "--config")) is not None:
        return _read(Path(path))
    name = read_option(argv, "--population")
    if name is None or name not in NAMED:
        return base
    law = NAMED[name]
    return replace(base, population=name, n_problems=law.n_problems, epochs=law.epochs)


def with_profile(argv: Sequence[str], settings: SimConfig) -> SimConfig:
    """The settings with the guard that --profile names."""
    profile = read_option(argv, "--profile")
    return settings if profile is None else replace(settings, guard=GuardConfig.profile(profile))


def with_rule(argv: Sequence[str], settings: SimConfig) -> SimConfig:
    """The settings with the rule that --rule names.

    Where nothing was said about the guard, a rule without a label to guard has none.
    """
    rule = read_option(argv, "--rule")
    if rule is None or rule == settings.rule:
        return settings
    make_rule(rule)
    said = [read_option(argv, flag) for flag in ("--profile", "--arm", "--config")]
    if any(word is not None for word in said) or can_combine(rule, GUARD):
        return replace(settings, rule=rule, rule_options={})
    return replace(settings, rule=rule, rule_options={}, guard=arm(rule).guard)


def _read(path: Path) -> SimConfig:
    try:
        return read_toml(path, SimConfig)
    except UserError as error:
        # A setting's own message does not know which file it came from.
        if str(path) in str(error):
            raise
        raise UserError(f"{path}: {error}") from error
