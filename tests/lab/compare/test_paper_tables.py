import numpy as np
import pandas as pd
import pytest

from lab.compare.collection import gather
from lab.compare.paper_tables import fate_table, footnotes, main_table, setting_of
from lab.compare.published import AIME24, AMC, LLAMA, MATH, QWEN, QWEN3, Setting
from lab.trace.manifest import Manifest

RIGHT, LOST = [0.8] * 9, [0.6] * 4 + [0.1] * 5


@pytest.fixture
def compare(make_trace):
    def build(task: str, arms: dict, world: str = "sim", **config):
        """Arms to (accuracies (R, N, 9), final scores (R,))."""
        traces = []
        for arm, (accuracy, final) in arms.items():
            scores = [[0.25] * 8 + [one] for one in final]
            traces.append(make_trace(arm, accuracy, scores, task=task, world=world, config=config))
        ((comparison,), _) = gather(traces)
        return comparison

    return build


@pytest.mark.parametrize(
    ("world", "task", "model", "expected"),
    [
        ("sim", "llama-math500", None, Setting(LLAMA, MATH)),
        ("sim", "qwen3-aime24", None, Setting(QWEN3, AIME24)),
        ("sim", "qwen-amc", None, Setting(QWEN, AMC)),
        ("real", "amc", "models/Llama-3.2-3B-Instruct", Setting(LLAMA, AMC)),
        ("real", "math500", "hf:Qwen/Qwen2.5-7B-Instruct", Setting(QWEN, MATH)),
        ("real", "aime24", "hf:Qwen/Qwen3-4B", Setting(QWEN3, AIME24)),
        ("real", "aime24", "hf:Qwen/Qwen2.5-Math-1.5B", None),
        ("real", "tiny", None, None),
        ("sim", "made-up", None, None),
        ("real", "dynamics", "hf:Qwen/Qwen3-4B", None),
    ],
)
def test_which_published_cell_a_run_is_about(world, task, model, expected):
    config = {} if model is None else {"model": model}
    run = Manifest.new(
        world, "ttrl", "TTRL", n_problems=1, n_votes=64, task=task, config=config, seeds=[0]
    )
    assert setting_of(run) == expected


def test_main_table_puts_ours_beside_the_papers(compare):
    arms = {"ttrl": ([[LOST]] * 2, [0.5, 0.6]), "frozen": ([[RIGHT]] * 2, [0.7, 0.7])}
    table = main_table([compare("llama-math500", arms)]).set_index("method")
    ttrl = table.loc["ttrl"]
    assert (ttrl["mean"], ttrl["published"], ttrl["n"]) == (pytest.approx(55), 52.1, 2)
    assert ttrl["sd"] == pytest.approx(np.std([50, 60], ddof=1))
    assert "44.7 %" in ttrl["footnote"]
    assert (table.loc["base", "mean"], table.loc["base", "published"]) == (25, 43.9)
    # Ours without a printed cell, and the paper's that we did not run.
    assert np.isnan(table.loc["frozen", "published"])
    assert np.isnan(table.loc["scope", "mean"])
    assert (table.loc["scope", "published"], table.loc["scope", "n"]) == (61.7, 0)
    assert (table["model"] == LLAMA).all()
    assert (table["data"] == MATH).all()


def test_another_task_stands_without_published_numbers(compare):
    table = main_table([compare("tiny", {"ttrl": ([[LOST]], [0.4])}, "real")])
    assert list(table["method"]) == ["base", "ttrl"]
    assert table["published"].isna().all()
    assert list(table["n"]) == [1, 1]
    assert table["sd"].isna().all()


def test_fate_table(compare):
    arms = {
        "ttrl": ([[LOST, RIGHT], [LOST, LOST]], [0.5] * 2),
        "guard": ([[RIGHT] * 2] * 2, [0.9] * 2),
    }
    table = fate_table([compare("llama-amc", arms)]).set_index(["method", "fate"])
    lost = table.loc[("ttrl", "TotalDeg")]
    assert (lost["mean"], lost["published"], lost["n"]) == (75, 15.6, 2)
    odd = table.loc[("guard", "Degraded")]
    assert (odd["mean"], odd["published"], odd["footnote"]) == (0, 5.0, "no multiple of 1/83")
    assert len(table) == 2 * 6


def test_fates_of_unknown_truths_are_left_out(compare):
    unknown = {"ttrl": ([[[np.nan] * 9]], [0.5])}
    assert fate_table([compare("llama-amc", unknown)]).empty


def test_footnotes_are_numbered_and_each_stands_once():
    table = pd.DataFrame({"mean": [1, 2, 3, 4], "footnote": ["b", "", "a", "b"]})
    numbered, texts = footnotes(table)
    assert list(numbered["footnote"]) == [1, 0, 2, 1]
    assert texts == ["b", "a"]
