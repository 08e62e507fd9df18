import pandas as pd
import plotly.graph_objects as go
import pytest

from lab.base.errors import UserError
from lab.base.stats import estimate
from lab.figures.files import check_exporter, numbers
from lab.figures.style import points, wrapped
from lab.figures.training import training_progress


def test_names_are_those_of_the_tables_and_bars_have_their_spread():
    names = ["SCOPE + TTRL-Guard", "votes < 3 & ties", "TTRL-Guard (advantage_scale = batch)"]
    labels = [wrapped(name) for name in names]
    assert labels[:2] == ["SCOPE +<br>TTRL-Guard", "votes &lt; 3 &amp;<br>ties"]
    spread = {"array": [0.1, 0.2, 0.3], "arrayminus": [0.4, 0.5, 0.6]}
    bars = numbers(go.Figure(go.Bar(x=[1, 2, 3], y=labels, error_x=spread)))
    assert bars["y"].tolist() == names and bars["x"].tolist() == [1, 2, 3]
    assert bars["low"].tolist() == pytest.approx([0.6, 1.5, 2.4])
    assert bars["high"].tolist() == pytest.approx([1.1, 2.2, 3.3])


def test_a_single_replicate_has_no_spread_in_a_file():
    rows = numbers(go.Figure(points("ttrl", [0.1, 0.2], [estimate(pd.Series([3.0]))] * 2, "%")))
    assert rows["y"].tolist() == [3, 3] and rows[["low", "high"]].isna().all(axis=None)


def test_curves_have_their_band_and_cells_their_value():
    epochs = {"epoch": [0, 1, 0, 1], "progress": [0, 1, 0, 1], "replicate": [0, 0, 1, 1]}
    scores = {name: [0.2, 0.4, 0.4, 0.8] for name in ("flip_rate", "match_rate", "pass_at_1")}
    rows = numbers(training_progress(pd.DataFrame(epochs | scores | {"arm": "ttrl"})))
    row = rows[(rows["panel"] == "pass@1") & (rows["x"] == 100)].iloc[0]
    expected = [60 - 20 * 2**0.5, 60, 60 + 20 * 2**0.5]
    assert row[["low", "y", "high"]].tolist() == pytest.approx(expected)
    assert len(rows) == 6 and set(rows["curve"]) == {"TTRL"}
    heat = numbers(go.Figure(go.Heatmap(x=["a<br>b"], y=["c"], z=[[1.5]])))
    assert heat[["x", "y", "value"]].values.tolist() == [["a b", "c", 1.5]]


def test_figures_without_the_package_that_draws_them(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"kaleido not installed; install with .*\[png\]"):
        check_exporter()
