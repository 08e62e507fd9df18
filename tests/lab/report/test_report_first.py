import re

import numpy as np
import pandas as pd
import pytest
from page_parts import figures_of, without_scripts

from lab.__main__ import main
from lab.base.arms import about, title
from lab.compare.collection import GRID, RESULTS
from lab.report.digest import missing, overview, read, step_studies
from lab.report.export import tables
from lab.report.markdown import markdown
from lab.report.page import page

EVIL = "<img src=x onerror=alert(1)></script>|`"


def first_of(content):
    """The first screen of a page as text."""
    plain = without_scripts(content)
    return plain.split('class="first"')[1].split("<nav")[0]


def rows_of(plain):
    """Cells of every table row."""
    rows = re.findall("<tr>(.*?)</tr>", plain)
    return [[re.sub("<[^>]+>", "", c) for c in re.findall("<t[hd].*?</t[hd]>", r)] for r in rows]


def add_grid(folder, arms=("ttrl", "guard", "frozen"), policies=("attractor", "independent")):
    """Four replicates of every arm at three steps; the guard gains at none, frozen labels at .1."""
    gains = {"ttrl": -9.0, "guard": -4.0, "frozen": 2.0}  # attractor alone
    rows = [
        {"policy": policy, "step": step, "arm": arm, "replicate": r, "status": "done"}
        | {"pass_start": 50.0 + r, "TotalDeg": 1.0, "reason": ""}
        | {"pass_final": 50.1 + r + gains.get(arm, 0.0) * (policy == "attractor") * step}
        for policy in policies
        for step in (0.01, 0.1, 1.0)
        for arm in arms
        for r in range(4)
    ]
    (folder / GRID).mkdir()
    pd.DataFrame(rows).to_csv(folder / GRID / RESULTS, index=False)


@pytest.fixture
def studied(add_run, tmp_path):
    for name in ("ttrl", "guard", "frozen"):
        config = {"policy": "attractor", "seed": 0, "step": 0.1}
        add_run(tmp_path / name, name, n_replicates=4, config=config)
    return tmp_path


def test_one_row_per_arm_on_the_page_in_markdown_and_in_tables(worlds):
    world = worlds[1]
    content = page([world], [])
    shown = first_of(content)
    found = {row[0]: row for row in rows_of(shown)}
    text = markdown([world])
    csv = dict(tables(world))["arms"].set_index("arm")
    vote, *arms = overview(world).to_dict("records")
    start = world.metrics["maj_start"].groupby("replicate").first()
    assert vote["arm"] == "vote" and vote["pass_final"].mean == pytest.approx(start.mean())
    assert found[vote["title"]][2].startswith(f"{start.mean():.1f} ± ")
    for row in arms:
        cells = found[row["title"]]
        assert cells[1].startswith(f"{row['pass_start'].mean:.1f} ± ")
        assert cells[2].startswith(f"{row['pass_final'].mean:.1f} ± ") and cells[-1] == "3"
        gap = cells[3].replace("[", "\\[")
        over = world.metrics.loc[row["arm"], "pass_final"] - start
        assert row["over_vote"].mean == pytest.approx(over.mean())
        assert cells[4].startswith(f"{over.mean():+.1f} [")
        assert any(cells[2] in line and gap in line for line in text.splitlines()[:10])
        assert csv.loc[row["arm"], "pass_final"] == pytest.approx(row["pass_final"].mean)
    assert found["TTRL"][3] == "" and "<strong>+" in shown
    assert csv.loc["frozen", "against_low"] > 0
    assert "real-tiny-first-data" in figures_of(content)


def test_what_is_missing_is_one_line_with_a_command(add_run, tmp_path):
    for name in ("ttrl", "guard"):
        add_run(tmp_path / name, name, world="real", task="tiny")
    shown = first_of(page(*read([tmp_path])))
    assert shown.count("Not measured") == 1
    assert "guard-train compare --arms ttrl guard matched frozen memory --out FOLDER" in shown
    assert "guard-train compare --arms ttrl guard matched" in markdown(read([tmp_path])[0])


@pytest.mark.parametrize("given", ["--arms ttrl guard --out a", "--arms=ttrl --arms guard --out=a"])
def test_the_command_that_adds_arms_gives_each_option_once(given, add_run, tmp_path):
    for name in ("ttrl", "srt+custom"):  # no command knows a custom arm
        add_run(tmp_path / name, name)
    (world,), _ = read([tmp_path])
    shown = "guard-sim compare --arms ttrl guard matched frozen memory --seed 3 --out NEW-FOLDER"
    for program in ("guard-sim", "python -m sim"):
        world.comparison.manifests[0].command = f"{program} compare {given} --seed 3"
        assert missing(world)[1] == shown


