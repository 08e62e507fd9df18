"""The page on the measured dynamics: its figures, its tables, and a small part made again."""

import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
PAGE, DATA = ROOT / "docs" / "dynamics.md", ROOT / "docs" / "data"


@pytest.fixture(scope="module")
def script(tool):
    def load(name):
        try:
            sys.path.insert(0, str(ROOT / "docs" / "tools"))
            return tool(name)
        except ImportError as why:
            pytest.skip(f"{name}: {why}")
        finally:
            sys.path.pop(0)

    return load


def test_every_claim_has_a_figure_that_its_table_gives(script):
    figures = script("dynamics_figures")
    page = PAGE.read_text(encoding="utf-8")
    for name, make in figures.FIGURES.items():
        assert f"(dynamics/{name}.svg)" in page and (figures.FOLDER / f"{name}.svg").exists()
        assert len(make().data) >= 2
    for table in DATA.glob("dynamics-*.csv"):
        assert f"(data/{table.name})" in page


def test_a_small_measurement_gives_the_stored_numbers(script):
    pytest.importorskip("torch")
    stored = pd.read_csv(DATA / "dynamics-small.csv").set_index("quantity").value
    again = script("dynamics").small().set_index("quantity").value
    assert list(again.index) == list(stored.index)
    assert again.to_numpy() == pytest.approx(stored.to_numpy(), rel=0.02, abs=0.02, nan_ok=True)
