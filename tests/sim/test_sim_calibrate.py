from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from guard_core import GuardConfig
from lab.arm_settings import with_arm
from lab.base.arms import arm
from lab.base.errors import UserError
from lab.cli import run_cli
from lab.measures import MEASURES
from sim.commands import Calibrate, Compare
from sim.engine.run import measure
from sim.studies import calibrate as c
from sim.studies import jobs, paper

SMALL = c.TableRow("made-up", 60, 10, (0,) * 5, (0,) * 5)
TINY = c.FitBudget(candidates=3, rounds=1, population=14, mechanism=6, problems=240)


def test_parameters_reach_their_bounds_and_start_at_the_named_law():
    for mechanism in c.MECHANISMS.values():
        for p in (*mechanism.parameters, *c.POPULATION):
            assert (p.value(0.0), p.value(1.0)) == pytest.approx((p.low, p.high))
            assert p.value(p.unit(p.start)) == pytest.approx(p.start)
            assert p.unit(p.low / 2 - 1) == 0.0
    assert isinstance(c.MECHANISMS["features"].parameters[-1].value(0.37), int)
    found = c.values(c.POPULATION, c.population_start(c.ROWS["llama-amc"]))
    assert found == pytest.approx({"ability_mean": 0.34, "ability_concentration": 0.3})


def test_the_readings_differ_in_the_fates_alone():
    numbers = {"step": 0.06, "ability_mean": 0.5, "ability_concentration": 2.0}
    config = c.row_config(c.MECHANISMS["independent"], SMALL, numbers, 2, 3)
    share, majority = (measure(config, c.READINGS[r]) for r in ("share", "majority"))
    pd.testing.assert_frame_equal(share, measure(config))
    # A majority is right or wrong, so far fewer problems lie in between.
    assert (majority["Marginal Stable"] < share["Marginal Stable"]).all()
    assert (majority["pass_final"] == share["pass_final"]).all()


def test_the_fit_recovers_a_known_row():
    mechanism = c.MECHANISMS["independent"]
    numbers = {"step": 0.06, "ability_mean": 0.7, "ability_concentration": 1.0}
    config = c.row_config(mechanism, SMALL, numbers, 4, 5)
    table = measure(with_arm(config, arm("ttrl")))
    truth = tuple(table[cell].mean() for cell in c.CELLS)
    row = SMALL._replace(ttrl=truth)
    found = c.fit(mechanism, [row], "share", 6, TINY)
    assert found.populations["made-up"]["ability_mean"] == pytest.approx(0.7, abs=0.1)
    starts = {p.name: p.start for p in (*mechanism.parameters, *c.POPULATION)}
    start = c.row_config(mechanism, row, starts, 4, 6)
    before = c.mean_error(measure(with_arm(start, arm("ttrl"))), truth)
    assert found.loss < min(3.0, before / 2)
    assert c.fit(mechanism, [row], "share", 6, TINY) == found


def test_the_guard_row_is_not_looked_at():
    row = c.ROWS["qwen-aime25"]._replace(epochs=8)
    budget = replace(c.QUICK, candidates=2, population=3, mechanism=3, problems=60)
    other = row._replace(guard=(20.0, 20.0, 20.0, 20.0, 20.0))
    found = [c.fit(c.MECHANISMS["attractor"], [r], "majority", 1, budget) for r in (row, other)]
    assert found[0] == found[1]


def test_predictions_are_paired_and_matched_in_effort():
    row = c.ROWS["llama-amc"]
    own = {row.name: {"ability_mean": 0.34, "ability_concentration": 0.3}}
    mechanism = c.MECHANISMS["attractor"]
    budget = replace(c.QUICK, candidates=1, population=1, mechanism=1, problems=83)
    found = c.fit(mechanism, [row], "share", 1, budget)._replace(populations=own)
    table = c.predict(found, [row], "share", 3, 2)
    assert list(dict.fromkeys(table["arm"])) == ["ttrl", "guard", "matched"]
    assert table.groupby("arm")["pass_start"].apply(list).map(tuple).nunique() == 1
    ratio = table.loc[table["arm"] == "matched", "achieved_ratio"]
    means = table.groupby("arm")["update_norm"].mean()
    assert ratio.iloc[0] == pytest.approx(means["matched"] / means["guard"])
    assert ratio.iloc[0] == pytest.approx(1, abs=0.05)


