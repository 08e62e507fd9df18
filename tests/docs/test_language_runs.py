import math

import pandas as pd
import pytest

from real import TrainConfig, train


@pytest.fixture
def script(tool, tmp_path, monkeypatch):
    """The script with data files of its own beside the pools, which are all sampled."""
    page = tool("language_runs")
    monkeypatch.setattr(page, "DATA", tmp_path)
    monkeypatch.setattr(page, "START", tmp_path / page.START.name)
    return page


def test_sets_are_those_that_the_runs_were_made_on(tool, tmp_path):
    page = tool("language_runs")
    made = pd.read_csv(page.START).groupby("set")["id"].apply(list)
    assert len(made) == 8
    for task, names in made.items():
        assert names == page.products_of(task, "none", tmp_path)


def test_a_study_goes_on_behind_its_rows_and_ends_with_a_failed_command(
    script, tmp_path, monkeypatch
):
    asked = []

    def fail(words):
        asked.append(words)
        return 7

    monkeypatch.setattr(script.real.__main__, "main", fail)
    assert script.main(["run", "vote", "model", str(tmp_path / "runs")]) == 7
    made = {"task": "set-1", "problem_seed": 0, "lr": 1e-5, "seed": 1, "place": 0}
    rows = pd.DataFrame([made | {"arm": arm} for arm in ("ttrl", "memory", "recommended")])
    rows.to_csv(tmp_path / "language-vote.csv", index=False)
    assert script.main(["run", "vote", "model", str(tmp_path / "runs")]) == 7
    assert [words[words.index("--arms") + 1] for words in asked] == ["ttrl", "frozen"]
    for name, value in (("--dtype", "float32"), ("--lrs", "1e-05"), ("--n-held-out", "12")):
        assert asked[1][asked[1].index(name) + 1] == value
    # A command that works adds the row of its own run alone.
    codes, added = [7, 0], []
    monkeypatch.setattr(script.real.__main__, "main", lambda words: codes.pop())
    start = pd.DataFrame({"id": ["3*4"], "right": [0.5], "majority": [1.0]})
    monkeypatch.setattr(script, "sampled", lambda *_: start)
    monkeypatch.setattr(script, "add_finished", lambda table, folder, task: added.append(folder))
    assert script.main(["run", "vote", "model", str(tmp_path / "runs")]) == 7
    own = tmp_path / "runs" / "vote" / "set-1-float32" / "lr-1e-05" / "frozen" / "seed-1"
    assert added == [own]


def test_a_row_of_a_run_without_held_out_problems(script, tmp_path):
    train(
        TrainConfig(epochs=1, n_problems=16, n_votes=16, n_samples=8),
        tmp_path / "run",
        progress=False,
    )
    (row,) = script.described(tmp_path / "run").to_dict("records")
    assert math.isnan(row["held_out_pass_at_1_final"])
    assert 0 < row["pass_at_16_start"] <= 100 and row["repeated_final"] == 0


def test_start_votes_are_made_once(script, tmp_path):
    made = []

    def make():
        made.append(1)
        return pd.DataFrame({"id": ["3*4"], "right": [0.5], "majority": [1.0]})

    for task in ("set-1", "set-2", "set-1"):
        assert list(script.kept(script.START, "set", task, make)["id"]) == ["3*4"]
    assert len(made) == 2
    assert list(pd.read_csv(script.START)["set"]) == ["set-1", "set-2"]


@pytest.mark.parametrize("study", ["vote", "rate", "first"])
def test_the_page_says_how_many_runs_are_made(tool, study):
    page = tool("tables")
    rows = tool("run_rows").known(page.DATA / f"language-{study}.csv")
    text = " ".join((page.ROOT / "docs" / "language-model.md").read_text().split())
    order = [(b.task, b.seed, b.lr, arm) for b in page.STUDIES[study] for arm in b.arms]
    assert len(rows) == len(order) or f"{len(rows)} of the {len(order)} runs" in text
    assert {*rows[["task", "seed", "lr", "arm"]].itertuples(index=False)} == {*order[: len(rows)]}
