"""What the options of `guard-train` start from: a preset, a file, a rule. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from guard_core import GuardConfig
from guard_core.rules import RULES
from lab.arms import BASELINE, arm
from lab.cli import read_option
from lab.settings import from_values, toml_values
from real.settings.config import TrainConfig
from real.settings.presets import preset_config


def guard_of_rule(rule: str | None) -> GuardConfig:
    """The guard when a rule is all that was asked for: none where it has nothing to work on."""
    kind = RULES.get(rule or BASELINE)
    if kind is None or (kind.has_label and kind.loss == "rewards"):
        return GuardConfig.paper()
    return arm(kind.name).guard


def settings_of(argv: Sequence[str]) -> TrainConfig:
    """The preset's settings, the file's over them.

    Args:
        argv: the command line; `--config`, `--preset`, and what other settings are checked
            against are read: `--model`, `--problems`, `--tiny-verifies`.

    Raises:
        UserError: a file cannot be read, or a setting is wrong.
    """
    path, name = read_option(argv, "--config"), read_option(argv, "--preset")
    values = {} if path is None else toml_values(Path(path))
    # Here already, since problems without a model are refused, and arms without a judge.
    for setting in ("model", "problems"):
        given = read_option(argv, f"--{setting}")
        if given is not None:
            values[setting] = given
    if "--tiny-verifies" in argv:
        values["tiny_verifies"] = True
    if name is not None:
        return preset_config(name, values)
    return from_values(values, TrainConfig, path or "options")
