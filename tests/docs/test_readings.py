"""The study of the guard's readings: draws given TTRL rows, and the analysis of real runs."""

import numpy as np
import pandas as pd
import pytest

from lab.base.arms import arm
from lab.compare.published import fits_row


def test_a_row_fits_within_the_sampling_error_of_both():
    target = (50.0, 0.0, 0.0, 50.0, 0.0)
    # Two samples of 50 with shares of .6 in the mean: two standard errors are 19.6 points.
    rows = np.array(
        [[69.0, 0, 0, 31, 0], [70.0, 0, 0, 30, 0], [50.0, 2, 0, 48, 0], [50.0, 8, 0, 42, 0]]
    )
    assert fits_row(rows, target, 50).tolist() == [True, False, True, False]
    assert not fits_row(np.full(5, np.nan), target, 50)


@pytest.fixture
def draws(tool, monkeypatch, tmp_path):
    """Two draws of 2 populations on one small row, made in two calls."""
    made = tool("readings")
    monkeypatch.setattr(made, "TRIES", 2)
    row = made.ROWS["qwen-aime25"]._replace(epochs=8, ttrl=(0.0, 0.0, 0.0, 10.0, 80.0))
    monkeypatch.setattr(made, "ROWS", {row.name: row})
    monkeypatch.setattr(made, "DRAWS", tmp_path / "draws.csv")
    monkeypatch.setattr(made, "fits_row", lambda cells, *_: np.array([False, True]))
    made.draw(1)
    made.draw(3)
    return made


def test_draws_go_on_and_their_runs_are_paired(draws):
    table = pd.read_csv(draws.DRAWS)
    assert table["draw"].tolist() == [0, 1, 2]
    assert table["policy"].tolist() == ["attractor", "attractor", "features"]
    assert table.loc[0, "kappa_att":"neg_transfer"].notna().all() and table["accepted"].eq(1).all()
    (again,) = draws.drawn(1)
    assert again["ttrl: Degraded"] == pytest.approx(table.loc[1, "ttrl: Degraded"], rel=1e-4)
    shares = table[[f"{r}: Always Wrong" for r in draws.RUNS]]
    assert shares.notna().all(axis=None)


def test_weights_are_the_shares_that_fit(tool, monkeypatch, tmp_path):
    page = tool("readings")
    lines = []
    for draw, accepted in ((0, (4, 2)), (1, (8, 0)), (2, (2, 2))):
        for row, n in zip(("llama-math500", "llama-amc"), accepted, strict=True):
            cells = {f"{r}: {c}": 10.0 * draw for r in page.RUNS for c in page.CELLS}
            line = {"draw": draw, "policy": "attractor", "row": row, "tries": 8, "accepted": n}
            lines.append(line | {"step": draw, **(cells if n else {})})
    pd.DataFrame(lines).to_csv(tmp_path / "draws.csv", index=False)
    monkeypatch.setattr(page, "DRAWS", tmp_path / "draws.csv")
    alone = page.weighted("llama-math500", False).set_index("draw")["weight"]
    assert alone.to_dict() == pytest.approx({0: 4 / 14, 1: 8 / 14, 2: 2 / 14})
    both = page.weighted("llama-math500", True).set_index("draw")["weight"]
    assert both.to_dict() == pytest.approx({0: 8 / 12, 2: 4 / 12})
    first = page.predictions().rows[0]
    assert first[1] == "3 (2)" and first[4].startswith("10.0 [0.0, 20.0]; 0 %")


def test_readings_are_analysed_over_whole_rounds_with_sets_as_clusters(tool):
    page = tool("protocol_page")
    sets, rows = range(50, 62), []
    names = ["ttrl", "guard", "guard: flip_rate=instant", "guard_release"]
    names += ["guard_release: frs=false", "memory"]
    names += ["permuted: flip_rate=instant", "replayed: flip_rate=instant"]
    for place in (0, 1):
        for number in sets:
            for name in names:
                gain = {"guard": number - 50.0, "guard_release": 10 + number % 2}.get(name, 0)
                row = {"task": "arithmetic", "lr": 3e-4, "problem_seed": number, "place": 0}
                row |= {"seed": 10 * number + place, "arm": arm(name).name}
                rows.append(row | {"pass_final": 50 + gain + 2 * place * (name == "guard")})
    whole = pd.DataFrame(rows)
    lines = page.comparisons(whole).set_index(["cell", "comparison"])
    # Means of the sets are 1, 2, ..., 12: sd 3.606, t(11) at 1 - .05/8 two-sided 3.37.
    found = lines.loc["arithmetic, 0.0003", "`guard` minus `ttrl`"]
    assert found.pairs == 24 and found.shown.startswith("**+6.5 [") and found.conclusion == "helps"
    assert (found.high - found.low) / 2 == pytest.approx(3.37 * 3.606 / 12**0.5, abs=0.02)
    lines = page.comparisons(whole.drop(index=len(whole) - 1)).set_index(["cell", "comparison"])
    assert lines.loc["arithmetic, 0.0003", "`guard` minus `ttrl`"].pairs == 12
    assert lines.loc["collatz, 0.0003", "`guard` minus `ttrl`"].shown == "no whole round"
