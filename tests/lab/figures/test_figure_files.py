import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from lab.base.errors import UserError
from lab.base.stats import estimate, paired_table
from lab.figures.files import check_exporter, numbers
from lab.figures.outcomes import fate_bars, paired_differences
from lab.figures.style import points, wrapped
from lab.figures.training import training_progress
from lab.measures import BY_NAME
from lab.measures.fate import FATES


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    index = pd.MultiIndex.from_product([["ttrl", "guard"], range(4)], names=["arm", "replicate"])
    columns = [*FATES, "pass_final", "TotalDeg", "L/D"]
    return pd.DataFrame(rng.random((8, len(columns))), index, columns)


def test_bars_have_their_spread_and_differences_their_interval(table):
    bars = numbers(fate_bars(table))
    row = bars[(bars["curve"] == "Degraded") & (bars["y"] == "TTRL")].iloc[0]
    own = table.loc["ttrl", "Degraded"]
    spread = own.mean() + own.std() * np.array([-1, 0, 1])
    assert row[["low", "x", "high"]].tolist() == pytest.approx(spread.tolist())
    pairs = paired_table(table, "ttrl")
    metrics = [BY_NAME["pass_final"], BY_NAME["TotalDeg"]]
    dots = numbers(paired_differences(pairs, metrics)).set_index("panel")
    for metric in metrics:
        expected = pairs[pairs["metric"] == metric.name][["low", "mean", "high"]]
        found = dots.loc[metric.title, ["low", "x", "high"]].tolist()
        assert found == pytest.approx(expected.iloc[0].tolist())


def test_names_are_those_of_the_tables():
    names = ["SCOPE + TTRL-Guard", "votes < 3 & ties", "TTRL-Guard (advantage_scale = batch)"]
    labels = [wrapped(name) for name in names]
    assert labels[:2] == ["SCOPE +<br>TTRL-Guard", "votes &lt; 3 &amp;<br>ties"]
    bars = go.Bar(x=[1, 2, 3], y=labels, error_x={"array": [0.1] * 3})
    assert numbers(go.Figure(bars))["y"].tolist() == names


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
