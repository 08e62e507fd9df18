"""Options that the commands of `guard-sim` share: settings from a file, a population, an arm."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import tyro

from guard_core import GuardConfig
from lab.cli import read_option, with_arm_options
from lab.rule_fit import DEFAULT_GUARD
from lab.settings import from_values, toml_values
from lab.trace.response import read_response
from sim.settings.config import READ_BY, SimConfig
from sim.settings.populations import NAMED

FLAT = tyro.conf.arg(name="")
"""The settings' names are options as they are."""

_MEASURED_EPOCHS = 12
"""Epochs of a run of the measured policy; those of the trainer's tiny task."""


def settings_of(argv: Sequence[str], base: SimConfig) -> SimConfig:
    """Returns the settings of the file, or else `base`, with those of the arm over them.

    Args:
        argv: the command line; `--config`, `--population`, `--response`, `--arm`, `--profile`
            and `--rule` are read.
        base: settings without a file; a named population or a response file changes its
            size.

    Raises:
        UserError: the file cannot be read, or a setting is unknown or wrong.
    """
    response = read_option(argv, "--response")
    if (path := read_option(argv, "--config")) is not None:
        values = with_arm_options(argv, toml_values(Path(path)))
        # The measured policy needs both, so the file's settings alone need not be complete.
        values |= _measured(argv)
        file = values.get("response")
        sizes = _sizes(file) if isinstance(file, str) else {}
        return from_values(sizes | values, SimConfig, path)
    changes = with_arm_options(argv, {} if response is None else _sizes(response))
    needs_policy = changes.keys() & READ_BY.keys()  # settings of the arm
    if needs_policy and (policy := read_option(argv, "--policy")) is not None:
        changes |= {"policy": policy, **_measured(argv)}
    if "guard" in changes:
        changes["guard"] = GuardConfig.from_dict(changes["guard"])
    elif "rule" in changes:
        changes["guard"] = DEFAULT_GUARD
    name = read_option(argv, "--population")
    if name in NAMED:
        law = NAMED[name]
        changes |= {"population": name, "n_problems": law.n_problems, "epochs": law.epochs}
    return replace(base, **changes)


def _measured(argv: Sequence[str]) -> dict[str, str | float]:
    """Response file and learning rate of the options, as far as they are given."""
    values: dict[str, str | float] = {}
    if (response := read_option(argv, "--response")) is not None:
        values["response"] = response
    if (lr := read_option(argv, "--lr")) is not None:
        with suppress(ValueError):
            values["lr"] = float(lr)
    return values


def _sizes(path: str) -> dict[str, int]:
    """Sizes of a run of the measured policy, and the trainer's epochs."""
    response = read_response(path)
    return {
        "n_problems": response.n_problems,
        "n_answers": response.n_answers,
        "epochs": _MEASURED_EPOCHS,
    }
