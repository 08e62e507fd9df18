import numpy as np
import pandas as pd
import pytest

from lab.base.stats import Estimate, contrast_table, difference, paired, paired_table


def metrics(**arms):
    """(arm, replicate) by two metrics, the second in thousandths of the first."""
    index = pd.Index(range(10), name="replicate")
    parts = {arm: pd.DataFrame({"score": v, "small": v / 1000}, index) for arm, v in arms.items()}
    return pd.concat(parts, names=["arm", "replicate"])


def test_every_pair_has_its_own_t_interval():
    rng = np.random.default_rng(4)
    arms = {name: rng.normal(size=10) for name in "abcd"}
    arms["d"][2] = np.nan
    table = contrast_table(metrics(**arms))
    pairs = list(zip(table["arm"], table["against"], strict=True))[::2]
    assert pairs == [("b", "a"), ("c", "a"), ("d", "a"), ("c", "b"), ("d", "b"), ("d", "c")]
    for _, row in table[table["metric"] == "score"].iterrows():
        own = paired(*(pd.Series(arms[name]) for name in (row["arm"], row["against"])))
        found = [row[name] for name in ("mean", "sd", "low", "high", "n", "verdict")]
        assert found == [own.mean, own.sd, own.low, own.high, own.n, own.verdict]
        assert row["n"] == (9 if "d" in (row["arm"], row["against"]) else 10)


def test_all_pairs_and_one_reference_are_the_same_table():
    rng = np.random.default_rng(0)
    scores = metrics(**{name: rng.normal(size=10) for name in "abc"})
    every = contrast_table(scores)
    against_a = every[every["against"] == "a"].drop(columns="against")
    pd.testing.assert_frame_equal(against_a, paired_table(scores, "a"))
    assert contrast_table(scores.loc[["a"]]).empty
    assert list(contrast_table(scores.iloc[:0])) == list(every)


@pytest.mark.parametrize("shift", [0.0, 0.2, 0.4, 0.6, 0.75, 1.0, 3.0, -0.7, -2.0])
def test_a_star_stands_exactly_where_the_printed_interval_excludes_zero(shift):
    values = np.random.default_rng(1).normal(size=10) + shift
    table = contrast_table(metrics(a=np.zeros(10), b=values))
    for row in table.to_dict("records"):
        value = Estimate(*(row[name] for name in ("mean", "sd", "low", "high", "n")))
        text = difference(value, starred=True)
        if "[" in text:
            assert text.endswith("*") == ("beyond" in row["verdict"])
            low, high = map(float, text.partition("[")[2].rstrip("]*").split(","))
            assert text.endswith("*") == (low > 0 or high < 0)
        else:  # shown as no difference at all
            assert text == "0.0" and max(abs(row["low"]), abs(row["high"])) < 0.05
