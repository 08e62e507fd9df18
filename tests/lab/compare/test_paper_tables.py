import numpy as np
import pandas as pd
import pytest

from lab.compare.collection import gather
from lab.compare.published import LLAMA, MATH, fate_table, footnotes, main_table

RIGHT, LOST = [0.8] * 9, [0.6] * 4 + [0.1] * 5


def test_main_table_puts_ours_beside_the_papers(compare):
    arms = {"ttrl": ([[LOST]] * 2, [0.5, 0.6]), "frozen": ([[RIGHT]] * 2, [0.7, 0.7])}
    table = main_table([compare(arms, task="llama-math500")]).set_index("method")
    ttrl = table.loc["ttrl"]
    assert (ttrl["mean"], ttrl["published"], ttrl["n"]) == (pytest.approx(55), 52.1, 2)
    assert ttrl["sd"] == pytest.approx(np.std([50, 60], ddof=1)) and "44.7 %" in ttrl["footnote"]
    assert (table.loc["base", "mean"], table.loc["base", "published"]) == (50, 43.9)
    # Ours without a printed cell, and the paper's that we did not run.
    assert np.isnan(table.loc["frozen", "published"]) and np.isnan(table.loc["scope", "mean"])
    assert (table.loc["scope", "published"], table.loc["scope", "n"]) == (61.7, 0)
    assert (table["model"] == LLAMA).all() and (table["data"] == MATH).all()


def test_another_task_stands_without_published_numbers(compare):
    table = main_table([compare({"ttrl": ([[LOST]], [0.4])}, task="tiny", world="real")])
    assert list(table["method"]) == ["base", "ttrl"] and table["published"].isna().all()
    assert list(table["n"]) == [1, 1] and table["sd"].isna().all()


def test_fate_table(compare):
    arms = {
        "ttrl": ([[LOST, RIGHT], [LOST, LOST]], [0.5] * 2),
        "guard": ([[RIGHT] * 2] * 2, [0.9] * 2),
    }
    table = fate_table([compare(arms, task="llama-amc")]).set_index(["method", "fate"])
    lost = table.loc[("ttrl", "TotalDeg")]
    assert (lost["mean"], lost["published"], lost["n"]) == (75, 15.6, 2)
    odd = table.loc[("guard", "Degraded")]
    assert (odd["mean"], odd["published"], odd["footnote"]) == (0, 5.0, "no multiple of 1/83")
    assert len(table) == 2 * 6


def test_each_of_several_step_sizes_stands_beside_the_papers_numbers(make_trace):
    def trace(step):
        return make_trace("ttrl", [[LOST]], [[0.5] * 9], task="llama-amc", config={"step": step})

    comparisons, _ = gather([trace(0.1), trace(0.2)])
    for table, n in ((main_table(comparisons), 2), (fate_table(comparisons), 12)):
        ours = table[table["method"] == "ttrl"]
        assert len(ours) == n and ours["published"].notna().all()
        assert ours["task"].nunique() == 2


def test_fates_of_unknown_truths_are_left_out(compare):
    unknown = {"ttrl": ([[[np.nan] * 9]], [0.5])}
    assert fate_table([compare(unknown, task="llama-amc")]).empty


def test_footnotes_are_numbered_and_each_stands_once():
    table = pd.DataFrame({"mean": [1, 2, 3, 4], "footnote": ["b", "", "a", "b"]})
    numbered, texts = footnotes(table)
    assert list(numbered["footnote"]) == [1, 0, 2, 1]
    assert texts == ["b", "a"]
