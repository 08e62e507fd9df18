"""The page of the protocol, its numbers, and the data of the choosing steps agree."""

import tomllib
from pathlib import Path

import pandas as pd
import pytest

import lab
from sim.studies.search.space import LRS

DOCS = Path(__file__).parents[2] / "docs"
PROTOCOL = tomllib.loads((DOCS / "data" / "protocol.toml").read_text())
TABLES = sorted((DOCS / "data").glob("choice-*.csv"))


def test_nothing_is_both_chosen_on_and_held_out():
    chosen, held_out = PROTOCOL["chosen"], PROTOCOL["held_out"]
    assert chosen.keys() == held_out.keys() == {"problem_seeds", "seeds", "lrs"}
    assert not any(set(chosen[name]) & set(held_out[name]) for name in chosen)
    assert tuple(chosen["lrs"]) == LRS


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


def test_the_pages_tables_are_those_of_the_runs(few, tool, monkeypatch):
    _, out = few
    page = tool("protocol_page")
    monkeypatch.setattr(page, "DATA", out)
    table = page.read("table")
    assert page.read("table+table").seed.tolist() == [*table.seed, *table.seed]
    means = {row[0]: row[1:] for row in page.means(table).rows}
    own = table[(table.arm == "ttrl") & (table.lr == 1e-4)].pass_final
    assert means["TTRL"][0] == f"{own.mean():.1f} ± {own.std():.1f}" and len(means) == 3
    gains = {row[0]: row[1:] for row in page.gains(table).rows}
    pairs = table[table.lr == 1e-4].pivot(index="seed", columns="arm", values="pass_final")
    assert f"{(pairs.recommended - pairs.ttrl).mean():+.1f} [" in gains["TTRL"][0]
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
    assert page.on_page_markdown("a\nPROTOCOL table means\nb").count("\n") == 6


def agreed(table, predict):
    """Rows as of `lab.agreement`, with a prediction made from the real mean."""
    cells = table.groupby(["lr", "arm"], as_index=False)["pass_final"].agg(["mean", "size"])
    cells = cells.rename(columns={"mean": "real", "size": "seeds"})
    return cells.assign(prediction="measured", predicted=predict(cells["real"]))


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
