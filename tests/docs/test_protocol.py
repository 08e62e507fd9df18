import itertools
import tomllib
from pathlib import Path

import pandas as pd
import pytest
from test_command_lines import shell_lines

import lab.measures.fate
import sim
from lab.arm_settings import with_arm
from lab.base.arms import arm, title
from lab.base.stats import difference, differences, estimate
from lab.cli import parse
from real import TrainConfig, train
from real.commands import COMMANDS
from sim.settings.config import SEARCH_LRS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "protocol.md"
PROTOCOL = tomllib.loads((DOCS / "data" / "protocol.toml").read_text())
TABLES = sorted((DOCS / "data").glob("choice-*.csv"))


def test_nothing_is_both_chosen_on_and_held_out():
    chosen, held_out = PROTOCOL["chosen"], PROTOCOL["held_out"]
    assert chosen.keys() == held_out.keys() == {"problem_seeds", "seeds", "lrs"}
    assert not any(set(chosen[name]) & set(held_out[name]) for name in chosen)
    assert tuple(chosen["lrs"]) == SEARCH_LRS


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_choosing_steps_read_no_held_out_data(path):
    """What was chosen on is not held out, by the test above."""
    table, chosen = pd.read_csv(path), PROTOCOL["chosen"]
    for column in ("problem_seed", "seed", "lr"):
        assert len(table) and set(table[column]) <= set(chosen[f"{column}s"])


ARMS, LRS = ("ttrl", "truth"), (3e-4, 1e-3)


@pytest.fixture(scope="module")
def few(tool, tmp_path_factory):
    """Two small arms at two learning rates, and the file of their rows."""
    out = tmp_path_factory.mktemp("protocol")
    sizes = {"epochs": 1, "n_problems": 4, "n_votes": 8, "n_samples": 4}
    for lr, name in itertools.product(LRS, ARMS):
        config = with_arm(TrainConfig(lr=lr, seed=1, **sizes), arm(name))
        train(config, out / "runs" / f"lr-{lr}" / name / "seed-1", progress=False)
    assert tool("run_rows").main([str(out / "table.csv"), str(out / "runs")]) == 0
    return out


def test_a_table_has_the_numbers_of_its_runs(few, tool):
    table = tool("run_rows").known(few / "table.csv")
    assert len(table) == 4 and table.groupby("arm").size().eq(2).all()
    trace = lab.load(few / "runs" / "lr-0.0003" / "ttrl" / "seed-1")
    row = table[(table.arm == "ttrl") & (table.lr == 3e-4) & (table.seed == 1)].iloc[0]
    assert row.pass_final == pytest.approx(100 * trace.evals.pass_at_1.iloc[-1], rel=1e-5)
    last = trace.visits[trace.visits.epoch == 1].sort_values("problem").label_correct
    assert row.right_final == "".join(last.astype(int).astype(str)) and len(last) == 4
    assert row.label_final == 100 * last.mean()


def test_rows_are_added_once_and_never_replaced_by_other_settings(few, tool, tmp_path, capsys):
    script, file = tool("run_rows"), tmp_path / "rows.csv"
    truth = [str(few / "runs" / f"lr-{lr}" / "truth") for lr in LRS]
    assert script.main([str(file), truth[0]]) == 0
    assert script.main([str(file), *truth]) == 0 and script.main([str(file), *truth]) == 0
    added = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    rows = script.known(file)
    assert added == ["1", "1", "0"] and rows.lr.tolist() == [*LRS]
    assert rows.digest.nunique() == 1 and len(rows.digest[0]) == 8
    file.write_text(file.read_text().replace(rows.digest[0], "0" * 8, 1))
    before = file.read_text()
    assert script.main([str(file), *truth]) == 2 and file.read_text() == before
    assert "arm truth, lr 0.0003, seed 1, place 0 with other settings" in capsys.readouterr().err


def test_rows_of_a_simulation_are_its_replicates(tool, tmp_path):
    config = sim.SimConfig(n_problems=20, epochs=8, replicates=3, seed=5)
    sim.simulate(config, tmp_path / "run")
    rows = tool("run_rows").rows([tmp_path])
    trace = lab.load(tmp_path / "run")
    assert rows.place.tolist() == [0, 1, 2] and set(rows.seed) == {5}
    shares = lab.measures.fate.fate_shares(lab.fates(trace.visits))
    for name in ("TotalDeg", "Degraded", "Always Wrong"):
        assert rows[name].tolist() == shares[name].tolist()


def command(out):
    """The command of `guard-train compare` on the page whose runs go there."""
    shown = (words for words in shell_lines(PAGE) if "compare" in words)
    (words,) = (words for words in shown if words[words.index("--out") + 1].startswith(out))
    return parse("guard-train", COMMANDS, words[1:])


def test_the_page_has_the_numbers_and_the_commands_of_the_protocol():
    text, step, held_out = PAGE.read_text(), PROTOCOL["confirm"], PROTOCOL["held_out"]
    assert f"| 0 to 4 | {held_out['seeds'][0]} to {held_out['seeds'][-1]} |" in text
    assert f"| 0 | {', '.join(map(str, held_out['problem_seeds']))} |" in text
    assert "| 5e-5, 1e-4, 2e-4, 3e-4, 5e-4 | 1.5e-4 |" in text
    confirm, (first, seeds), *others = command("runs/confirm"), *step["seeds"].items()
    assert (confirm.settings.problem_seed, list(confirm.seeds)) == (int(first), seeds)
    shown = f"{seeds[0]} to {seeds[-1]} on problem set {first}, "
    shown += ", ".join(f"{own[0]} to {own[-1]} on set {name}" for name, own in others)
    assert shown in text
    assert [*map(int, step["seeds"])] == held_out["problem_seeds"]
    assert [seed for own in step["seeds"].values() for seed in own] == held_out["seeds"]
    assert [list(confirm.arms), list(confirm.lrs)] == [step["arms"], step["lrs"]]
    assert set(step["lrs"]) - set(PROTOCOL["chosen"]["lrs"]) == set(held_out["lrs"])
    readings, study = command("runs/readings"), PROTOCOL["readings"]
    assert [list(readings.arms), list(readings.seeds)] == [study["arms"], [500, 501, 502]]
    assert {*readings.lrs} == {lr for _, lr in study["cells"]}


@pytest.mark.parametrize("task", ["arithmetic", "collatz"])
def test_intervals_of_the_confirmation_are_corrected_for_the_nine_other_arms(tool, task):
    page = tool("protocol_page")
    rows = page.read(f"confirm-{task}")
    assert "those of the confirmation for the nine\nother arms" in PAGE.read_text()
    cell = page.conditions(rows).rows[2][1]
    (name,) = (name for name in {*rows["arm"]} if cell.endswith(f", {title(name)}"))
    free = rows[rows["arm"] != "truth"]
    finals = [page.best(free, [arm_name]) for arm_name in ("recommended", name)]
    nearest = estimate(differences(*finals), 1 - 0.05 / (len({*rows["arm"]}) - 1))
    assert len({*rows["arm"]}) == 10 and cell == f"{difference(nearest)}, {title(name)}"


def test_the_file_of_means_is_that_of_the_rows(tool):
    page = tool("protocol_page")
    kept = pd.read_csv(DOCS / "data" / "confirm-means.csv", dtype=str)
    for task, part in kept.groupby("task"):
        made = page.means(page.read(f"confirm-{task}")).rows
        made = [[cell.replace("\\[", "[") for cell in row] for row in made]
        assert part.drop(columns="task").to_numpy().tolist() == made
