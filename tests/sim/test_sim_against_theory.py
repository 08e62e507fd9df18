"""The engine against the closed forms and the numbers that it was built to show."""

from dataclasses import replace

import pytest

from guard_core import GuardConfig
from lab.measures.fate import fate_shares, fates
from sim import SimConfig, simulate


def row(config: SimConfig) -> dict[str, float]:
    return fate_shares(fates(simulate(config).visits)).mean().to_dict()


def test_independent_problems_hardly_degrade():
    config = SimConfig(policy="independent", guard=GuardConfig.off(), replicates=4)
    assert row(config)["Degraded"] < 1
    two = SimConfig(
        policy="independent",
        population="point",
        ability_mean=0.55,
        n_answers=2,
        step=0.1,
        guard=GuardConfig.off(),
        replicates=4,
    )
    # Lock-in on the wrong answer is 4.5 %, but most of it is over before the first three visits.
    assert row(two)["Degraded"] < 3


def test_attractor_reproduces_the_llama_row():
    shares = row(SimConfig(guard=GuardConfig.off(), replicates=4, seed=3))
    paper = {
        "Degraded": 53.8,
        "Marginal Degraded": 6.4,
        "Learned": 0.2,
        "Stable Always Right": 2.8,
        "Always Wrong": 36.4,
    }
    for name, percent in paper.items():
        assert shares[name] == pytest.approx(percent, abs=5), name


def test_frozen_labels_and_vote_memory_lose_far_less():
    config = SimConfig(guard=GuardConfig.off(), replicates=4, seed=3)
    plain = row(config)["TotalDeg"]
    memory = row(replace(config, guard=GuardConfig(label_from="memory")))["TotalDeg"]
    frozen = row(replace(config, guard=GuardConfig(label_from="frozen")))["TotalDeg"]
    assert frozen < 4 < memory < plain - 25
