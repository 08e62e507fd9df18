"""`guard-sim compare --preset paper`: every printed cell under every reading of the guard."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from guard_core import GuardConfig
from lab.cli import run_cli
from sim.commands import Compare
from sim.studies import paper


@pytest.fixture
def guards(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, GuardConfig]]:
    """Population and guard of every run; the runs themselves are made up."""
    found = []

    def measure(config):
        found.append((config.population, config.guard))
        values = {cell: [10.0, 30.0] for cell in paper.CELLS} | {"pass_final": [40.0, 44.0]}
        return pd.DataFrame(values)

    monkeypatch.setattr(paper, "measure", measure)
    return found


def test_every_printed_cell_is_there_once(guards, tmp_path: Path, capsys) -> None:
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
    assert "was made with other settings" in capsys.readouterr().err
