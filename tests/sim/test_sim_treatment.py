"""Decisions that act on other problems, in the simulator."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from guard_core import GuardConfig
from lab.arm_settings import with_arm
from lab.base.arms import arm
from lab.base.errors import UserError
from lab.trace.trace import Trace
from sim import SimConfig, simulate
from sim.studies.compare import compare
from sim.studies.controls import named

BUSY = GuardConfig(flip_rate="instant", theta_MR=0.0, tau_FR=0.1, skip_share=0.5)
BASE = SimConfig(n_problems=24, epochs=8, replicates=3, step=0.0, seed=4, guard=BUSY)
"""Nothing moves, so every run has the same votes; the guard acts often."""
TREATED = ["weight", "beta", "skipped"]
SEEN = ["problem", "label", "flipped", "match_rate", "flip_rate", "n_minority", "label_accuracy"]


def batches(trace: Trace) -> pd.Series:
    """Every batch's treatments, in no order."""
    rows = trace.visits.groupby(["replicate", "step"])[TREATED]
    return rows.apply(lambda batch: sorted(map(tuple, batch.to_numpy(float))))


def test_a_permuted_guard_treats_as_much_and_sees_the_same():
    own, dealt = simulate(BASE), simulate(replace(BASE, treatment="permuted"))
    pd.testing.assert_frame_equal(own.visits[SEEN], dealt.visits[SEEN])
    assert (batches(own) == batches(dealt)).all()
    assert len({tuple(map(tuple, map(np.ravel, batch))) for batch in batches(own)}) > 5
    assert (own.visits["weight"] != dealt.visits["weight"]).mean() > 0.1
    assert (dealt.visits["skipped"] == (dealt.visits["route"] == 3)).all()


def test_a_comparison_replays_the_next_replicate(tmp_path: Path):
    moving = replace(BASE, step=0.3)
    arms = [named(name, moving) for name in ("replayed", "permuted", "guard", "replayed: W=3")]
    with pytest.raises(UserError, match="replayed,W=3 needs guard,W=3; add them"):
        compare(moving, arms, tmp_path / "all")
    traces = compare(moving, arms[:3], tmp_path / "all")
    keys = ["replicate", "visit", "problem"]
    own, replayed = (traces[name].visits.sort_values(keys) for name in ("guard", "replayed"))
    for replicate in range(3):
        source = own[(own["replicate"] == (replicate + 1) % 3) & (own["visit"] > 0)]
        found = replayed[(replayed["replicate"] == replicate) & (replayed["visit"] > 0)]
        np.testing.assert_array_equal(source[TREATED], found[TREATED])
    assert traces["replayed"].run.arm == "replayed" and traces["permuted"].run.arm == "permuted"
    final = [traces[name].evals["pass_at_1"].iloc[-3:].tolist() for name in traces]
    assert final[0] != final[1] != final[2]


def test_runs_without_decisions_to_replay_are_refused(tmp_path: Path):
    simulate(replace(BASE, replicates=1), tmp_path / "one")
    for treatment, message in [
        ("replayed", "is neither own nor permuted nor the folder of a guard's run"),
        (str(tmp_path / "one"), "has no other seed to replay"),
    ]:
        with pytest.raises(UserError, match=message):
            simulate(replace(BASE, replicates=1, treatment=treatment))
    with pytest.raises(UserError, match="needs a finished run of 23 problems, 8 visits"):
        simulate(replace(BASE, n_problems=23, seed=5, treatment=str(tmp_path / "one")))
    assert with_arm(BASE, arm("permuted")).treatment == "permuted"
