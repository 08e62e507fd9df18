"""Fit and prediction, on rows that are small or made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lab.arm_settings import with_arm
from lab.base.arms import arm
from lab.base.errors import UserError
from sim.engine.run import measure
from sim.studies.calibrate import (
    CELLS,
    MECHANISMS,
    ROWS,
    Budget,
    Row,
    cell_errors,
    fit,
    predict,
    summary,
)
from sim.studies.calibrate.fitting import QUICK, mean_error, measure_reading, readings_named
from sim.studies.calibrate.mechanisms import (
    POPULATION,
    USUAL,
    mechanisms_named,
    population_start,
    row_config,
)
from sim.studies.calibrate.prediction import KINDS
from sim.studies.calibrate.published import odd_cells, rows_named

SMALL = Row("made-up", "Made up", 60, 10, (0,) * 5, (0,) * 5, (0, 0, 0))
TINY = Budget(candidates=3, rounds=1, population=14, mechanism=6, problems=240)


def test_cells_that_are_no_whole_number_of_problems() -> None:
    odd = {name: odd_cells(row) for name, row in ROWS.items() if odd_cells(row)}
    names = ("Degraded", "Marginal Degraded", "Stable Always Right")
    assert odd == {"llama-amc": [("guard", name) for name in names]}


def test_parameters_reach_their_bounds_and_come_back() -> None:
    for mechanism in MECHANISMS.values():
        for p in (*mechanism.parameters, *mechanism.population):
            assert (p.value(0.0), p.value(1.0)) == pytest.approx((p.low, p.high))
            assert p.value(p.unit(p.start)) == pytest.approx(p.start)
            assert p.unit(p.low / 2 - 1) == 0.0
    dim = MECHANISMS["features"].parameters[-1]
    assert isinstance(dim.value(0.37), int)


def test_the_fit_starts_at_the_named_law() -> None:
    start = population_start(ROWS["llama-amc"])
    values = [p.value(u) for p, u in zip(POPULATION, start, strict=True)]
    assert values == pytest.approx([0.34, 0.3])


def test_the_mixture_has_a_second_group_of_problems() -> None:
    mechanism = MECHANISMS["mixture"]
    shared = mechanism.values(mechanism.start)
    start = population_start(ROWS["llama-amc"], mechanism.population)
    own = {p.name: p.value(float(u)) for p, u in zip(mechanism.population, start, strict=True)}
    assert own == pytest.approx(
        {"ability_mean": 0.34, "ability_concentration": 0.3, "middle_share": 0.05}
    )
    config = row_config(mechanism, SMALL, shared, own, 2, 3)
    assert config.population == "mixture"
    assert config.mixture == (
        pytest.approx((0.95, 0.34, 0.3)),
        pytest.approx((0.05, 0.6, 10.0)),
    )


def test_the_readings_differ_in_the_fates_alone() -> None:
    shared = {"step": 0.06}
    own = {"ability_mean": 0.5, "ability_concentration": 2.0}
    config = row_config(MECHANISMS["independent"], SMALL, shared, own, 2, 3)
    share, majority = (measure_reading(config, r) for r in ("share", "majority"))
    pd.testing.assert_frame_equal(share, measure(config))
    # A majority is right or wrong, so far fewer problems lie in between.
    assert (majority["Marginal Stable"] < share["Marginal Stable"]).all()
    assert (majority["pass_final"] == share["pass_final"]).all()


def test_the_fit_recovers_a_known_row() -> None:
    mechanism = MECHANISMS["independent"]
    own = {"ability_mean": 0.7, "ability_concentration": 1.0}
    config = row_config(mechanism, SMALL, {"step": 0.06}, own, 4, 5)
    table = measure_reading(with_arm(config, arm("ttrl")), "share")
    truth = tuple(table[cell].mean() for cell in CELLS)
    row = SMALL._replace(ttrl=truth)
    found = fit(mechanism, [row], "share", 6, TINY)
    assert found.own["made-up"]["ability_mean"] == pytest.approx(0.7, abs=0.1)
    start = row_config(
        mechanism,
        row,
        {"step": 0.06},
        {p.name: p.start for p in POPULATION},
        4,
        6,
    )
    before = mean_error(measure_reading(with_arm(start, arm("ttrl")), "share"), truth)
    assert found.loss < min(3.0, before / 2)
    assert fit(mechanism, [row], "share", 6, TINY) == found


def test_the_guard_row_is_not_looked_at() -> None:
    row = ROWS["qwen-aime25"]._replace(epochs=8)
    budget = replace(QUICK, candidates=2, population=3, mechanism=3, problems=60)
    other = row._replace(guard=(20.0, 20.0, 20.0, 20.0, 20.0))
    found = [fit(MECHANISMS["attractor"], [r], "majority", 1, budget) for r in (row, other)]
    assert found[0] == found[1]


def test_predictions_are_paired_and_matched_in_effort() -> None:
    row = ROWS["llama-amc"]
    own = {row.name: {"ability_mean": 0.34, "ability_concentration": 0.3}}
    mechanism = MECHANISMS["attractor"]
    budget = replace(QUICK, candidates=1, population=1, mechanism=1, problems=83)
    found = replace(fit(mechanism, [row], "share", 1, budget), own=own)
    table = predict(mechanism, found, [row], 3, 2)
    assert list(dict.fromkeys(table["arm"])) == ["ttrl", "guard", "matched"]
    assert table.groupby("arm")["pass_start"].apply(list).map(tuple).nunique() == 1
    ratio = table.loc[table["arm"] == "matched", "achieved_ratio"]
    means = table.groupby("arm")["update_norm"].mean()
    assert ratio.iloc[0] == pytest.approx(means["matched"] / means["guard"])
    assert ratio.iloc[0] == pytest.approx(1, abs=0.05)


def test_errors_by_hand() -> None:
    row = Row("r", "R", 10, 8, (50, 10, 0, 20, 20), (40, 10, 0, 30, 20), (0, 0, 0))
    shares = {
        "ttrl": [(52, 10, 0, 18, 20), (56, 10, 0, 14, 20)],
        "guard": [(44, 10, 0, 26, 20), (44, 14, 0, 22, 20)],
        "matched": [(40, 10, 0, 30, 20), (40, 10, 0, 30, 20)],
    }
    lines = [
        {"row": "r", "arm": name, "replicate": r, **dict(zip(CELLS, values, strict=True))}
        for name, runs in shares.items()
        for r, values in enumerate(runs)
    ]
    table = pd.DataFrame(lines)
    found = summary(table, [row], 0).set_index("kind")
    assert found.index.tolist() == list(KINDS)
    # ttrl: means (54, 10, 0, 16, 20); guard: (44, 12, 0, 24, 20).
    assert found.loc["ttrl", "error"] == pytest.approx((4 + 0 + 0 + 4 + 0) / 5)
    assert found.loc["guard", "error"] == pytest.approx((4 + 2 + 0 + 6 + 0) / 5)
    # shift: (50, 10, 0, 20, 20) + (-10, 2, 0, 8, 0) = (40, 12, 0, 28, 20).
    assert found.loc["shift", "error"] == pytest.approx((0 + 2 + 0 + 2 + 0) / 5)
    assert found.loc["matched", "error"] == 0
    assert found.loc["copy", "error"] == pytest.approx((10 + 10) / 5)
    assert found.loc["guard", "low"] <= found.loc["guard", "error"] <= found.loc["guard", "high"]
    cells = cell_errors(table, [row]).set_index(["kind", "cell"])
    assert cells.loc[("guard", "Stable Always Right"), "error"] == pytest.approx(6)
    assert cells.loc[("guard", "Marginal Degraded"), "sd"] == pytest.approx(np.sqrt(8))


def test_bad_names_and_budgets_are_told() -> None:
    with pytest.raises(UserError, match="rows 'gpt': unknown, use one of llama-math500"):
        rows_named(("gpt",))
    with pytest.raises(UserError, match="llama-amc is there twice"):
        rows_named(("llama-amc", "llama-amc"))
    with pytest.raises(UserError, match="mechanisms 'magic': unknown"):
        mechanisms_named(("magic",))
    assert [mechanism.name for mechanism in mechanisms_named(())] == list(USUAL)
    assert set(MECHANISMS) == {*USUAL, "mixture", "adam"}
    with pytest.raises(UserError, match="spread is there twice"):
        mechanisms_named(("spread", "spread"))
    with pytest.raises(UserError, match="readings 'votes': unknown"):
        readings_named(("votes",))
    with pytest.raises(UserError, match="rounds = 0: must be at least 1"):
        Budget(rounds=0)
    with pytest.raises(UserError, match="rows: give at least one"):
        fit(MECHANISMS["independent"], [], "share", 0, TINY)
