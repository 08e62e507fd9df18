import numpy as np
import pandas as pd
import pytest


def test_draws_go_on_and_their_runs_are_paired(tool, monkeypatch, tmp_path):
    made = tool("readings")  # of 2 populations on one small row
    monkeypatch.setattr(made, "TRIES", 2)
    row = made.ROWS["qwen-aime25"]._replace(epochs=8, ttrl=(0.0, 0.0, 0.0, 10.0, 80.0))
    monkeypatch.setattr(made, "ROWS", {row.name: row})
    monkeypatch.setattr(made, "DRAWS", tmp_path / "draws.csv")
    monkeypatch.setattr(made, "fits_row", lambda cells, *_: np.array([False, True]))
    made.draw(1)
    made.draw(3)
    table = pd.read_csv(made.DRAWS)
    assert table["draw"].tolist() == [0, 1, 2]
    assert table["policy"].tolist() == ["attractor", "attractor", "features"]
    assert table.loc[0, "kappa_att":"neg_transfer"].notna().all() and table["accepted"].eq(1).all()
    (again,) = made.drawn(1)
    assert again["ttrl: Degraded"] == pytest.approx(table.loc[1, "ttrl: Degraded"], rel=1e-4)
    shares = table[[f"{r}: Always Wrong" for r in made.RUNS]]
    assert shares.notna().all(axis=None)
