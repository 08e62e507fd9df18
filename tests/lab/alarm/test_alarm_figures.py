"""The alarm's figures draw what their tables hold."""

import numpy as np
import pytest

from lab.alarm.risk import SCORES
from lab.alarm.roc import roc_table
from lab.alarm.table import alarm_table
from lab.figures.alarm import SCORE_TITLES, auroc_curves, roc_curves


def lines(figure):
    return {t.name: t for t in figure.data if t.name and t.name != "chance"}


def test_every_score_has_a_title():
    assert set(SCORE_TITLES) == set(SCORES)


def test_auroc_over_visits_with_its_band(world):
    table = alarm_table(*world, np.random.default_rng(0), (1, 4, 9), n_resamples=50)
    figure = auroc_curves(table)
    drawn = lines(figure)
    assert list(drawn) == ["Alarm", "MR alone", "FR alone"]
    own = table[table["score"] == "mr"]
    assert list(drawn["MR alone"].x) == [1, 4, 9]
    np.testing.assert_allclose(drawn["MR alone"].y, own["auroc"])
    bands = [t for t in figure.data if t.fill == "toself"]
    assert len(bands) == 3
    high, low = np.split(np.asarray(bands[1].y), 2)
    np.testing.assert_allclose(high, own["high"])
    np.testing.assert_allclose(low[::-1], own["low"])
    chance = next(t for t in figure.data if t.name == "chance")
    assert set(chance.y) == {0.5}
    assert list(drawn["MR alone"].customdata[0][2:]) == [
        own["n_lost"].iloc[0],
        own["n_kept"].iloc[0],
    ]
    assert len(lines(auroc_curves(table, SCORES))) == len(SCORES)


def test_roc_curves(world):
    table = roc_table(*world, np.random.default_rng(0), 4, n_resamples=50)
    drawn = lines(roc_curves(table))
    own = table[table["score"] == "alarm"]
    np.testing.assert_allclose(drawn["Alarm"].x, own["fpr"])
    np.testing.assert_allclose(drawn["Alarm"].y, own["tpr"])
    assert (
        len({t.line.color for t in drawn.values()})
        == len({t.line.dash for t in drawn.values()})
        == 3
    )
    assert roc_curves(table).layout.xaxis.title.text == "kept problems alarmed at (share)"


def test_undefined_scores_are_not_drawn_as_numbers(world):
    table = alarm_table(*world, np.random.default_rng(0), (1,), n_resamples=50)
    table[["auroc", "low", "high"]] = np.nan
    figure = auroc_curves(table)
    assert not [t for t in figure.data if t.fill == "toself"]
    assert np.isnan(lines(figure)["Alarm"].y).all()


@pytest.mark.parametrize("draw", [auroc_curves, roc_curves])
def test_one_look(world, draw):
    table = (
        alarm_table(*world, np.random.default_rng(0), (1,), n_resamples=20)
        if draw is auroc_curves
        else roc_table(*world, np.random.default_rng(0), 1, n_resamples=20)
    )
    assert draw(table).layout.template.layout.plot_bgcolor == "rgba(0,0,0,0)"
