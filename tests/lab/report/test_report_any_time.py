import re

import numpy as np
import pandas as pd
import pytest

from lab.__main__ import main
from lab.compare.tables import metrics
from lab.report.digest import read
from lab.report.page import page
from lab.trace.trace import RunFolder

PAGES = ("before-training", "long-without-answers", "guard")
SHAPES = {
    "before-training": {"n_visits": 1},
    "one-visit": {"n_visits": 2},
    "three-visits": {"n_visits": 4},
    "seven-visits": {"n_visits": 8},
    "one-problem": {"n_problems": 1, "n_visits": 3},
    "no-answers": {"n_visits": 3, "truth": False},
    "long-without-answers": {"n_visits": 12, "truth": False},
    "guard": {"n_visits": 1, "arm": "guard", "config": {"guard": {"frs": True}}},
    "second-replicate": {"n_replicates": 2, "n_visits": 3},
}


@pytest.fixture
def write(tmp_path, make_trace, write_tables):
    """Write an unfinished run; `lacking` of its problems have not been visited in the last pass."""

    def run(
        place="run", arm="ttrl", seed=0, n_replicates=1, n_problems=3, n_visits=4, truth=True,
        lacking=0, **changes
    ):  # fmt: skip
        accuracy = np.full((n_replicates, n_problems, n_visits), 0.6 if truth else np.nan)
        scores = np.linspace(0.6, 0.5, n_visits) if truth else np.full(n_visits, np.nan)
        seeds = [seed] * n_replicates
        trace = make_trace(arm, accuracy, [scores] * n_replicates, seeds=seeds, **changes)
        late = (trace.visits["visit"] == n_visits - 1) & (trace.visits["problem"] < lacking)
        folder = RunFolder.create(tmp_path / place, trace.run)
        trace.visits = trace.visits[~late]
        write_tables(folder, trace)
        folder.note(progress=n_visits / 20)
        folder.flush()
        return tmp_path / place

    return run


