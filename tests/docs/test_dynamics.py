"""The page on the measured dynamics: its figures, its tables, and a small part made again."""

from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
PAGE, DATA = ROOT / "docs" / "dynamics.md", ROOT / "docs" / "data"


@pytest.fixture
def script(tool, monkeypatch):
    """As `tool`, for scripts that import each other."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "tools"))
    return tool


def test_every_claim_has_a_figure_that_its_table_gives(script):
    pytest.importorskip("kaleido")
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
