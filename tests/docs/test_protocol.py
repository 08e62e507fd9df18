"""The page of the protocol, its numbers, and the data of the choosing steps agree."""

import shutil
import tomllib
from pathlib import Path

import pandas as pd
import pytest

import lab.measures.fate
import sim
from sim.settings.options import SEARCH_LRS

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


@pytest.fixture(scope="module")
def few(tool, tmp_path_factory):
    """Three small arms at two learning rates and two seeds, made as step 2 is."""
    runs = tool("protocol_runs")
    runs.PROTOCOL["chosen"]["lrs"] = [1e-4, 3e-4]
    arms = {"recommended": "--arm positive", "ttrl": "--arm ttrl", "truth": "--arm truth"}
    runs.PROTOCOL["choice"] = {"seeds": [0, 1], "candidates": arms}
    out = tmp_path_factory.mktemp("protocol") / "runs"
    assert runs.main(["choice", str(out), *SMALL.split()]) == 0
    return runs, out


def test_a_table_has_the_numbers_of_its_runs(few):
    runs, out = few
    table = pd.read_csv(out / runs.TABLE, dtype={"right_start": str, "right_final": str})
    assert len(table) == 12 and table.groupby("arm").size().eq(4).all()
    trace = lab.load(out / "lr-0.0003" / "recommended" / "seed-1")
    row = table[(table.arm == "recommended") & (table.lr == 3e-4) & (table.seed == 1)].iloc[0]
    assert row.pass_final == pytest.approx(100 * trace.evals.pass_at_1.iloc[-1], rel=1e-5)
    last = trace.visits[trace.visits.epoch == 1].sort_values("problem").label_correct
    assert row.right_final == "".join(last.astype(int).astype(str)) and len(last) == 4
    assert row.label_final == 100 * last.mean()
    words = next(runs.choice(out))
    assert words[0] == "resume"  # it goes on, and leaves finished runs as they are


def test_rows_are_added_once_and_never_replaced_by_other_settings(few, tool, tmp_path, capsys):
    _, out = few
    script, file = tool("run_rows"), tmp_path / "rows.csv"
    truth = sorted(map(str, out.glob("lr-*/truth")))
    assert script.main([str(file), truth[0]]) == 0
    assert script.main([str(file), *truth]) == 0 and script.main([str(file), *truth]) == 0
    added = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    rows = script.read(file)
    assert added == ["2", "2", "0"] and rows.lr.tolist() == [1e-4, 1e-4, 3e-4, 3e-4]
    assert rows.digest.nunique() == 1 and len(rows.digest[0]) == 8
    file.write_text(file.read_text().replace(rows.digest[0], "0" * 8, 1))
    before = file.read_text()
    assert script.main([str(file), *truth]) == 2 and file.read_text() == before
    assert "arm truth, lr 0.0001, seed 0, place 0 with other settings" in capsys.readouterr().err


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
    _, out = few
    page = tool("protocol_page")
    monkeypatch.setattr(page, "DATA", out)
    table = page.read("table")
    assert page.read("table+table").seed.tolist() == [*table.seed, *table.seed]
    means = {row[0]: row[1:] for row in page.means(table).rows}
    own = table[(table.arm == "ttrl") & (table.lr == 1e-4)].pass_final
    assert means["TTRL"][0] == f"{own.mean():.1f} ± {own.std():.1f}" and len(means) == 3
    gains = {row[0]: row[1:] for row in page.over_ttrl(table).rows}
    pairs = table[table.lr == 1e-4].pivot(index="seed", columns="arm", values="pass_final")
    assert f"{(pairs.recommended - pairs.ttrl).mean():+.1f} [" in gains["Recommended"][0]
    # An oracle between labels is right wherever one of them is, and true labels are none of them.
    shares = {row[0]: float(row[1]) for row in page.oracle(table).rows}
    assert len(shares) == 3 and max(shares.values()) == shares[list(shares)[-1]] <= 100
    sure = table.assign(pass_final=table.arm.map({"recommended": 3.0, "truth": 2.0, "ttrl": 1.0}))
    for predict, tau in ((lambda real: real, "1.00"), (lambda real: -real, "-1.00")):
        found = page.ranks(sure, agreed(sure, predict)).rows
        assert found == [["0.0001", "2", tau, "1.00"], ["0.0003", "2", tau, "1.00"]]
    assert [row[2] for row in page.conditions(sure).rows] == ["yes", "no", "yes", "yes"]
    worse = sure.assign(pass_final=-sure.pass_final)
    assert [row[2] for row in page.conditions(worse).rows] == ["no"] * 4
    assert page.protocol("table+table", "means").rows[0][0] in means