@pytest.mark.parametrize("world", ["real", "sim"])
def test_unread_answers_of_a_model_are_counted_and_flagged_above_one_half(
    world, make_trace, save, tmp_path
):
    for name, share in (("ttrl", 0.75), ("guard", 0.25)):
        trace = make_trace(name, np.full((1, 2, 10), 0.2), np.full((1, 10), 0.2), world=world)
        votes = trace.visits["n_votes"]
        trace.visits["n_unparseable"] = (share * votes).astype("int32")
        save(trace, tmp_path / name)
    content = without_scripts(page(*read([tmp_path])))
    header = content.split("</header>")[0]
    if world == "sim":  # a setting of the run
        assert "readable answer" not in header + first_of(content)
        return
    assert "TTRL: 75 % of the responses have no readable answer" in header
    assert "--prompt-suffix" in header and "TTRL-Guard:" not in header
    assert "Responses without a readable answer: 50.0 %" in first_of(content)


def test_step_sizes_own_best_and_null_model_are_on_the_first_screen(studied, capsys):
    add_grid(studied)
    worlds, skipped = read([studied])
    content = page(worlds, skipped)
    shown = first_of(content)
    found = {row[0]: row for row in rows_of(shown.split("Step sizes")[1])}
    steps = ["51.6", "51.8", "53.6", "1", "53.6 ± 1.3"]
    assert found["Frozen labels"][1:] == [*steps, "+2.1 [+2.1, +2.1]", "1.0 ± 0.0"]
    assert found["TTRL, uncoupled problems"][3] == "51.6"
    rival = "TTRL-Guard at its best minus the best rival at its best (Frozen labels at 1): pass@1"
    assert f"{rival} -2.0 [-2.0, -2.0] points, below zero beyond noise (4 pairs)" in shown
    assert "warning: the best step of Frozen labels is the largest of the grid" in shown
    text = markdown(worlds)
    assert "minus the best rival" in text and "| TTRL, uncoupled problems | 51.6 |" in text
    assert len(dict(tables(worlds[0]))["steps"]) == 2 * 3 * 3 * 4
    assert main([str(studied)]) == 0
    assert "minus the best rival at its best" in capsys.readouterr().out


def test_a_null_model_alone_has_its_rows(studied):
    add_grid(studied)
    path = studied / GRID / RESULTS
    rows = pd.read_csv(path)
    rows[rows["step"] == 0.1].to_csv(path, index=False)
    shown = first_of(page(*read([studied])))
    assert "TTRL, uncoupled problems" in shown and "own best" not in shown


def test_only_grids_inside_the_given_folders_are_read(studied):
    add_grid(studied)
    assert "Step sizes" not in page(*read([studied / "ttrl", studied / "guard"]))


def test_a_damaged_or_hostile_grid_harms_nothing(studied):
    add_grid(studied, arms=("ttrl", EVIL), policies=("attractor", EVIL))
    content = page(*read([studied]))
    assert "<img" not in content and "&lt;img src=x" in first_of(content)
    assert "<img" not in markdown(read([studied])[0])
    (studied / GRID / RESULTS).write_bytes(b"PAR1\xff")
    worlds, skipped = read([studied])
    assert [item.folder.name for item in skipped] == [GRID] and worlds[0].comparison.grid is None


def test_every_named_arm_is_described():
    for arm in ("random_skip", "matched_scope+guard", "scope", "kl", "recommended", "frs"):
        assert len(about(arm)) > 20 and "settings of its own" not in about(arm)


def test_a_study_of_step_sizes_is_of_no_single_one_and_counts_every_seed_once(add_run, tmp_path):
    for step, seed in ((0.1, 0), (0.1, 1), (0.2, 0)):
        add_run(tmp_path / f"{step}-{seed}", "ttrl", seed, config={"step": step, "seed": seed})
    worlds, _ = read([tmp_path])
    (study,) = step_studies(worlds)
    assert study.name == "Step sizes: Simulator: test"
    first, second = worlds[0].metrics["pass_start"]
    name, *cells = study.table().rows[0]
    assert name == "No training" and abs(first - second) > 1
    assert cells[0] == f"{(first + second) / 2:.1f}"


def test_the_vote_before_training_stands_among_the_arms_over_step_sizes(studied):
    add_grid(studied, ("ttrl", "maj_at_n"))
    path = studied / GRID / RESULTS
    pd.read_csv(path).assign(maj_start=62.0).to_csv(path, index=False)
    (study,) = step_studies(read([studied])[0])
    rows = [["Vote before training", *["62.0"] * 3, "", "62.0", "", ""]]
    assert study.table().rows[1:2] == rows
    votes = study.table().rows[3]
    assert votes[0] == title("maj_at_n") and votes[4] == ""  # it trains at no step size