def report(folder, kind, output, capsys):
    """What the command prints, and the text of the file that it writes."""
    assert main([str(folder), "--format", kind, "-o", str(output)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out, output.read_text() if output.is_file() else ""


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("shape", "kind"),
    [*((shape, "md") for shape in SHAPES), ("one-visit", "csv"), *((s, "html") for s in PAGES)],
)
def test_every_format_of_a_young_run(write, tmp_path, capsys, shape, kind):
    write(**SHAPES[shape])
    out, text = report(tmp_path, kind, tmp_path / "output", capsys)
    if kind == "csv":
        assert (tmp_path / "output" / "sim-test-dynamics.csv").exists()
        return
    text = text if kind == "md" else out
    assert ", seed 0: running or killed at" in text
    needs = re.search(r", seed 0: a problem has (\d+) visits? so far; fates, .* need 8", text)
    assert (needs is None) == (not SHAPES[shape].get("truth", True))
    if needs:
        assert int(needs[1]) == SHAPES[shape]["n_visits"] - 1


def test_the_page_says_what_needs_more_visits(write, tmp_path, capsys):
    write(n_visits=5)
    _, page = report(tmp_path, "html", tmp_path / "page.html", capsys)
    lacking = dict.fromkeys(("fates", "lost", "scissor"), "needs at least 8 visits")
    for name, words in {**lacking, "progress": "data-figure", "window": "data-figure"}.items():
        assert words in page.split(f'id="{name}"')[1].split("</section>")[0]
    assert 'id="life-0-0-0"' in page


def test_a_replicate_without_fates_does_not_cost_the_others_theirs(write, tmp_path):
    for seed, n_visits in enumerate((10, 10, 4)):
        write(f"ttrl/{seed}", seed=seed, n_visits=n_visits)
        write(f"guard/{seed}", "guard", seed=seed, n_visits=10)
    ((world,), skipped) = read([tmp_path])
    assert not skipped
    found = metrics(world.comparison)
    assert np.isfinite(found.loc["guard"]["TotalDeg"]).all()
    assert list(np.isfinite(found.loc["ttrl"]["TotalDeg"])) == [True, True, False]
    assert np.isfinite(found.loc["ttrl"]["pass_final"]).all()
    saved = pd.Series(world.pairs["ttrl"].set_index(["arm", "metric"])["n"])
    assert (saved["guard", "TotalDeg"], saved["guard", "pass_final"]) == (2, 3)
    assert [note for note in world.notes if "need 8" in note] == [
        "TTRL, seed 2: a problem has 3 visits so far; fates, TotalDeg, L/D, lost problems and the "
        "scissor need 8"
    ]


def test_arms_that_are_short_alike_share_one_notice(write, tmp_path, capsys):
    for arm, n_visits in (("ttrl", 3), ("guard", 3), ("memory", 4)):
        write(arm, arm, n_visits=n_visits)
    out, page = report(tmp_path, "html", tmp_path / "page.html", capsys)
    needs = "so far; fates, TotalDeg, L/D, lost problems and the scissor need 8"
    for note in (
        f"TTRL, TTRL-Guard, seed 0: a problem has 2 visits {needs}",
        f"Vote memory, seed 0: a problem has 3 visits {needs}",
    ):
        assert out.count(note) == 1 and page.count(note) == 2  # on top, and with the runs
    assert out.count(needs) == 2 and page.count(needs) == 4


def test_a_run_in_the_midst_of_its_eighth_pass_has_no_fates_yet(write, tmp_path):
    write(n_visits=9, lacking=2)
    ((world,), _) = read([tmp_path])
    assert world.metrics["TotalDeg"].isna().all()
    assert "a problem has 7 visits so far" in world.notes[-1]


@pytest.mark.filterwarnings("error")
def test_rules_at_several_step_sizes_before_they_have_made_a_step(write, tmp_path, capsys):
    for arm in ("ttrl", "rent"):
        for step in (0.1, 0.2):
            folder = write(f"{arm}/{step}", arm, n_visits=2, config={"step": step})
            (folder / "steps" / "part-00000.parquet").unlink()
    assert "## Rules" in report(tmp_path, "md", tmp_path / "page.md", capsys)[1]


def test_the_progress_counts_from_the_epochs_that_were_planned(write, tmp_path):
    write(n_visits=4, config={"step": 0.1, "epochs": 6})
    ((world,), _) = read([tmp_path])
    assert world.dynamics["progress"].max() == 0.5


def cells_of(page, row):
    text = page.split(f">{row}<")[1].split("</tr>")[0]
    return [re.sub("<[^>]+>", "", cell) for cell in re.findall("<td>(.*?)</td>", text)]


def test_what_nobody_measured_is_not_said_to_have_never_happened(write, tmp_path, capsys):
    write(truth=False, n_visits=12)
    write("begun", "guard", n_visits=1)
    _, page = report(tmp_path, "html", tmp_path / "page.html", capsys)
    assert cells_of(page, "pass@1 drops for good (epoch)") == ["not measured"] * 2
    assert cells_of(page, "flip rate collapses (epoch)") == ["never", "not measured"]


def test_a_number_of_some_replicates_says_of_how_many(make_trace, save, tmp_path):
    lost = [1.0] * 4 + [0.0] * 6
    for arm, seed, n_visits in (("ttrl", 0, 10), ("ttrl", 1, 10), ("ttrl", 2, 4), ("guard", 0, 4)):
        trace = make_trace(arm, [[lost[:n_visits]]], [[0.5] * n_visits], seeds=[seed])
        save(trace, tmp_path / f"{arm}-{seed}")
    table = page(*read([tmp_path])).split('id="table"')[1]
    row = 'TotalDeg<span class="spread"> (% of problems)'
    assert cells_of(table, row) == ["100.0 ± 0.0 (2 of 3)", "not measured"]
    row = 'L/D<span class="spread"> (ratio)'
    assert cells_of(table, row) == ["0.000 ± 0.000 (2 of 3)", "not measured"]


@pytest.mark.filterwarnings("error")
def test_a_guard_that_has_not_trained_yet_stands_beside_a_run_that_has(write, tmp_path, capsys):
    write(n_visits=12)
    write("begun", "guard", n_visits=1, config={"step": 0.1, "guard": {"frs": True}})
    _, page = report(tmp_path, "html", tmp_path / "page.html", capsys)
    section = page.split('id="guard"')[1].split("</section>")[0]
    assert "No visit of training so far." in section
