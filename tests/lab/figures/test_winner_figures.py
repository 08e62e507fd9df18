"""The chart of winners and the gains over a setting draw what their tables hold."""

import math

import numpy as np
import pandas as pd
import pytest

from lab.figures.settings import arm_scores
from lab.figures.style import arm_style, translucent
from lab.figures.winners import MOST_PANELS, winner_chart

NAN = math.nan
COLUMNS = (
    *("coupling", "transfer", "step", "winner", "score", "ties", "runner_up"),
    *("margin", "low", "high", "n", "ceiling"),
)


def cell(coupling, transfer, step, winner, ties="", score=60.0):
    return [coupling, transfer, step, winner, score, ties, "matched", 1.5, 0.5, 2.5, 10, 90.0]


@pytest.fixture
def table():
    rows = [
        cell(c, t, s, "frozen" if t == 0 else "ttrl", "guard,memory" if s == 0.1 else "")
        for c in (0.0, 0.2)
        for t in (0.0, 0.4)
        for s in (0.01, 0.1, NAN)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


@pytest.fixture
def chart(table):
    return winner_chart(table, "step", "coupling", ["transfer"])


def test_one_cell_per_setting_in_the_winners_colour(chart):
    frozen, ttrl = chart.data
    assert (frozen.name, ttrl.name) == ("Frozen labels", "TTRL")
    assert [len(bars.x) for bars in chart.data] == [6, 6]
    colour = arm_style("frozen").colour
    assert set(frozen.marker.color) == {translucent(colour, 0.9), translucent(colour, 0.3)}
    assert frozen.marker.line.color == colour
    middle = [base + height / 2 for base, height in zip(frozen.base, frozen.y, strict=True)]
    assert sorted(set(middle)) == pytest.approx([0, 1])
    assert [a.text for a in chart.layout.annotations] == [
        "<b>transfer 0</b>",
        "<b>transfer 0.4</b>",
    ]


def test_ties_are_pale_hatched_and_counted(chart):
    frozen = chart.data[0]
    at = dict(
        zip(frozen.x, zip(frozen.marker.pattern.shape, frozen.text, strict=True), strict=True)
    )
    assert at[0] == ("", "60") and at[1] == ("/", "60 =2")
    assert len({*frozen.marker.color}) == 2


def test_own_best_stands_apart(chart):
    places = sorted(set(chart.data[0].x))
    assert places[1] - places[0] == 1 and places[2] - places[1] > 1.2
    assert list(chart.layout.xaxis.ticktext) == ["0.01", "0.1", "own<br>best"]
    assert list(chart.layout.yaxis.ticktext) == ["0", "0.2"]
    assert chart.layout.yaxis.title.text == "coupling" and chart.layout.xaxis2.title.text == "step"


def test_the_hover_names_runner_up_margin_and_ties(chart):
    texts = [row[0] for row in chart.data[0].customdata]
    alone, tied, best = texts[:3]
    assert "step 0.01, coupling 0" in alone and "<b>Frozen labels</b> 60.0 %" in alone
    assert "+1.5 points [+0.5, +2.5] over TTRL at matched effort, beyond noise (10 pairs)" in alone
    assert "within noise: a tie" in tied and "tied with TTRL-Guard, Vote memory" in tied
    assert "step: own best" in best and "true labels 90.0 %" in best


def test_one_line_and_one_chart(table):
    chart = winner_chart(table.iloc[:2], "step")
    assert list(chart.data[0].base) == [-0.47, -0.47]
    assert not chart.layout.annotations and chart.layout.yaxis.title.text is None


def test_every_arm_is_once_in_the_legend_in_the_usual_order(table):
    table.loc[0, "winner"] = "ttrl"
    chart = winner_chart(table, "step", "coupling", ["transfer"])
    shown = [(t.legendrank, t.name) for t in chart.data if t.showlegend]
    assert [name for _, name in sorted(shown)] == ["TTRL", "Frozen labels"]
    assert len(chart.data) == 3


def test_cells_without_a_winner_stay_empty_and_too_many_charts_are_refused(table):
    table.loc[table["step"] == 0.1, "winner"] = ""
    drawn = winner_chart(table, "step", "coupling", ["transfer"])
    assert {x for bars in drawn.data for x in bars.x} == {0.0, 2.35}
    many = pd.concat([table.assign(transfer=float(t)) for t in range(MOST_PANELS + 1)])
    with pytest.raises(ValueError, match="25 small charts"):
        winner_chart(many, "step", "coupling", ["transfer"])


@pytest.fixture
def scores():
    rows = [
        [c, t, arm, 50 + gain, gain, gain - 1, gain + 1, 10, "0.1", ""]
        for c in (0.0, 0.2)
        for t in (0.0, 0.012, 0.4)
        for arm, gain in (("truth", 40 * t), ("frozen", 3.0), ("ttrl", 10 * t))
    ]
    names = ["coupling", "transfer", "arm", "score", "gain", "low", "high", "n", "best", "edge"]
    return pd.DataFrame(rows, columns=names)


def test_gains_over_a_setting_with_bands(scores):
    figure = arm_scores(scores, "transfer", "coupling", hidden=["truth"])
    drawn = [t for t in figure.data if t.fill != "toself"]
    assert [t.name for t in drawn] == ["TTRL", "Frozen labels", "True labels (ceiling)"] * 2
    assert [t.showlegend for t in drawn] == [True] * 3 + [False] * 3
    ttrl = drawn[0]
    # Equally spaced, though the values are not.
    assert list(ttrl.x) == [0, 1, 2]
    np.testing.assert_allclose(ttrl.y, [0, 0.12, 4])
    assert list(figure.layout.xaxis.ticktext) == ["0", "0.012", "0.4"]
    bands = [t for t in figure.data if t.fill == "toself"]
    np.testing.assert_allclose(bands[0].y[:3], ttrl.y + 1)
    assert ttrl.customdata[2] == [
        "0.4",
        " [+3.0, +5.0] over 10 replicates<br>final pass@1 54.0 %<br>at step 0.1",
    ]
    hidden = {t.visible for t in figure.data if t.legendgroup == "truth"}
    assert hidden == {"legendonly"}
    assert figure.layout.yaxis.title.text == "points of pass@1 gained"


def test_one_replicate_has_no_band(scores):
    scores[["low", "high"]] = NAN
    figure = arm_scores(scores[scores["coupling"] == 0], "transfer")
    assert len(figure.data) == 3 and figure.data[0].customdata[0][1].startswith("<br>final")
    assert not figure.layout.annotations
