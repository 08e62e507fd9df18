"""Run folders changed at random: a report is made or the folder is left out with its reason."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lab.trace.store import RunFolder

COUNT, SEED = 60, 14


@pytest.fixture
def base(tmp_path, make_trace):
    """Two runs with votes and answers, as the trainer leaves them behind."""
    for arm in ("ttrl", "changed"):
        trace = make_trace(
            "guard" if arm == "changed" else arm,
            np.linspace(0.8, 0.2, 10)[None, None, :].repeat(3, 1).repeat(2, 0),
            np.linspace(0.6, 0.4, 10)[None].repeat(2, 0),
            seeds=[0, 1],
            world="real",
            backend="test",
            config={"lr": 0.1, "rule": "ttrl", "guard": {"W": 5, "frs": True}, "model": "m"},
            extra={"problem_ids": ["a", "b", "c"], "notices": ["a notice"]},
        )
        with RunFolder.create(tmp_path / "base" / arm, trace.run) as run:
            for table in ("visits", "steps", "evals"):
                rows = getattr(trace, table)
                getattr(run, f"write_{table}")({name: rows[name].to_numpy() for name in rows})
            keys = {n: trace.visits[n] for n in ("replicate", "step", "epoch", "visit", "problem")}
            run.write_votes(keys | {"answer": 0, "count": 40})
            run.write_votes(keys | {"answer": 1, "count": 20})
            first = {name: trace.visits[name][trace.visits.visit == 0] for name in keys}
            run.write_answers(first | {"answer": 0, "text": "12"})
    return tmp_path / "base"


def test_nothing_tampered_stops_the_report(base, tmp_path):
    (tmp_path / "scratch").mkdir()
    script = Path(__file__).with_name("tampering.py")
    line = [sys.executable, str(script), str(base), str(tmp_path / "scratch")]
    # The script ends by itself where a report hangs.
    done = subprocess.run([*line, str(SEED), str(COUNT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert COUNT / 4 < found["left_out"] < COUNT
    assert found["seconds"] < 60
    assert found["bytes"] < 2 << 30