def agreed(table, predict):
    """Rows as of `lab.agreement`, with a prediction made from the real mean."""
    cells = table.groupby(["lr", "arm"], as_index=False)["pass_final"].agg(["mean", "size"])
    cells = cells.rename(columns={"mean": "real", "size": "seeds"})
    return cells.assign(prediction="measured", predicted=predict(cells["real"]))


def test_the_study_of_readings_goes_on_without_its_folders(tool, tmp_path, monkeypatch):
    """Rows are the memory: a run with a row is not made again, but for one that is replayed."""
    runs, step = tool("protocol_runs"), PROTOCOL["readings"]
    order = list(runs.planned())
    n_arms, n_sets = len(step["arms"]), len(step["problem_seeds"])
    assert len(order) == 6 * 3 * n_sets * n_arms and len({run.seed for run in order}) == 36
    assert not {run.problem_seed for run in order} & set(PROTOCOL["chosen"]["problem_seeds"])
    first = order[: n_sets * n_arms]
    assert {(run.task, run.lr, run.place) for run in first} == {("closed", 3e-4, 0)}
    few = {"cells": [["collatz", 3e-4]], "problem_seeds": [50], "seeds_per_set": 2}
    few["arms"] = ["replayed: W=3", "guard: W=3", "ttrl"]
    monkeypatch.setitem(runs.PROTOCOL, "readings", few)
    monkeypatch.setattr(runs, "READINGS", tmp_path / "rows.csv")
    made, main = [], runs.real.cli.main
    monkeypatch.setattr(runs.real.cli, "main", lambda words: made.append(words) or main(words))
    command = ["readings", str(tmp_path / "runs"), *SMALL.split()]
    assert runs.main(command) == 0
    assert len(made) == 6 and runs.main(command) == 0 and len(made) == 6
    rows = (tmp_path / "rows.csv").read_bytes()
    table = runs.read(tmp_path / "rows.csv")
    assert table.groupby("arm").seed.apply(list).to_dict() == {
        "guard,W=3": [500, 501], "replayed,W=3": [500, 501], "ttrl": [500, 501]
    }  # fmt: skip
    left = sorted(path.parent.name for path in tmp_path.rglob("run.json"))
    assert left == ["500", "501"]  # the guard's runs, which are replayed
    shutil.rmtree(tmp_path / "runs")
    lost = table[~((table.arm == "replayed,W=3") & (table.seed == 501))]
    lost.to_csv(tmp_path / "rows.csv", index=False, float_format="%.6g")
    assert runs.main(command) == 0 and len(made) == 8
    assert (tmp_path / "rows.csv").read_bytes() == rows


def test_the_confirming_commands_are_those_of_the_page(tool):
    runs, step = tool("protocol_runs"), PROTOCOL["confirm"]
    held_out = PROTOCOL["held_out"]
    commands = list(runs.confirm(Path("out"), list(step["seeds"]), step["lrs"]))
    sets = [words[words.index("--problem-seed") + 1] for words in commands]
    assert sets == [str(seed) for seed in held_out["problem_seeds"]]
    seeds = [word for words in commands for word in words[words.index("--seeds") + 1 :]]
    assert seeds == [str(seed) for seed in held_out["seeds"]]
    assert set(step["lrs"]) - set(PROTOCOL["chosen"]["lrs"]) == set(held_out["lrs"])
    assert step["arms"][0] == "recommended"
