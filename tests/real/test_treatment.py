"""Decisions that act on other problems, in the trainer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_runs import QUICK

from guard_core import GuardConfig
from lab.errors import UserError
from lab.trace.trace import load
from real import train
from real.compare.arms import compare
from real.compare.runs import run_folder

BUSY = GuardConfig(flip_rate="instant", theta_MR=0.0, tau_FR=0.1, skip_share=0.5, W=2)
TREATED = ["weight", "beta", "skipped"]


def test_a_permuted_guard_treats_as_much_and_sees_the_same():
    still = replace(QUICK, epochs=4, lr=1e-12, guard=BUSY)  # votes of both runs are the same
    own, dealt = (train(replace(still, treatment=t), progress=False) for t in ("own", "permuted"))
    seen = ["step", "problem", "label", "flipped", "match_rate", "flip_rate", "n_minority"]
    assert own.visits[seen].equals(dealt.visits[seen])
    pairs = [
        [
            sorted(map(tuple, batch[TREATED].to_numpy(float)))
            for _, batch in t.visits.groupby("step")
        ]
        for t in (own, dealt)
    ]
    assert pairs[0] == pairs[1]
    assert (own.visits["weight"] != dealt.visits["weight"]).any()
    assert (dealt.visits["skipped"] == (dealt.visits["route"] == 3)).all()


def test_a_comparison_replays_the_next_seed(tmp_path: Path):
    name, target = "replayed: theta_MR=0, tau_FR=.1, W=2", "guard,W=2,tau_FR=0.1,theta_MR=0.0"
    with pytest.raises(UserError, match=r"replayed.* needs guard,W=2,tau_FR=0.1,theta_MR=0.0; add"):
        compare(QUICK, tmp_path, [name], [0, 1])
    with pytest.raises(UserError, match="needs two seeds, since each replays another one"):
        compare(QUICK, tmp_path, [name, target], [0])
    found = compare(QUICK, tmp_path, [name, target], [5, 3])
    assert not found.failed
    for seed, other in ((5, 3), (3, 5)):
        made = load(run_folder(tmp_path, "replayed,W=2,tau_FR=0.1,theta_MR=0.0", seed))
        source = load(run_folder(tmp_path, target, other))
        own, replayed = (
            t.visits[t.visits["visit"] > 0].sort_values(["visit", "problem"])[TREATED]
            for t in (source, made)
        )
        np.testing.assert_array_equal(own, replayed)
        assert made.run.arm == "replayed,W=2,tau_FR=0.1,theta_MR=0.0"
