import numpy as np
import pandas as pd
import pytest

from lab.base.stats import paired_table
from lab.report.digest import read, slugs
from lab.report.export import write_tables

NAMES = ("arms", "metrics", "summary", "paired-ttrl", "paired-matched", "paired-vote")
NAMES = (*NAMES, "dynamics", "windows")


@pytest.fixture(scope="module")
def folder(worlds, tmp_path_factory):
    target = tmp_path_factory.mktemp("csv") / "tables"
    write_tables(worlds, [], target)
    return target


def test_every_table_of_every_comparison(folder):
    slugs = ("sim-llama-math500", "real-tiny")
    expected = {f"{slug}-{name}.csv" for slug in slugs for name in (*NAMES, "fates")}
    assert {path.name for path in folder.iterdir()} == expected


def test_tables_hold_the_numbers_of_the_page(folder, worlds):
    world = worlds[0]
    metrics = pd.read_csv(folder / "sim-llama-math500-metrics.csv").set_index(["arm", "replicate"])
    np.testing.assert_allclose(metrics["TotalDeg"], world.metrics["TotalDeg"])
    summary = pd.read_csv(folder / "sim-llama-math500-summary.csv").set_index(["arm", "metric"])
    own = world.metrics.loc["guard", "pass_final"].mean()
    assert summary.loc[("guard", "pass_final"), ["mean", "unit"]].tolist() == [
        pytest.approx(own),
        "%",
    ]
    pairs = pd.read_csv(folder / "sim-llama-math500-paired-ttrl.csv")
    expected = paired_table(world.metrics, "ttrl")
    trained = pairs[pairs["arm"] != "vote"]
    np.testing.assert_allclose(trained["mean"], expected["mean"])
    assert set(pairs["against"]) == {"ttrl"}
    fates = pd.read_csv(folder / "sim-llama-math500-fates.csv")
    assert len(fates) == len(world.metrics) * world.comparison.runs["ttrl"][0].n_problems
    share = fates.query("arm == 'ttrl'").groupby("replicate")["fate"]
    degraded = 100 * share.apply(lambda own: (own == "Degraded").mean())
    np.testing.assert_allclose(degraded, world.metrics.loc["ttrl", "Degraded"])
    metrics = pd.read_csv(folder / "real-tiny-metrics.csv")
    assert list(metrics.query("arm == 'ttrl'")["seed"]) == [0, 1, 2]


def test_names_of_files_are_safe_and_distinct(add_run, tmp_path):
    for task in ("../../etc/x", ".. .. etc x", "…"):
        add_run(tmp_path / f"run {task}".replace("/", "_"), "ttrl", task=task)
    assert sorted(slugs(read([tmp_path])[0])) == ["sim", "sim-etc-x", "sim-etc-x-2"]
