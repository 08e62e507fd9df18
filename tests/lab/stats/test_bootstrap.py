"""Bootstrap intervals cover, are paired, and do not depend on the other columns."""

import numpy as np
import pandas as pd
import pytest

from lab.base.stats import contrast_table


def series(values):
    return pd.Series(values, pd.Index(range(len(values)), name="replicate"))


def metrics(**arms):
    """(arm, replicate) by one metric."""
    parts = {arm: pd.DataFrame({"score": series(values)}) for arm, values in arms.items()}
    return pd.concat(parts, names=["arm", "replicate"])


@pytest.mark.parametrize(
    ("draw", "mean", "least"), [("normal", 0.0, 0.92), ("exponential", 1.0, 0.88)]
)
def test_the_interval_covers_the_mean(draw, mean, least):
    rng = np.random.default_rng(1)
    hits = 0
    for trial in range(300):
        values = getattr(rng, draw)(size=12)
        found = contrast_table(metrics(a=np.zeros(12), b=values), seed=trial).iloc[0]
        hits += found["low"] <= mean <= found["high"]
    assert least <= hits / 300 <= 0.99


def test_pairs_are_matched_by_replicate_and_nan_is_left_out():
    first = pd.Series([1.0, 2.0, 3.0, np.nan, 9.0], [0, 1, 2, 3, 4])
    second = pd.Series([2.5, 1.5, 0.5, 7.0], [2, 1, 0, 3])
    parts = {"b": second, "a": first}
    rows = {arm: own.rename_axis("replicate").to_frame("score") for arm, own in parts.items()}
    found = contrast_table(pd.concat(rows, names=["arm", "replicate"]), seed=0).iloc[0]
    assert found[["n", "mean", "low", "high"]].tolist() == [3, 0.5, 0.5, 0.5]


def test_equal_arms_differ_by_exactly_nothing():
    values = np.random.default_rng(0).normal(size=9)
    row = contrast_table(metrics(a=values, b=values), seed=3).iloc[0]
    assert (row["mean"], row["low"], row["high"]) == (0, 0, 0)
    assert row["verdict"] == "within noise (9 pairs)"


def test_an_interval_does_not_depend_on_its_company():
    rng = np.random.default_rng(4)
    arms = {name: rng.normal(size=10) for name in "abcd"}
    arms["d"][2] = np.nan
    table = contrast_table(metrics(**arms), seed=7)
    assert len(table) == 6
    for _, row in table.iterrows():
        pair = {name: arms[name] for name in (row["against"], row["arm"])}
        alone = contrast_table(metrics(**pair), seed=7).iloc[0]
        bounds = ["low", "high"]
        assert row[bounds].tolist() == pytest.approx(alone[bounds].tolist(), rel=1e-12)
        assert row["n"] == alone["n"] == (9 if "d" in pair else 10)


def test_a_difference_is_shown_only_where_both_intervals_exclude_zero():
    shift = np.array([1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.2])
    clear = contrast_table(metrics(a=0 * shift, b=shift), seed=0).iloc[0]
    assert clear["verdict"] == "above zero beyond noise (7 pairs)"
    # Two pairs: every resample is above zero, the t-interval is not.
    few = contrast_table(metrics(a=np.zeros(2), b=np.array([0.5, 2.0])), seed=0).iloc[0]
    assert few["low"] > 0 > few["t_low"] and few["verdict"] == "within noise (2 pairs)"


def test_seeds_repeat_and_differ():
    arms = metrics(a=np.zeros(15), b=np.random.default_rng(5).normal(size=15))
    first, again, other = (contrast_table(arms, seed=seed).iloc[0]["low"] for seed in (1, 1, 2))
    assert first == again != other and first == pytest.approx(other, abs=0.08)
