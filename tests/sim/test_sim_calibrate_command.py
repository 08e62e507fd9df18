"""`guard-sim calibrate`: its folder and tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from lab.base.errors import UserError
from lab.cli import run_cli
from sim.commands.calibrate import Calibrate
from sim.studies.calibrate.calibration import Calibration, run_calibration
from sim.studies.calibrate.fitting import QUICK, Budget
from sim.studies.calibrate.mechanisms import mechanisms_named
from sim.studies.calibrate.published import rows_named

TINY = Budget(candidates=1, rounds=1, population=3, mechanism=2, problems=60)
SMALL = Calibration(
    rows=tuple(row._replace(epochs=8) for row in rows_named(("llama-aime24", "qwen-aime25"))),
    mechanisms=mechanisms_named(("independent", "spread")),
    readings=("share", "majority"),
    budget=TINY,
    replicates=2,
    fits=1,
)


def test_the_tables_agree_with_the_files(tmp_path: Path) -> None:
    text = run_calibration(SMALL, tmp_path / "c")
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
        run_calibration(SMALL, tmp_path / "c")


def test_bad_numbers_are_told() -> None:
    with pytest.raises(UserError, match="fits = 0"):
        replace(SMALL, fits=0)
    with pytest.raises(UserError, match="seed = -1"):
        replace(SMALL, seed=-1)


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(QUICK, candidates=1, population=2, mechanism=2, problems=30)
    monkeypatch.setattr("sim.studies.calibrate.fitting.QUICK", small)
    argv = ["calibrate", "--out", str(tmp_path / "c"), "--rows", "qwen-aime25"]
    argv += ["--mechanisms", "independent", "--readings", "majority", "--quick", "--quiet"]
    commands = {"calibrate": Calibrate, "again": Calibrate}
    assert run_cli("guard-sim", commands, argv) == 0
    assert "| mechanism | reading | fitted / cells |" in capsys.readouterr().out
    bad = ["calibrate", "--out", str(tmp_path / "d"), "--rows", "gpt"]
    assert run_cli("guard-sim", commands, bad) == 2
    assert "rows 'gpt': unknown" in capsys.readouterr().err
