"""Files that a sweep reads: their content counts, and a defect stops it before it writes."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lab.base.errors import UserError
from sim import SimConfig, simulate
from sim.cli import main
from sim.studies.sweep import Sweep, read_sweep, run_sweep

BASE = SimConfig(n_problems=10, epochs=8, replicates=1, step=0.2, seed=4)
N = BASE.n_problems


def histogram(path, p0=0.5):
    path.write_text(f"p0,weight\n{p0},1\n")
    return replace(BASE, population="histogram", histogram=str(path))


def first_votes(path, step=0.2):
    simulate(replace(BASE, seed=int(10 * step)), path)
    return replace(BASE, population="trace", trace=str(path))


@pytest.mark.parametrize(
    ("make", "name", "changed"),
    [(histogram, "h.csv", 0.6), (first_votes, "run", 0.5)],
)
def test_a_changed_file_is_not_taken_for_what_was_run(tmp_path, make, name, changed):
    base = make(tmp_path / name)
    sweep = Sweep(base=base, arms=("ttrl", "guard", "matched"), groups=({"step": (0.1, 0.3)},))
    rows = run_sweep(sweep, tmp_path / "s")
    assert run_sweep(sweep, tmp_path / "s").equals(rows)
    if (tmp_path / name).is_dir():
        (tmp_path / name).rename(tmp_path / "old")
    make(tmp_path / name, changed)
    with pytest.raises(UserError, match=r"another sweep: files\..* is '.*' there and '.*' here"):
        run_sweep(sweep, tmp_path / "s")
    other = run_sweep(sweep, tmp_path / "t")
    assert not set(other["key"]) & set(rows["key"])
    assert not np.allclose(other["pass_start"], rows["pass_start"])
    assert not np.allclose(other["pass_final"], rows["pass_final"])


def test_results_are_read_after_the_file_is_gone(tmp_path):
    sweep = Sweep(base=histogram(tmp_path / "h.csv"), groups=({"step": (0.1,)},))
    rows = run_sweep(sweep, tmp_path / "s")
    (tmp_path / "h.csv").unlink()
    pd.testing.assert_frame_equal(read_sweep(tmp_path / "s"), rows)
    with pytest.raises(UserError, match=r"histogram: .*h\.csv cannot be read"):
        run_sweep(sweep, tmp_path / "s")


def test_a_file_may_be_an_axis_and_one_bad_file_is_one_failed_cell(tmp_path):
    base = histogram(tmp_path / "h.csv")
    (tmp_path / "bad.csv").write_text("p0,weight\n2,1\n")
    paths = tuple(str(tmp_path / name) for name in ("h.csv", "bad.csv"))
    rows = run_sweep(Sweep(base=base, groups=({"histogram": paths},)), tmp_path / "s")
    assert rows["status"].tolist() == ["done", "failed"]
    assert "p0 = 2, must be in [0, 1]" in rows["reason"].iloc[1]


def bad_histogram(path):
    path.write_text("p0,weight\n0.5,0.7\n")
    return ["--population", "histogram", "--histogram", str(path)]


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (bad_histogram, "h.csv", "the weights sum to 0.7"),
        (lambda path: [*bad_histogram(path)[:3], "none.csv"], "h.csv", "cannot be read"),
    ],
)
@pytest.mark.parametrize(
    "command", [["run"], ["compare", "--arms", "ttrl"], ["sweep", "--vary", "step=.1,.2"]]
)
def test_bad_files_are_refused_before_anything_is_written(
    tmp_path, capsys, command, make, name, message
):
    options = [*make(tmp_path / name), "--n-problems", "10", "--epochs", "8", "--quiet"]
    assert main([*command, "--out", str(tmp_path / "out"), *options]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and message in lines[0]
    assert not (tmp_path / "out").exists()
