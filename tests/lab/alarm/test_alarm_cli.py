"""`guard-alarm` as a user meets it."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lab.alarm.cli import main
from lab.alarm.findings import find, words
from lab.trace.schema import VISITS
from lab.trace.trace import Trace


@pytest.fixture(scope="session")
def run(tmp_path_factory, world, make_manifest, make_steps, make_evals, save):
    """Write a run folder of the world's votes: `run(arm, replicates)`."""

    def write(arm="ttrl", replicates=4, known=True):
        visits = world[0][world[0]["replicate"] < replicates]
        columns = {c.name: visits[c.name].to_numpy() for c in VISITS if c.name in visits}
        if not known:
            columns["label_accuracy"] = np.full(len(visits), np.nan)
        manifest = make_manifest(arm, n_problems=60, seeds=[0] * replicates)
        scores = np.full((replicates, 13), 0.5)
        trace = Trace.in_memory(
            manifest, columns, make_steps(range(replicates), 12), make_evals(scores)
        )
        return save(trace, tmp_path_factory.mktemp("alarm") / arm)

    return write


def failed(capsys):
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("guard-alarm: ") and err.count("\n") == 1
    return err


def test_prints_a_line_per_visit_and_writes_tables_and_page(run, tmp_path, capsys):
    folder, out = run(), tmp_path / "new" / "alarm"
    assert main([str(folder), "--output", str(out), "--at", "1", "4", "9"]) == 0
    shown, errors = capsys.readouterr()
    lines = shown.splitlines()
    assert lines[0] == "Simulator: test, TTRL: AUROC [95 % interval]"
    assert [line.split()[0] for line in lines[2:5]] == ["1", "4", "9"]
    assert "Against FR alone the alarm is better than it at visits" in shown
    assert "of the lost problems" in shown and lines[-1] == str(out / "alarm.html")
    assert errors == ""
    table = pd.read_csv(out / "alarm.csv")
    assert list(table.columns[:4]) == ["comparison", "arm", "visit", "score"]
    assert len(table) == 3 * 8 and set(table["arm"]) == {"ttrl"}
    mr = table[(table["visit"] == 9) & (table["score"] == "mr")].iloc[0]
    assert f"{mr['auroc']:.3f} [{mr['low']:.3f}, {mr['high']:.3f}]" in lines[4]
    assert set(pd.read_csv(out / "alarm_leads.csv")["score"]) == set(table["score"])
    page = (out / "alarm.html").read_text()
    assert page.count('class="plot"') == 2 and "ROC after visit 4" in page
    assert "://" not in page.split("<script>")[0]


def test_same_seed_same_files_and_the_first_folder_by_default(run, capsys):
    folder = run("guard")
    read = []
    for _ in range(2):
        assert main([str(folder), "--at", "3", "--roc-at", "2"]) == 0
        read.append((folder / "alarm.csv").read_bytes())
    assert read[0] == read[1]
    assert "ROC after visit 2" in (folder / "alarm.html").read_text()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("lead", "expected"),
    [
        (-1, "the median alarm comes 1 visit after it"),
        (0, "the median alarm comes with it"),
        (1, "the median alarm comes 1 visit before it"),
        (2.5, "the median alarm comes 2.5 visits before it"),
        (np.nan, "there is no alarm"),
    ],
)
def test_the_median_lead_in_words(run, lead, expected):
    (finding,), _ = find([run()])
    lines = words(replace(finding, leads=finding.leads.assign(lead_median=lead)))
    leads = [line for line in lines if "last win" in line]
    assert len(leads) == 3 and all(f"last win ({expected})" in line for line in leads)


def test_names_that_hold_commas_stand_between_semicolons(run):
    (finding,), _ = find([run()])
    for gain in (-1.0, 1.0):
        table = finding.auroc.assign(gain_low=gain)
        (line,) = [line for line in words(replace(finding, auroc=table)) if " all of" in line]
        assert "MR alone, fitted; MR alone; mean MR so far" in line


def test_arms_that_cannot_be_judged_are_named_and_left_out(run, tmp_path, capsys):
    good, single, blind = run(), run("guard", 1), run("memory", 2, known=False)
    line = [str(good), str(single), str(blind), "-o", str(tmp_path / "o"), "--at", "5"]
    assert main(line) == 0
    out, err = capsys.readouterr()
    assert "TTRL-Guard" not in out and err.count("left out: ") == 2
    assert "alarm: 1 replicate in 4 folds; at least two" in err
    assert "no label accuracy is known" in err
    assert main([str(single), "-o", str(tmp_path / "p")]) == 2
    assert "at least two of each are needed" in failed(capsys)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--at", "13"], "visit 13: the run has visits 1 to 12"),
        (["--at", "0"], "visit 0: the run has"),
        (["--roc-at", "40"], "visit 40: the run has"),
        (["--arms", "magic"], "arm 'magic': not in these runs, which have ttrl"),
        (["--false-alarms", "1"], "must be at least 0 and below 1"),
        (["--at", "soon"], "at"),
    ],
)
def test_wrong_options_are_one_line(run, tmp_path, capsys, options, message):
    assert main([str(run()), "-o", str(tmp_path / "o"), *options]) == 2
    assert message in failed(capsys)
    assert not (tmp_path / "o").exists()


def test_wrong_folders_and_foreign_pages(run, tmp_path, capsys):
    assert main([]) == 2
    assert "no folder given" in failed(capsys)
    assert main([str(tmp_path / "none")]) == 2
    assert "no such folder" in failed(capsys)
    (tmp_path / "alarm.html").write_text("mine")
    assert main([str(run()), "-o", str(tmp_path)]) == 2
    assert "no page of this program" in failed(capsys)
    assert (tmp_path / "alarm.html").read_text() == "mine"
    assert main([str(run()), "-o", str(tmp_path / "alarm.html")]) == 2
    assert "is no folder" in failed(capsys)


def test_help_needs_no_plotting_library():
    code = (
        "import sys, lab.alarm.cli as c\n"
        "try: c.main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert 'plotly' not in sys.modules and 'pandas' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--roc-at" in done.stdout
