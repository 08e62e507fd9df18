"""The page of the protocol, its numbers, and the data of the choosing steps agree."""

import itertools
import shlex
import tomllib
from pathlib import Path

import pandas as pd
import pytest

import lab.measures.fate
import real.__main__
import sim
from sim.settings.config import SEARCH_LRS

DOCS = Path(__file__).parents[2] / "docs"
PROTOCOL = tomllib.loads((DOCS / "data" / "protocol.toml").read_text())
TABLES = sorted((DOCS / "data").glob("choice-*.csv"))


def test_nothing_is_both_chosen_on_and_held_out():
    chosen, held_out = PROTOCOL["chosen"], PROTOCOL["held_out"]
    assert chosen.keys() == held_out.keys() == {"problem_seeds", "seeds", "lrs"}
    assert not any(set(chosen[name]) & set(held_out[name]) for name in chosen)
    assert tuple(chosen["lrs"]) == SEARCH_LRS


def test_the_page_has_the_numbers():
    text = (DOCS / "protocol.md").read_text()
    held_out = PROTOCOL["held_out"]
    seeds = held_out["seeds"]
    assert f"| 0 to 4 | {seeds[0]} to {seeds[-1]} |" in text
    assert f"| 0 | {', '.join(map(str, held_out['problem_seeds']))} |" in text
    assert "| 5e-5, 1e-4, 2e-4, 3e-4, 5e-4 | 1.5e-4 |" in text


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_choosing_steps_read_no_held_out_data(path):
    table, chosen = pd.read_csv(path), PROTOCOL["chosen"]
    names = {"problem_seed": "problem_seeds", "seed": "seeds", "lr": "lrs"}
    for column, name in names.items():
        assert len(table) and set(table[column]) <= set(chosen[name])
        assert not set(table[column]) & set(PROTOCOL["held_out"][name])


SMALL = "--epochs 1 --n-problems 4 --n-votes 8 --n-samples 4 --quiet"
ARMS = ("recommended", "ttrl", "truth")


@pytest.fixture(scope="module")
def few(tool, tmp_path_factory):
    """Three small arms at two learning rates and two seeds, and the file of their rows."""
    out = tmp_path_factory.mktemp("protocol")
    words = f"compare --arms {' '.join(ARMS)} --lrs 3e-4 1e-3 --seeds 0 1 {SMALL}".split()
    assert real.__main__.main([*words, "--jobs", "1", "--out", str(out / "runs")]) == 0
    assert tool("run_rows").main([str(out / "table.csv"), str(out / "runs")]) == 0
    return out


def test_a_table_has_the_numbers_of_its_runs(few, tool):
    table = tool("run_rows").known(few / "table.csv")
    assert len(table) == 12 and table.groupby("arm").size().eq(4).all()
    (folder,) = (few / "runs").glob("*0.0003/recommended/seed-1")
    trace = lab.load(folder)
    row = table[(table.arm == "recommended") & (table.lr == 3e-4) & (table.seed == 1)].iloc[0]
    assert row.pass_final == pytest.approx(100 * trace.evals.pass_at_1.iloc[-1], rel=1e-5)
    last = trace.visits[trace.visits.epoch == 1].sort_values("problem").label_correct
    assert row.right_final == "".join(last.astype(int).astype(str)) and len(last) == 4
    assert row.label_final == 100 * last.mean()


def test_rows_are_added_once_and_never_replaced_by_other_settings(few, tool, tmp_path, capsys):
    script, file = tool("run_rows"), tmp_path / "rows.csv"
    truth = sorted(map(str, few.glob("runs/*/truth")))
    assert script.main([str(file), truth[0]]) == 0
    assert script.main([str(file), *truth]) == 0 and script.main([str(file), *truth]) == 0
    added = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    rows = script.known(file)
    assert added == ["2", "2", "0"] and rows.lr.tolist() == [3e-4, 3e-4, 1e-3, 1e-3]
    assert rows.digest.nunique() == 1 and len(rows.digest[0]) == 8
    file.write_text(file.read_text().replace(rows.digest[0], "0" * 8, 1))
    before = file.read_text()
    assert script.main([str(file), *truth]) == 2 and file.read_text() == before
    assert "arm truth, lr 0.0003, seed 0, place 0 with other settings" in capsys.readouterr().err


def test_rows_of_a_simulation_are_its_replicates(tool, tmp_path):
    config = sim.SimConfig(n_problems=20, epochs=8, replicates=3, seed=5)
    sim.simulate(config, tmp_path / "run")
    rows = tool("run_rows").rows([tmp_path])
    trace = lab.load(tmp_path / "run")
    assert rows.place.tolist() == [0, 1, 2] and set(rows.seed) == {5}
    shares = lab.measures.fate.fate_shares(lab.fates(trace.visits))
    for name in ("TotalDeg", "Degraded", "Always Wrong"):
        assert rows[name].tolist() == shares[name].tolist()


