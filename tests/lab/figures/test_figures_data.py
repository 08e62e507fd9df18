import numpy as np
import pandas as pd
import pytest

from lab import figures
from lab.arm_settings import with_arm
from lab.base.arms import arm
from lab.base.stats import paired_table
from lab.figures.style import FATE_COLOURS, GREY, arm_style
from lab.figures.training import spread
from lab.measures import METRICS
from lab.measures.dynamics import dynamics as by_epoch
from lab.measures.fate import FATES, fates
from sim import SimConfig, simulate

EPOCHS = 8


@pytest.fixture
def dynamics():
    """Two arms of three replicates."""
    parts, config = [], SimConfig(epochs=EPOCHS, replicates=3, step=0.1)
    for name in ("guard", "ttrl"):
        trace = simulate(with_arm(config, arm(name)))
        table = by_epoch(trace.visits, trace.evals, fates(trace.visits))
        parts.append(table.assign(arm=name))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture
def metrics():
    """Three arms with four replicates; `matched` equals `ttrl` but for noise around zero."""
    rng = np.random.default_rng(5)
    arms = ["ttrl", "guard", "matched"]
    index = pd.MultiIndex.from_product([arms, range(4)], names=["arm", "replicate"])
    table = pd.DataFrame(100 * rng.dirichlet(np.ones(len(FATES)), 12), index, columns=list(FATES))
    noise = np.array([0.1, -0.1, 0.2, -0.2])
    table["pass_final"] = np.concatenate([[40.0] * 4, [60.0] * 4 + noise, [40.0] * 4 + noise])
    table["TotalDeg"] = table["Degraded"] + table["Marginal Degraded"]
    return table


def test_spread_leaves_nan_out(dynamics):
    values = spread(dynamics[dynamics["arm"] == "ttrl"], "flip_rate")
    assert list(values["progress"]) == [n / EPOCHS for n in range(1, EPOCHS + 1)]
    own = dynamics.query("arm == 'ttrl' and epoch == 2")["flip_rate"]
    assert values["mean"][1] == pytest.approx(own.mean())
    assert values["sd"][1] == pytest.approx(own.std(ddof=1)) and list(values["n"]) == [3] * EPOCHS


def test_progress_draws_means_in_percent(dynamics):
    figure = figures.training_progress(dynamics, {"guard": "<b>bold</b>"})
    assert "&lt;b&gt;bold&lt;/b&gt;" in {t.name for t in figure.data}
    titles = ["FR: labels that changed", "MR: votes that the label got", "pass@1"]
    assert [a.text for a in figure.layout.annotations] == [f"<b>{title}</b>" for title in titles]
    fr, mr, passed = (t for t in figure.data if t.name == "TTRL" and t.hoverinfo != "skip")
    assert list(fr.x) == [100 * n / EPOCHS for n in range(1, EPOCHS + 1)]
    own = dynamics[dynamics["arm"] == "ttrl"]
    np.testing.assert_allclose(mr.y, 100 * own.groupby("epoch")["match_rate"].mean())
    np.testing.assert_allclose(passed.y, 100 * own.groupby("epoch")["pass_at_1"].mean())


def test_an_arm_without_lost_problems_has_no_curve(dynamics):
    dynamics.loc[dynamics["arm"] == "guard", "correct_vote_rate_lost"] = np.nan
    assert {t.name for t in figures.lost_votes(dynamics).data} == {"TTRL"}


def test_fate_bars_sum_to_all_problems_and_hold_their_spread_for_print(metrics):
    metrics["L/D"] = metrics["Learned"] / metrics["Degraded"]
    metrics.loc["matched", "L/D"] = np.nan
    figure = figures.fate_bars(metrics)
    *bars, ratios = figure.data
    assert [t.name for t in bars] == list(FATE_COLOURS)
    np.testing.assert_allclose(np.sum([t.x for t in bars], axis=0), 100)
    degraded = next(t for t in bars if t.name == "Degraded")
    assert list(degraded.y) == ["TTRL", "TTRL-Guard", "TTRL at matched<br>effort"]
    own = metrics.loc["guard", "Degraded"]
    shown = (degraded.x[1], degraded.error_x.array[1])
    np.testing.assert_allclose(shown, (own.mean(), own.std()))
    assert degraded.marker.color == FATE_COLOURS["Degraded"]
    assert list(degraded.customdata[1]) == [f" ± {own.std():.2g}", 4]
    assert degraded.text[1] == f"{own.mean():.0f}<br>±{own.std():.1f}"
    assert figure.layout.uniformtext.mode == "hide"
    own = metrics.loc["guard", "L/D"]
    assert ratios.text[1] == f" L/D {own.mean():.2f}<br> ±{own.std():.2f}"
    assert "none" in ratios.text[2] and list(ratios.y) == list(degraded.y)
    metrics.loc["guard", list(FATES)] = np.nan
    known = figures.fate_bars(metrics.drop(columns="L/D")).data
    assert list(known[0].y) == ["TTRL", "TTRL at matched<br>effort"] and len(known) == len(bars)


def test_guard_action(dynamics):
    own = dynamics[dynamics["arm"] == "guard"]
    figure = figures.guard_action(own)
    drawn = [t for t in figure.data if t.hoverinfo != "skip"]
    expected = ["weight", "beta", "weighted_share", "minority_share", "skipped"]
    means = own.groupby("epoch")[expected].mean()
    for trace, column in zip(drawn, expected, strict=True):
        factor = 1 if column == "weight" else 100
        np.testing.assert_allclose(trace.y, factor * means[column].dropna())
    named = ["weight below 1", "a minority candidate", "left out (RCSU)"]
    assert [t.name for t in drawn if t.showlegend] == named
    without = figures.guard_action(own.assign(minority_share=np.nan))
    assert [t.name for t in without.data if t.showlegend] == [named[0], named[2]]


def test_paired_differences_grey_out_noise(metrics):
    chosen = [m for m in METRICS if m.name == "pass_final"]
    pairs = paired_table(metrics, "ttrl")
    figure = figures.paired_differences(pairs, chosen)
    guard, matched = figure.data
    assert guard.x[0] == pytest.approx(20)
    row = pairs[(pairs["arm"] == "guard") & (pairs["metric"] == "pass_final")].iloc[0]
    ends = (row["high"] - row["mean"], row["mean"] - row["low"])
    assert (guard.error_x.array[0], guard.error_x.arrayminus[0]) == pytest.approx(ends)
    assert guard.marker.color == arm_style("guard").colour
    assert matched.marker.color == GREY and matched.marker.symbol.endswith("-open")
    assert "within noise" in matched.customdata[0][1]
    assert figure.layout.xaxis.title.text == "points (right is better)"
    assert figure.layout.xaxis.zeroline and figure.layout.xaxis.rangemode == "tozero"
