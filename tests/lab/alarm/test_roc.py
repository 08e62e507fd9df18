"""ROC curves: corners by hand, area equal to the AUROC."""

import numpy as np
import pytest

from lab.alarm.roc import roc_points, roc_table
from lab.alarm.table import SCORES, alarm_table
from lab.measures.fate import fates


def test_corners_by_hand():
    fpr, tpr = roc_points(np.array([3.0, 2.0, 2.0, 1.0, 0.0]), np.array([1, 0, 1, 0, 0], bool))
    assert fpr.tolist() == pytest.approx([0, 0, 1 / 3, 2 / 3, 1])
    assert tpr.tolist() == [0, 0.5, 1, 1, 1]


@pytest.mark.parametrize("at", [1, 4, 9])
def test_the_area_is_the_auroc_of_the_table(world, at):
    curves = roc_table(*world, np.random.default_rng(0), at, n_resamples=50)
    table = alarm_table(*world, np.random.default_rng(0), (at,), n_resamples=50)
    expected = table.set_index("score")["auroc"]
    for name, own in curves.groupby("score"):
        area = np.trapezoid(own["tpr"], own["fpr"])
        assert area == pytest.approx(expected[name], abs=0.006), name
        assert own["tpr"].is_monotonic_increasing
        assert own["tpr"].iloc[-1] == pytest.approx(1) and own["fpr"].iloc[0] == 0
        assert (own["low"] <= own["tpr"] + 1e-12).all() and (
            own["high"] >= own["tpr"] - 1e-12
        ).all()
    assert curves["score"].unique().tolist() == list(SCORES)


def test_same_seed_same_curve_and_only_known_scores(world):
    first, again = (
        roc_table(*world, np.random.default_rng(3), 3, scores=("fr",), n_resamples=20)
        for _ in range(2)
    )
    assert first.equals(again)
    with pytest.raises(ValueError, match="luck: not among"):
        roc_table(*world, np.random.default_rng(0), 3, scores=("luck",))


def test_nothing_lost_gives_no_curve(voted):
    visits = voted(np.full((2, 3, 10), 0.9))
    table = roc_table(visits, fates(visits), np.random.default_rng(0), 1, scores=("mr",))
    assert table[["tpr", "low", "high"]].isna().all(axis=None)
