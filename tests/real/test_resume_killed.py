"""Kill -9 at any moment, resume, and the run ends as if nothing had happened, to the bit."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

import pytest
from rank_runs import Ended, Start
from tiny_runs import check_same

from lab.settings import to_values
from lab.trace.trace import load
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


def check_equal(folder: Path, other: Path) -> None:
    """Trace, last checkpoint, trained model and completions, to the bit."""
    first, second = load(folder), load(other)
    assert first.run.status == second.run.status == "finished"
    check_same(first, second)
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


def test_killed_before_any_change_of_its_files(ranks: Start, tmp_path: Path) -> None:
    """At moments spread over the whole run; then again while it is resumed, then it may end."""
    counted = tmp_path / "changes"

    def run(name: str, do: str, kill_at: int | None = None) -> Ended:
        fault = {"rank": 0, "what": "change", "call": kill_at, "counted": str(counted)}
        return ranks(name, to_values(CONFIG), 1, do, fault)

    whole = run("whole", "train")
    n_changes = int(counted.read_text())
    assert whole.codes == [0] and n_changes > 100
    dice = random.Random(7)
    # The first changes make the folder: before there is a run.json, there is no run to resume.
    bounds = [10 + i * (n_changes - 10) // 5 for i in range(6)]
    for place, pair in enumerate(itertools.pairwise(bounds)):
        name = f"run-{place}"
        assert run(name, "train", dice.randrange(*pair)).codes == [-9]
        assert run(name, "resume", dice.randrange(1, 40)).codes in ([-9], [0])
        resumed = run(name, "resume")
        assert resumed.codes == [0], resumed.lines
        check_equal(resumed.folder, whole.folder)
