"""Kill -9 at any moment, resume, and the run ends as if nothing had happened, to the bit."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lab.settings import to_values
from lab.trace.trace import Trace, load
from real import TrainConfig

pytestmark = pytest.mark.skipif(os.name != "posix", reason="runs are forked and killed")

CONFIG = TrainConfig(
    n_problems=4,
    batch_size=2,
    n_votes=8,
    n_samples=4,
    epochs=3,
    eval_samples=2,
    checkpoint_every=1,
    save_model=True,
)
"""Six batches, a checkpoint after each: so that most changes of files belong to checkpoints."""

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("forked_runs.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert server.stdin is not None and server.stdout is not None
    counted = tmp_path_factory.mktemp("counted") / "changes"

    def send(do: str, folder: Path, kill_at: int | None = None) -> dict[str, Any]:
        request = {
            "do": do,
            "folder": str(folder),
            "config": to_values(CONFIG),
            "kill_at": kill_at,
            "counted": str(counted),
        }
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        return json.loads(server.stdout.readline())

    yield send
    server.stdin.close()
    assert server.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def whole(ask: Ask, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run never stopped, and how often it changed files."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    answer = ask("train", folder)
    assert answer["code"] == 0
    return folder, answer["changes"]


def timeless(trace: Trace) -> pd.DataFrame:
    seconds = [name for name in trace.steps if "second" in name]
    return trace.steps.drop(columns=seconds)


def check_equal(folder: Path, other: Path) -> None:
    """Trace, last checkpoint, trained model and completions, to the bit."""
    first, second = load(folder), load(other)
    assert first.run.status == second.run.status == "finished"
    pd.testing.assert_frame_equal(first.visits, second.visits, check_exact=True)
    pd.testing.assert_frame_equal(first.votes, second.votes, check_exact=True)
    pd.testing.assert_frame_equal(first.answers, second.answers, check_exact=True)
    pd.testing.assert_frame_equal(first.evals, second.evals, check_exact=True)
    pd.testing.assert_frame_equal(timeless(first), timeless(second), check_exact=True)
    extra = dict(first.run.extra)
    extra.pop("resumed", None)
    assert extra == second.run.extra
    kept = {p.name for p in (folder / "checkpoints").iterdir()}
    assert kept == {p.name for p in (other / "checkpoints").iterdir()}
    names = ["model.safetensors", "optimizer.safetensors", "guard.safetensors", "answers.json"]
    paths = [Path("checkpoints", "step-000006", name) for name in names]
    paths += [Path("model", "model.safetensors")]
    paths += [p.relative_to(other) for p in (other / "completions").iterdir()]
    for path in paths:
        assert (folder / path).read_bytes() == (other / path).read_bytes(), path


def test_killed_before_any_change_of_its_files(
    ask: Ask, whole: tuple[Path, int], tmp_path: Path
) -> None:
    """At moments spread over the whole run; then again while it is resumed, then it may end."""
    reference, n_changes = whole
    assert n_changes > 100
    dice = random.Random(7)
    # The first changes make the folder: before there is a run.json, there is no run to resume.
    bounds = [10 + i * (n_changes - 10) // 5 for i in range(6)]
    moments = [dice.randrange(*pair) for pair in itertools.pairwise(bounds)]
    for place, moment in enumerate(moments):
        folder = tmp_path / f"run-{place}"
        assert ask("train", folder, moment)["code"] == -9
        assert ask("resume", folder, dice.randrange(1, 40))["code"] in (-9, 0)
        assert ask("resume", folder)["code"] == 0
        check_equal(folder, reference)
