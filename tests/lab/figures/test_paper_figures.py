import numpy as np
import pandas as pd
import pytest

from lab import fates
from lab.figures.problems import scissor_panels
from lab.figures.training import WINDOW_TITLE, training_window
from lab.measures.dynamics import dynamics, run_windows, window_share, window_width
from lab.measures.problems import scissor

EPOCHS, PROBLEMS = 9, 12
ARMS = ("ttrl", "guard")


def grown(make_trace, arm, replicates, world):
    """Problems that rise, fall or stay, with flips that peak early."""
    rng = np.random.default_rng([replicates, ARMS.index(arm)])
    start = (np.arange(PROBLEMS)[:, None] + rng.random((replicates, PROBLEMS, 1))) / PROBLEMS
    end = np.where(start > 0.4, 1.0, 0.0) if arm == "guard" else np.where(start > 0.7, 1.0, 0.0)
    share = np.clip((np.arange(EPOCHS + 1) - 3) / 3, 0, 1)
    accuracy = np.round(64 * (start + (end - start) * share)) / 64
    scores = np.linspace(0.5, 0.7 if arm == "guard" else 0.3, EPOCHS + 1) * np.ones((replicates, 1))
    trace = make_trace(arm, accuracy, scores, world=world, seeds=list(range(replicates)))
    rate = np.array([0, 0.3, 0.8, 0.6, 0.2, 0.1, 0, 0, 0, 0])
    flipped = rng.random(accuracy.shape) < rate
    match = np.maximum(accuracy, 1 - accuracy)
    trace.visits = trace.visits.assign(flipped=flipped.ravel(), match_rate=match.ravel())
    return trace


@pytest.fixture(params=["sim", "real"])
def traces(request, make_trace):
    """Two arms; the simulator with three replicates, the real-like run with one."""
    replicates = 3 if request.param == "sim" else 1
    return {arm: grown(make_trace, arm, replicates, request.param) for arm in ARMS}


def stacked(traces, function):
    return pd.concat([function(trace).assign(arm=arm) for arm, trace in traces.items()])


@pytest.fixture
def moved(traces):
    return stacked(traces, lambda trace: dynamics(trace.visits, trace.evals))


def test_the_window_is_shaded_where_the_runs_are_in_it(moved):
    parts = [own for _, own in moved.groupby("arm", sort=False)]
    windows = [window_share(own, run_windows(own)).assign(arm=own["arm"].iloc[0]) for own in parts]
    shares = pd.concat(windows)
    figure = training_window(moved, shares)
    shades = [t for t in figure.data if t.name == WINDOW_TITLE]
    assert [t.showlegend for t in shades] == [True, False]
    for arm, shade in zip(ARMS, shades, strict=True):
        own = shares[shares["arm"] == arm]
        np.testing.assert_allclose(shade.y, 100 * own["share"])
        np.testing.assert_allclose(shade.x, 100 * own["progress"])
        assert shade.fill == "tozeroy" and max(shade.y) == 100
    lines = [t for t in figure.data if t.hoverinfo != "skip" and t.name != WINDOW_TITLE]
    assert [t.name for t in lines if t.showlegend] == ["FR", "MR", "pass@1"]
    own = moved[moved["arm"] == "ttrl"].groupby("epoch")["flip_rate"].mean().dropna()
    np.testing.assert_allclose(lines[0].y, 100 * own)
    assert figure.layout.yaxis.title.text == "%"


def test_scissor_panels(traces):
    thirds = stacked(traces, lambda trace: scissor(trace.visits, fates(trace.visits)))
    widths = stacked(traces, lambda trace: window_width(trace.visits, fates(trace.visits)))
    figure = scissor_panels(thirds, widths)
    own = thirds[thirds["arm"] == "ttrl"]
    first = [t for t in figure.data if t.legendgroup == "ttrl"]
    drawn = {"below_half": 100, "survival": 100, "wins": 1}
    for trace, (column, factor) in zip(first[:3], drawn.items(), strict=True):
        expected = own.groupby("third")[column].mean()
        np.testing.assert_allclose(np.array(trace.y, float), factor * expected)
    width = widths[widths["arm"] == "ttrl"]["window"]
    assert first[3].y[0] == pytest.approx(100 * width.mean())
    assert [a.text[3] for a in figure.layout.annotations] == list("abcd")
    expected = own.groupby("third")["survival"].std()
    np.testing.assert_allclose(first[1].error_y.array, expected * 100)
    assert (expected.max() > 0) == (own["replicate"].nunique() > 1)
