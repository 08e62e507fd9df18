"""Roles of settings, which stand in their types, and the names of settings by role.

    lr: Annotated[Positive, Role.ARM] = 3e-4

A setting without a role decides what is trained: runs that differ in it are not compared, a run
goes on with the same value, and a simulation has it only if the simulator reads it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, get_type_hints

from lab.base.settings import default_of


class Role(StrEnum):
    """What a setting decides, other than what is trained."""

    ARM = "arm"
    """Differs between the arms, step sizes and seeds of one comparison."""
    OPERATIONAL = "operational"
    """Where and how work is done; may change when a run goes on, and changes rounding at most."""
    RECORD = "record"
    """What is kept of a run."""
    SOURCE = "source"
    """Path of something whose content is compared; may change when a run goes on."""
    MEASURED = "measured"
    """Model, problems and responses: what a measurement of the start model stands for."""
    UNSIMULATED = "unsimulated"
    """Cost, precision, evaluations and random numbers, which no simulation of the run needs."""


Roles = Mapping[str, list[str]]
"""Names of a run's settings by role, and under `DEFAULT` those that have their default values."""
DEFAULT = "default"
NOT_COMPARED = (Role.ARM, Role.OPERATIONAL, Role.RECORD)
CHANGEABLE = (Role.OPERATIONAL, Role.SOURCE)
NOT_SIMULATED = (Role.OPERATIONAL, Role.RECORD, Role.SOURCE, Role.MEASURED, Role.UNSIMULATED)


def roles_of(config: Any) -> dict[str, list[str]]:
    """Return the names of a record's settings by role, and those with their default values."""
    hints = get_type_hints(type(config), include_extras=True)
    names: dict[str, list[str]] = {role: [] for role in (*Role, DEFAULT)}
    for setting in dataclasses.fields(config):
        for mark in getattr(hints[setting.name], "__metadata__", ()):
            if isinstance(mark, Role):
                names[mark].append(setting.name)
        if getattr(config, setting.name) == default_of(setting):
            names[DEFAULT].append(setting.name)
    return names


def having(roles: Roles, *wanted: str) -> set[str]:
    """Return the names of the settings that have one of some roles."""
    return {name for role in wanted for name in roles.get(role, ())}
