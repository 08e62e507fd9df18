"""Settings of both worlds: every number has a bound, and the page of settings lists all of them."""

from dataclasses import fields
from pathlib import Path

import pytest

from guard_core import GuardConfig
from real.settings.config import TrainConfig
from real.settings.fields import FieldMap
from sim.settings.config import SimConfig

DOCS = Path(__file__).parents[2] / "docs"
CONFIGS = (GuardConfig, SimConfig, TrainConfig, FieldMap)


@pytest.fixture
def hook(tool):
    return tool("settings_page")


@pytest.mark.parametrize("config", CONFIGS)
def test_every_number_has_a_bound(config):
    unbounded = ("int", "float", "int | None", "float | None")
    assert [field.name for field in fields(config) if field.type in unbounded] == []


@pytest.mark.parametrize("config", CONFIGS)
def test_every_setting_is_listed_with_its_meaning(config, hook):
    page = hook.on_page_markdown((DOCS / "settings.md").read_text(encoding="utf-8"))
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    cells = {row[0]: row for row in rows if len(row) == 4}
    for field in fields(config):
        row = cells[f"| `{field.name}`"]
        assert len(row[1]) > 2 and len(row[3]) > 10, field.name


def test_types_and_bounds_are_words(hook):
    table = hook.settings_table(GuardConfig)
    assert "| `W` | int in [1, 10000] | `5` | History window in visits. |" in table
    assert "| `skip_by` | `drop`, `mask` | `'drop'` |" in table
    sim = hook.settings_table(SimConfig)
    assert "| `max_grad_norm` | float in (0, inf) or none | none |" in sim