def test_errors_by_hand():
    row = c.TableRow("r", 10, 8, (50, 10, 0, 20, 20), (40, 10, 0, 30, 20))
    shares = {
        "ttrl": [(52, 10, 0, 18, 20), (56, 10, 0, 14, 20)],
        "guard": [(44, 10, 0, 26, 20), (44, 14, 0, 22, 20)],
        "matched": [(40, 10, 0, 30, 20), (40, 10, 0, 30, 20)],
    }
    lines = [
        {"row": "r", "arm": name, "replicate": r, **dict(zip(c.CELLS, values, strict=True))}
        for name, runs in shares.items()
        for r, values in enumerate(runs)
    ]
    table = pd.DataFrame(lines)
    found = c.summary(table, [row], 0).set_index("kind")
    assert found.index.tolist() == list(c.KINDS)
    # ttrl: means (54, 10, 0, 16, 20); guard: (44, 12, 0, 24, 20).
    assert found.loc["ttrl", "error"] == pytest.approx((4 + 0 + 0 + 4 + 0) / 5)
    assert found.loc["guard", "error"] == pytest.approx((4 + 2 + 0 + 6 + 0) / 5)
    # shift: (50, 10, 0, 20, 20) + (-10, 2, 0, 8, 0) = (40, 12, 0, 28, 20).
    assert found.loc["shift", "error"] == pytest.approx((0 + 2 + 0 + 2 + 0) / 5)
    assert found.loc["matched", "error"] == 0
    assert found.loc["copy", "error"] == pytest.approx((10 + 10) / 5)
    assert found.loc["guard", "low"] <= found.loc["guard", "error"] <= found.loc["guard", "high"]
    cells = c.cell_errors(table, [row]).set_index(["kind", "cell"])
    assert cells.loc[("guard", "Stable Always Right"), "error"] == pytest.approx(6)
    assert cells.loc[("guard", "Marginal Degraded"), "sd"] == pytest.approx(np.sqrt(8))
    one = table[table["replicate"] == 0]
    assert c.summary(one, [row], 0)[["low", "high"]].isna().all(axis=None)
    assert c.cell_errors(one, [row])["sd"].isna().all()
    shown = c.summary(one, [row], 0).assign(mechanism="attractor", reading="share")
    assert "[" not in c.error_table(shown, 1)


SMALL_RUN = c.Calibration(
    rows=[c.ROWS[name]._replace(epochs=8) for name in ("llama-aime24", "qwen-aime25")],
    mechanisms=[c.MECHANISMS[name] for name in ("independent", "spread")],
    budget=c.FitBudget(candidates=1, rounds=1, population=3, mechanism=2, problems=60),
    replicates=2,
    fits=1,
)


def test_the_tables_agree_with_the_files(tmp_path: Path):
    text = c.run_calibration(SMALL_RUN, tmp_path / "c")
    assert (tmp_path / "c" / "table.md").read_text(encoding="utf-8") == text
    read = {p.stem: pd.read_parquet(p) for p in (tmp_path / "c").glob("*.parquet")}
    assert len(read["summary"]) == 2 * 2 * 5
    copied = read["summary"].query("kind == 'copy'")["error"]
    # |guard - TTRL| of the two rows: (3.3, 0, 3.4, 3.4, 3.4) and (3.3, 3.3, 3.3, 6.7, 3.4).
    assert copied.to_numpy() == pytest.approx((13.5 + 20.0) / 10)
    assert "| independent | share | 5 / 10 |" in text
    assert "| spread | majority | 9 / 10 |" in text
    means = read["cells"].query("kind == 'guard'").groupby(["mechanism", "reading"])["error"].mean()
    of = read["summary"].query("kind == 'guard'").set_index(["mechanism", "reading"])["error"]
    pd.testing.assert_series_equal(means.sort_index(), of.sort_index())
    assert len(read["predictions"]) == 2 * 2 * 2 * 3 * 2
    assert (read["parameters"]["row"] == "").sum() == 2 * (1 + 5)
    with pytest.raises(UserError, match="is not empty"):
        c.run_calibration(SMALL_RUN, tmp_path / "c")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: c.chosen("rows", ("gpt",), c.ROWS), "rows 'gpt': unknown, use one of llama-math"),
        (lambda: c.chosen("rows", ("llama-amc",) * 2, c.ROWS), "rows: llama-amc is there twice"),
        (lambda: replace(SMALL_RUN, fits=0), "fits = 0"),
        (lambda: replace(SMALL_RUN, seed=-1), "seed = -1"),
    ],
)
def test_bad_names_and_numbers_are_told(ask, message):
    with pytest.raises(UserError, match=message):
        ask()


