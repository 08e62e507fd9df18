from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lab import fates
from lab.arm_settings import with_arm
from lab.base.arms import arm
from lab.figures.problems import scissor_panels
from lab.figures.training import WINDOW_TITLE, training_window
from lab.measures.dynamics import dynamics, run_windows, window_share, window_width
from lab.measures.problems import scissor
from sim import SimConfig, simulate

ARMS = ("ttrl", "guard")
CONFIG = SimConfig(epochs=12, seed=3)


@pytest.fixture(params=[3, 1])
def traces(request):
    """Two arms of three replicates or of one."""
    config = replace(CONFIG, replicates=request.param)
    return {name: simulate(with_arm(config, arm(name))) for name in ARMS}


def stacked(traces, function):
    return pd.concat([function(trace).assign(arm=name) for name, trace in traces.items()])


def test_the_window_is_shaded_where_the_runs_are_in_it(traces):
    moved = stacked(traces, lambda trace: dynamics(trace.visits, trace.evals))
    parts = [own for _, own in moved.groupby("arm", sort=False)]
    windows = [window_share(own, run_windows(own)).assign(arm=own["arm"].iloc[0]) for own in parts]
    shares = pd.concat(windows)
    figure = training_window(moved, shares)
    shades = [t for t in figure.data if t.name == WINDOW_TITLE]
    assert [t.showlegend for t in shades] == [True, False]
    for name, shade in zip(ARMS, shades, strict=True):
        own = shares[shares["arm"] == name]
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
