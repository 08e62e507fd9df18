"""Settings of both worlds: every number has a bound."""

from dataclasses import fields

import pytest

from guard_core import GuardConfig
from real.settings.config import FieldMap, TrainConfig
from sim.settings.config import SimConfig

CONFIGS = (GuardConfig, SimConfig, TrainConfig, FieldMap)


@pytest.mark.parametrize("config", CONFIGS)
def test_every_number_has_a_bound(config):
    unbounded = ("int", "float", "int | None", "float | None")
    assert [field.name for field in fields(config) if field.type in unbounded] == []
