"""Every rule of the field runs in the simulator, and only on what it may know."""

from dataclasses import replace

import numpy as np
import pytest

from guard_core.rules import RULES
from guard_core.rules.confidence import Scope
from lab.arm_settings import with_arm
from lab.base.arms import arm
from sim import SimConfig, simulate
from sim.engine.run import Simulation

PEERS = tuple(name for name in RULES if name != "ttrl")
COMPILED = ("scope", "evol_rl", "scope+guard", "evol_rl+guard", "scope+memory")
KNOWS_NOTHING = {"signal": 0.0}


@pytest.mark.parametrize("name", PEERS)
def test_a_rule_moves_the_policy_unless_it_does_not_train(runs, name):
    simulation = Simulation(runs.small(name))
    parts, p_RNA = runs.finish(simulation)
    norms = np.concatenate([part.steps["update_norm"] for part in parts[1:]])
    moved = np.abs(p_RNA - simulation.population.p0_RNA).max()
    assert np.isfinite(p_RNA).all()
    if name == "maj_at_n":
        assert moved < 1e-12 and not norms.any()
    else:
        assert moved > 1e-4 and norms.any()


def on_arrays(runs, monkeypatch, config):
    """Tables of a run whose rule has no compiled part."""
    with monkeypatch.context() as patched:
        patched.setattr("sim.rules.FAST", {})
        return runs.play(config)[0]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        *((name, {}) for name in COMPILED),
        *(
            (name, {"n_votes": V, "n_samples": K, "epochs": 2, "unparseable": 0.1})
            for name in ("scope", "evol_rl")
            for V, K in ((128, 96), (16, 16), (48, 40))
        ),
        ("scope", {"rule_options": {"subset": 0.1, "balance": 0.3}}),
    ],
)
def test_compiled_rules_agree_with_guard_core(runs, monkeypatch, name, sizes):
    config = runs.small(name)
    config = replace(config, **sizes)
    compiled, slow = runs.play(config)[0], on_arrays(runs, monkeypatch, config)
    assert runs.differences(compiled, slow, tolerance=1e-9) == []


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("srt", {"threshold": 0.6, "keep": 0.5}),
        ("scope", {"confidence": "release"}),
        ("empo", {"unparseable": "alone"}),
        ("t3rl", {"verified_weight": 1.7}),
        ("t3rl", {"verified_weight": 3}),
        ("scrl_continuous", {"positive_from": "t_pos"}),
        ("coverrl", {"verifications": 3}),
        ("random", {"chance": 0.2}),
        ("random", {"chance": 0.0}),
        ("random", {"chance": 1.0}),
        ("scope", {"subset": 0.1, "balance": 0.3}),
        ("rent", {"unparseable": -1.0}),
    ],
)
def test_their_settings_change_the_run(runs, name, options):
    config = replace(runs.small(name), rule_options=options)
    usual, _ = runs.play(replace(config, rule_options={}))
    assert runs.differences(runs.play(config)[0], usual, tolerance=1e-9) != []


@pytest.mark.parametrize("name", PEERS)
def test_permuting_the_truth_changes_nothing_that_is_trained(runs, name):
    # With observations that know something of the truth this cannot hold: that is what they are.
    config = runs.small(name, **KNOWS_NOTHING)
    honest, lied = Simulation(config), Simulation(config)
    truth_RN = (lied._truth_RN + 1 + lied._truth_RN % 2) % config.n_answers
    assert (truth_RN != lied._truth_RN).all()
    lied._truth_RN = truth_RN
    lied.rule._truth_RN = truth_RN
    parts, p_RNA = runs.finish(honest)
    other_parts, other_RNA = runs.finish(lied)
    assert p_RNA.tobytes() == other_RNA.tobytes()
    assert runs.differences(parts[1:], other_parts[1:]) != []  # right and wrong did change


@pytest.mark.parametrize("name", PEERS)
def test_same_seed_same_bits_and_replicates_do_not_see_each_other(runs, name):
    config = runs.small(name)
    _, both_RNA = runs.play(config)
    _, again_RNA = runs.play(config)
    _, alone_RNA = runs.play(replace(config, first_replicate=1, replicates=1))
    _, other_RNA = runs.play(replace(config, seed=7))
    assert both_RNA.tobytes() == again_RNA.tobytes() != other_RNA.tobytes()
    # The size of the subgroups is chosen per replicate, everything else per problem.
    assert both_RNA[1:].tobytes() == alone_RNA.tobytes()


@pytest.mark.parametrize("name", (*PEERS, "srt+guard", "scope+memory"))
def test_runs_at_the_edges(runs, name):
    for edge in (
        {"unparseable": 1.0},
        {"n_votes": 1, "n_samples": 1},
        {"n_votes": 7, "n_samples": 7, "n_answers": 2},
    ):
        simulation = Simulation(runs.small(name, epochs=2, **edge))
        _, p_RNA = runs.finish(simulation)
        assert np.isfinite(p_RNA).all()
        if "unparseable" in edge and name != "one_shot_em":
            assert np.abs(p_RNA - simulation.population.p0_RNA).max() < 1e-12


@pytest.mark.parametrize("guard", ["", "+guard", "+memory", "+frozen"])
def test_a_rule_that_changes_nothing_is_ttrl_to_the_bit(runs, guard):
    # SRT as released keeps every problem; its run goes through all of the rules' machinery.
    plain, _ = runs.play(runs.small(guard[1:] or "ttrl"))
    ruled, _ = runs.play(runs.small(f"srt{guard}"))
    assert runs.differences(plain, ruled) == []


def test_a_discounted_memory_weighs_the_same_in_a_rules_own_labels(runs, monkeypatch):
    # With subsets of all responses every subgroup's label is the guard's own.
    matched, pay = [], Scope.pay

    def watched(rule, seen, label):
        paid = pay(rule, seen, label)
        matched.append((paid == (seen.answers == label[..., None])[..., : paid.shape[-1]]).all())
        return paid

    monkeypatch.setattr(Scope, "pay", watched)
    monkeypatch.setattr("sim.rules.FAST", {})
    config = runs.small("scope+memory")
    guard = replace(config.guard, discount=0.2)
    runs.play(replace(config, guard=guard, rule_options={"subset": 1.0}))
    assert matched and all(matched)


def test_true_labels_are_the_ceiling_of_a_rule(runs):
    config = runs.small("coverrl", signal=0.99, epochs=12)
    votes, _ = runs.play(config)
    truth, _ = runs.play(replace(config, labels="truth"))
    last = [tables[-1].evals["pass_at_1"].mean() for tables in (votes, truth)]
    assert last[1] > last[0]


@pytest.mark.parametrize("rule", ["scope", "t3rl", "self_harmony", "co_rewarding_2"])
def test_visit_0_records_the_votes_of_the_rules_own_label(rule):
    sizes = {"n_problems": 40, "epochs": 1, "replicates": 2, "vote_replicates": 2}
    trace = simulate(with_arm(SimConfig(n_votes=9, n_samples=5, **sizes), arm(rule)))
    first = trace.visits[trace.visits["epoch"] == 0]
    key = ["replicate", "problem"]
    votes = trace.votes[trace.votes["epoch"] == 0]
    got = votes.set_index([*key, "answer"])["count"]
    most = votes.groupby(key)["count"].max()
    n_other = 0
    for row in first.itertuples():
        n_label = got.get((row.replicate, row.problem, row.label), 0)
        assert row.match_rate == n_label / 9
        n_other += n_label < most[row.replicate, row.problem]
    if rule == "scope":
        assert not first["tie"].any()
    else:
        assert n_other > 0