@pytest.mark.parametrize(
    ("words", "numbers"),
    [("", (16, 2)), ("--quick", (4, 1)), ("--quick --fits 3 --replicates 9", (9, 3))],
)
def test_numbers_that_are_given_hold_in_a_quick_calibration_too(words, numbers, monkeypatch):
    asked_for = []
    monkeypatch.setattr(c, "run_calibration", lambda study, *_, **__: asked_for.append(study))
    assert (
        run_cli("guard-sim", {"calibrate": Calibrate}, ["calibrate", "--out", "x", *words.split()])
        == 0
    )
    assert [(study.replicates, study.fits) for study in asked_for] == [numbers]


@pytest.fixture
def guards(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, GuardConfig]]:
    """Population and guard of every run; the runs themselves are made up."""
    found = []

    def measure(config):
        found.append((config.population, config.guard))
        values = {cell: [10.0, 30.0] for cell in paper.CELLS} | {"pass_final": [40.0, 44.0]}
        made = pd.DataFrame(values, pd.RangeIndex(2, name="replicate"))
        return made.reindex(columns=list(MEASURES))

    monkeypatch.setattr(jobs, "measure", measure)
    return found


def test_every_printed_cell_is_there_once(guards, tmp_path: Path, capsys):
    argv = ["compare", "--preset", "paper", "--replicates", "2", "--out", str(tmp_path), "--quiet"]
    commands = {"compare": Compare, "again": Compare}
    assert run_cli("guard-sim", commands, argv) == 0
    printed = capsys.readouterr().out
    assert "120 printed fates, 84 printed pass@1" in printed
    table = pd.read_csv(tmp_path / paper.TABLE, comment="#")
    assert not table.duplicated(["row", "kind", "cell"]).any() and len(guards) == 12 * 7
    own = table[(table["row"] == "llama-math500") & (table["cell"] == "Degraded")]
    assert dict(zip(own["kind"], own["published"], strict=True)) == {
        "ttrl": 53.8,
        **dict.fromkeys(("guard", "guard,flip_rate=instant", "guard_release"), 24.0),
    }
    made = dict.fromkeys(name for name, _ in guards)
    scripts = {name: [g for n, g in guards if n == name][3] for name in made}
    assert all(scripts[name] == GuardConfig.release_scripts(name) for name in made)
    errors = paper.paper_errors(table).set_index("arm")
    guard = table[(table["kind"] == "guard") & (table["cell"] != paper.PASS)]
    assert errors.loc["guard", "fates"] == pytest.approx((guard.published - 20).abs().mean())
    assert errors.loc["ttrl", "change"] == 0 and errors.loc["frs", "n_fates"] == 0
    assert "known to be off" in (tmp_path / paper.PAGE).read_text()
    # The table is kept, and refused with other settings.
    assert run_cli("guard-sim", commands, argv) == 0 and len(guards) == 84
    assert run_cli("guard-sim", commands, [*argv, "--seed", "5"]) == 2
    assert "settings.seed = 5 (was 0)" in capsys.readouterr().err


def test_a_single_replicate_of_a_printed_cell_has_no_spread():
    one = dict.fromkeys((*paper.CELLS, "pass_final"), 10.0) | {"row": "llama-math500"}
    table = paper.paper_table(pd.DataFrame([one | {"arm": "ttrl"}]))
    assert len(table) and (table["predicted"] == 10).all() and table["sd"].isna().all()
