"""Options that the commands of `guard-sim` share: settings from a file, a population, an arm."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from lab.base.settings import from_values, toml_values
from lab.cli import read_option, with_arm_options
from sim.settings.config import SimConfig
from sim.settings.populations import NAMED

Classical = Literal["independent", "attractor"]
Objective = Literal["mean", "minimum"]
Preset = Literal["sensitivity", "tau_FR", "W", "beta_max", "rules"]

SEARCH_ARMS = ("ttrl", "guard", "frs", "rcsu", "frozen", "memory", "memory_guard")
"""Sources of labels, strengths and skipping, as arms."""
SEARCH_LRS = (5e-5, 1e-4, 2e-4, 3e-4, 5e-4)
"""Learning rates that a candidate of a search is judged over."""


def settings_of(argv: Sequence[str], has_arms: bool = False, **base: Any) -> SimConfig:
    """Returns the settings of the file, or else `base`, with those of the options over them.

    Options are read here as far as they decide the values of others: `--population`, `--policy`
    with `--response` and `--lr`, and those of `lab.cli.with_arm_options`.

    Args:
        has_arms: the file may list arms, which `lab.cli.arms_of` reads.

    Raises:
        UserError: the file cannot be read, or a setting is unknown or wrong.
    """
    path = read_option(argv, "--config")
    values = base if path is None else toml_values(Path(path))
    values = {name: values[name] for name in values if name != "arms" or not has_arms}
    usual = values.get("population", SimConfig.__dataclass_fields__["population"].default)
    values = with_arm_options(argv, values, read_option(argv, "--population") or usual)
    return from_values(values | _problems(argv), SimConfig, path or "")


def _problems(argv: Sequence[str]) -> dict[str, str | float]:
    """The options that decide how many problems there are, as far as they are given."""
    values: dict[str, str | float] = {}
    if (population := read_option(argv, "--population")) in NAMED:
        values["population"] = population
    if read_option(argv, "--policy") == "measured":
        values["policy"] = "measured"
    if (response := read_option(argv, "--response")) is not None:
        values["response"] = response
    if (lr := read_option(argv, "--lr")) is not None:
        with suppress(ValueError):
            values["lr"] = float(lr)
    return values
