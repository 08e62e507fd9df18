"""The regime chart, and the table that `guard-sim theory` prints."""

import numpy as np
import pytest

from lab.cli import run_cli
from sim.commands import Theory
from sim.theory import lock_in, regime_chart
from sim.theory.tables import COLUMNS, as_text, drawn_table


def test_the_chart_covers_all_regimes():
    chart = regime_chart((0.3, 0.5, 0.53, 0.7), (0.25, 4.0), n_votes=16, n_samples=8)
    assert len(chart) == 8
    assert set(chart["regime"]) == {"kept", "lost", "slow", "sudden"}
    row = chart[(chart["p0"] == 0.53) & (chart["step_sqrt_votes"] == 4.0)].iloc[0]
    assert row["step"] == 1.0
    assert row["lost"] == pytest.approx(lock_in(0.53, 1.0, 16, 8))
    assert row["lost_diffusion"] == pytest.approx(lock_in(0.53, 1.0, 16, 8, method="diffusion"))
    assert row["form"] == "first move"
    slow = chart[chart["regime"] == "slow"]
    assert set(slow["form"]) == {"diffusion"}
    assert (slow["visits"] >= 5).all()
    assert (chart.loc[chart["regime"] == "sudden", "visits"] < 5).all()


def test_the_table_agrees_with_itself():
    table = drawn_table((0.45, 0.55), (0.3,), 16, 8, n_runs=4000, seed=1)
    assert tuple(table.columns) == COLUMNS
    assert len(table) == 14
    within = (table["low"] <= table["exact"]) & (table["exact"] <= table["high"])
    assert (within == table["inside"]).all()
    # Of 14 intervals of 95 % fewer than ten hold the truth with a chance of one in two thousand.
    assert within.sum() >= 10
    again = drawn_table((0.45, 0.55), (0.3,), 16, 8, n_runs=4000, seed=1)
    assert np.array_equal(table["drawn"], again["drawn"])
    text = as_text(table)
    assert f"in {int(within.sum())} of 14 rows" in text
    assert text.count("P(ends wrong)") == 2


def test_the_command_prints_draws_or_the_chart(capsys: pytest.CaptureFixture[str]):
    for words, shown in (
        ("--p0 0.55 --step 0.3 --n-votes 16 --runs 1000", f"{lock_in(0.55, 0.3, 16, 8):.4f}"),
        ("--chart --n-votes 8", "regime"),
    ):
        argv = ["theory", "--n-samples", "8", *words.split()]
        assert run_cli("guard-sim", {"theory": Theory}, argv) == 0
        assert shown in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", ["--p0 1.5", "--step 0", "--n-votes 8", "--runs 0", "--seed -1", "--p0"]
)
def test_mistakes_are_one_line(words: str, capsys: pytest.CaptureFixture[str]):
    assert run_cli("guard-sim", {"theory": Theory}, ["theory", *words.split()]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("guard-sim: theory:")
    assert shown.count("\n") == 1
