"""The page of the protocol, its numbers, and the data of the choosing steps agree."""

import tomllib
from pathlib import Path

import pandas as pd
import pytest

from sim.studies.search.space import LRS

DOCS = Path(__file__).parents[2] / "docs"
PROTOCOL = tomllib.loads((DOCS / "data" / "protocol.toml").read_text())
TABLES = sorted((DOCS / "data").glob("choice-*.csv"))


def test_nothing_is_both_chosen_on_and_held_out():
    chosen, held_out = PROTOCOL["chosen"], PROTOCOL["held_out"]
    assert chosen.keys() == held_out.keys() == {"problem_seeds", "seeds", "lrs"}
    assert not any(set(chosen[name]) & set(held_out[name]) for name in chosen)
    assert tuple(chosen["lrs"]) == LRS


def test_the_page_has_the_numbers():
    text = (DOCS / "protocol.md").read_text()
    held_out = PROTOCOL["held_out"]
    seeds = held_out["seeds"]
    assert f"| 0 to 4 | {seeds[0]} to {seeds[-1]} |" in text
    assert f"| 0 | {', '.join(map(str, held_out['problem_seeds']))} |" in text
    assert "| 5e-5, 1e-4, 2e-4, 3e-4, 5e-4 | 1.5e-4 |" in text


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_choosing_steps_read_no_held_out_data(path):
    table, chosen = pd.read_csv(path), PROTOCOL["chosen"]
    names = {"problem_seed": "problem_seeds", "seed": "seeds", "lr": "lrs"}
    for column, name in names.items():
        assert len(table) and set(table[column]) <= set(chosen[name])
        assert not set(table[column]) & set(PROTOCOL["held_out"][name])
