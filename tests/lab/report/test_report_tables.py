"""`guard-report --format csv`: tidy tables in a folder that holds nothing else."""

import json

import numpy as np
import pandas as pd
import pytest

from lab.errors import UserError
from lab.report.cli import main
from lab.report.content.digest import read
from lab.report.folders import CONTENTS, our_folder
from lab.report.names import slugs
from lab.report.tidy import write_tables
from lab.stats.paired import paired_table

SIM = (
    *("metrics", "summary", "paired-ttrl", "paired-matched", "dynamics", "windows", "fates"),
    *("change", "paper-main", "paper-full-fates"),
)


@pytest.fixture(scope="module")
def worlds(runs):
    return read([runs.sim, runs.real])[0]


@pytest.fixture(scope="module")
def folder(worlds, tmp_path_factory):
    target = tmp_path_factory.mktemp("csv") / "tables"
    write_tables(worlds, target)
    return target


def test_every_table_of_every_comparison(folder):
    expected = {
        f"{world}-{name}.csv" for world in ("sim-llama-math500", "real-tiny") for name in SIM
    }
    assert {path.name for path in folder.iterdir()} == expected | {CONTENTS}
    assert set(json.loads((folder / CONTENTS).read_text())["files"]) == expected


def test_tables_hold_the_numbers_of_the_page(folder, worlds):
    world = worlds[0]
    metrics = pd.read_csv(folder / "sim-llama-math500-metrics.csv").set_index(["arm", "replicate"])
    np.testing.assert_allclose(metrics["TotalDeg"], world.metrics["TotalDeg"])
    summary = pd.read_csv(folder / "sim-llama-math500-summary.csv").set_index(["arm", "metric"])
    assert summary.loc[("guard", "pass_final"), "mean"] == pytest.approx(
        world.metrics.loc["guard", "pass_final"].mean()
    )
    assert summary.loc[("guard", "pass_final"), "unit"] == "%"
    pairs = pd.read_csv(folder / "sim-llama-math500-paired-ttrl.csv")
    expected = paired_table(world.metrics, "ttrl")
    np.testing.assert_allclose(pairs["mean"], expected["mean"])
    assert set(pairs["against"]) == {"ttrl"}
    fates = pd.read_csv(folder / "sim-llama-math500-fates.csv")
    assert len(fates) == len(world.metrics) * world.comparison.runs["ttrl"][0].n_problems
    share = fates.query("arm == 'ttrl'").groupby("replicate")["fate"]
    degraded = 100 * share.apply(lambda own: (own == "Degraded").mean())
    np.testing.assert_allclose(degraded, world.metrics.loc["ttrl", "Degraded"])
    paper = pd.read_csv(folder / "sim-llama-math500-paper-main.csv")
    assert paper.set_index("method").loc["guard", "published"] == 57.3


def test_seeds_stand_beside_replicates(folder):
    metrics = pd.read_csv(folder / "real-tiny-metrics.csv")
    assert list(metrics.query("arm == 'ttrl'")["seed"]) == [0, 1, 2]


def test_our_tables_are_replaced_and_nothing_else(runs, tmp_path, capsys):
    target = tmp_path / "tables"
    command = [str(runs.real), "--format", "csv", "-o", str(target)]
    assert main(command) == 0
    (target / "real-tiny-metrics.csv").write_text("old")
    assert main(command) == 0
    assert (target / "real-tiny-metrics.csv").read_text().startswith("arm,")
    (target / "notes.txt").write_text("mine")
    capsys.readouterr()
    assert main(command) == 2
    assert "holds notes.txt, which is none of our tables" in capsys.readouterr().err
    assert (target / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("contents", ["", "[]", '{"files": ["a.csv"]}', '{"made_by": 1}'])
def test_a_foreign_folder_is_kept(tmp_path, contents):
    (tmp_path / "a.csv").write_text("mine")
    (tmp_path / CONTENTS).write_text(contents)
    with pytest.raises(UserError, match="choose a new folder"), our_folder(tmp_path, "tables"):
        pass
    assert (tmp_path / "a.csv").read_text() == "mine"


def test_tables_do_not_replace_figures(tmp_path):
    with our_folder(tmp_path / "made", "figures") as (place, names):
        (place / "a.png").write_text("drawn")
        names.append("a.png")
    with pytest.raises(UserError, match=r"holds a\.png"), our_folder(tmp_path / "made", "tables"):
        pass
    assert (tmp_path / "made" / "a.png").read_text() == "drawn"


def test_an_error_leaves_the_old_folder(tmp_path):
    with our_folder(tmp_path / "made", "tables") as (place, names):
        (place / "a.csv").write_text("1")
        names.append("a.csv")
    with pytest.raises(RuntimeError), our_folder(tmp_path / "made", "tables"):
        raise RuntimeError
    assert {path.name for path in tmp_path.rglob("*.csv")} == {"a.csv"}
    assert (tmp_path / "made" / "a.csv").read_text() == "1"


@pytest.mark.parametrize("kind", ["csv", "png"])
def test_a_folder_must_be_named(runs, capsys, tmp_path, kind):
    assert main([str(runs.real), "--format", kind]) == 2
    assert "add -o FOLDER" in capsys.readouterr().err
    (tmp_path / "file").write_text("mine")
    assert main([str(runs.real), "--format", kind, "-o", str(tmp_path / "file")]) == 2
    assert "add -o FOLDER" in capsys.readouterr().err
    assert main([str(runs.real), "--format", kind, "-o", str(tmp_path / "no" / "where")]) == 2
    assert "its folder does not exist" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_names_of_files_are_safe_and_distinct(add_run, tmp_path):
    for task in ("../../etc/x", ".. .. etc x", "…"):
        add_run(tmp_path / f"run {task}".replace("/", "_"), "ttrl", task=task)
    assert sorted(slugs(read([tmp_path])[0])) == ["sim", "sim-etc-x", "sim-etc-x-2"]