def test_the_pages_tables_are_those_of_the_runs(few, tool, monkeypatch):
    page = tool("protocol_page")
    monkeypatch.setattr(page, "DATA", few)
    table = page.read("table")
    means = {row[0]: row[1:] for row in page.means(table).rows}
    own = table[(table.arm == "ttrl") & (table.lr == 3e-4)].pass_final
    assert means["TTRL"][0] == f"{own.mean():.1f} ± {own.std():.1f}" and len(means) == 4
    gains = {row[0]: row[1:] for row in page.over_ttrl(table).rows}
    pairs = table[table.lr == 3e-4].pivot(index="seed", columns="arm", values="pass_final")
    assert f"{(pairs.recommended - pairs.ttrl).mean():+.1f} [" in gains["Recommended"][0]
    # An oracle between labels is right wherever one of them is, and true labels are none of them.
    shares = {row[0]: float(row[1]) for row in page.oracle(table).rows}
    assert len(shares) == 3 and max(shares.values()) == shares[list(shares)[-1]] <= 100
    sure = table.assign(pass_final=table.arm.map({"recommended": 3.0, "truth": 2.0, "ttrl": 1.0}))
    for predict, tau in ((lambda real: real, "1.00"), (lambda real: -real, "-1.00")):
        found = page.ranks(sure, agreed(sure, predict)).rows
        assert found == [["0.0003", tau, "1.00"], ["0.001", tau, "1.00"]]
    assert [row[2] for row in page.conditions(sure).rows] == ["yes", "no", "yes", "yes"]
    worse = sure.assign(pass_final=-sure.pass_final)
    assert [row[2] for row in page.conditions(worse).rows] == ["no"] * 4
    assert page.protocol("table", "means").rows[0][0] in means


def agreed(table, predict):
    """Rows as of `lab.agreement`, with a prediction made from the real mean."""
    cells = table.groupby(["lr", "arm"], as_index=False)["pass_final"].agg(["mean", "size"])
    cells = cells.rename(columns={"mean": "real", "size": "seeds"})
    return cells.assign(prediction="measured", predicted=predict(cells["real"]))


def commands(text, what):
    """The commands of `guard-train compare` on the page with some words, each as its words."""
    lines = (line.strip() for line in text.replace("\\\n", " ").splitlines())
    own = [line for line in lines if line.startswith("guard-train compare ") and what in line]
    return [shlex.split(line) for line in own]


def given(words, option):
    """The values of an option of a command."""
    rest = words[words.index(option) + 1 :]
    return list(itertools.takewhile(lambda word: not word.startswith("--"), rest))


def test_the_commands_are_those_of_the_protocol():
    text = (DOCS / "protocol.md").read_text()
    step, held_out = PROTOCOL["confirm"], PROTOCOL["held_out"]
    (words,) = commands(text, "runs/confirm")
    (first, seeds), *others = step["seeds"].items()
    assert given(words, "--problem-seed") == [first]
    assert given(words, "--seeds") == [*map(str, seeds)]
    shown = f"{seeds[0]} to {seeds[-1]} on problem set {first}, "
    shown += ", ".join(f"{own[0]} to {own[-1]} on set {name}" for name, own in others)
    assert shown in text and [*map(int, step["seeds"])] == held_out["problem_seeds"]
    assert [seed for own in step["seeds"].values() for seed in own] == held_out["seeds"]
    assert given(words, "--arms") == step["arms"]
    assert [*map(float, given(words, "--lrs"))] == step["lrs"]
    assert set(step["lrs"]) - set(PROTOCOL["chosen"]["lrs"]) == set(held_out["lrs"])
    ((words,), study) = commands(text, "runs/readings"), PROTOCOL["readings"]
    assert given(words, "--arms") == study["arms"]
    assert given(words, "--seeds") == ["500", "501", "502"]
    assert {float(lr) for lr in given(words, "--lrs")} == {lr for _, lr in study["cells"]}


def test_the_study_of_readings_is_complete(tool):
    rows, study = tool("protocol_page").read("readings-tiny"), PROTOCOL["readings"]
    assert len(rows) == 1728 and not rows.duplicated(["task", "lr", "arm", "seed"]).any()
    assert {(task, lr) for task, lr in study["cells"]} == set(zip(rows.task, rows.lr, strict=True))
    assert set(rows.problem_seed) == set(study["problem_seeds"])
    assert not set(rows.problem_seed) & set(PROTOCOL["chosen"]["problem_seeds"])
    assert (rows.seed - 10 * rows.problem_seed).isin(range(study["seeds_per_set"])).all()


def test_the_file_of_means_is_that_of_the_rows(tool):
    page = tool("protocol_page")
    kept = pd.read_csv(DOCS / "data" / "confirm-means.csv", dtype=str)
    for task, part in kept.groupby("task"):
        made = page.means(page.read(f"confirm-{task}")).rows
        made = [[cell.replace("\\[", "[") for cell in row] for row in made]
        assert part.drop(columns="task").to_numpy().tolist() == made


def test_the_bound_is_that_of_the_rows(tool):
    page, text = tool("protocol_page"), " ".join((DOCS / "protocol.md").read_text().split())
    first, second = (
        page.oracle(page.read(f"confirm-{task}")).rows for task in ("arithmetic", "collatz")
    )
    assert f"corrected {float(first[-1][2]):.0f} and {float(second[-1][2]):.0f} %" in text
    most = [max(float(row[2]) for row in rows[:-1]) for rows in (first, second)]
    assert "corrects at most {:.0f} and {:.0f} %".format(*most) in text


def test_the_secondary_outcomes_are_those_of_the_page(tool):
    page, text = tool("protocol_page"), " ".join((DOCS / "protocol.md").read_text().split())
    rows = page.read("readings-tiny")
    degraded, labels = (page.comparisons(rows, name) for name in ("Degraded", "label_final"))
    beyond = degraded[(degraded.low > 0) | (degraded.high < 0)]
    assert len(degraded) == 36 and len(beyond) == 4
    for row in beyond.itertuples():
        assert f"{-(row.low + row.high) / 2:.1f} " in text
        assert f"[{-row.high:.1f}, {-row.low:.1f}]" in text
    middle = page.comparisons(rows)[["low", "high"]].mean(axis=1)
    assert (labels[["low", "high"]].mean(axis=1) - middle).abs().max() < 0.15
