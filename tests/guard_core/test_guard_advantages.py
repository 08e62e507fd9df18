"""docs/method.md, sections 4 and 5: advantages."""

import math
from dataclasses import replace

import numpy as np
import pytest
from guard_histories import checked
from guard_plays import Play, as_votes
from hypothesis import assume, given
from hypothesis import strategies as st

from guard_core import GuardConfig, count_answers, group_advantages, policy_streams, standardise

ALERT = GuardConfig().set(flip_rate="instant", beta_max=0.3)
"""A flip alone sets the flip rate to 1, so beta = beta_max."""

ANSWERS = [0] * 16 + [1] * 8 + [2, 3, 4, 5, 6, 7, 8, 9]


def flipped_to(answers, config):
    """The decision on (P, K) answers whose labels have just flipped."""
    ids = np.array(answers)
    n_answers = int(ids.max()) + 2
    play = Play(config, len(answers))
    other = np.zeros((len(answers), n_answers), dtype=int)
    other[:, -1] = ids.shape[-1]
    play.prime(as_votes(other, n_votes=ids.shape[-1]))
    decision = play.see(as_votes(count_answers(ids, n_answers), n_votes=ids.shape[-1]))
    return ids, decision


def net_advantages(answers: list[list[int]], config: GuardConfig) -> np.ndarray:
    """(P, K) the two streams added up, as they act where the ratio is 1."""
    ids, decision = flipped_to(answers, config)
    streams = policy_streams(*group_advantages(ids, decision, config), decision, config)
    return streams.majority + streams.minority


@pytest.mark.parametrize("scale", [0.0, 0.25])
def test_negative_advantages_are_scaled_in_both_streams(scale: float):
    ids, decision = flipped_to([ANSWERS], ALERT)
    majority, minority = group_advantages(ids, decision, ALERT)
    config = ALERT.set(negative_scale=scale)
    streams = policy_streams(majority, minority, decision, config)
    plain = policy_streams(majority, minority, decision, ALERT)
    for scaled, full in ((streams.majority, plain.majority), (streams.minority, plain.minority)):
        assert (full < 0).any() and (full > 0).any()
        assert np.array_equal(scaled, np.where(full < 0, scale * full, full))


@given(
    n_samples=st.integers(8, 400),
    label_share=st.floats(0.05, 0.95),
    other_share=st.floats(0.01, 0.95),
    beta=st.floats(0.01, 0.99),
)
@checked(40)
def test_sign_rule(n_samples: int, label_share: float, other_share: float, beta: float):
    label, other = int(label_share * n_samples), int(other_share * n_samples)
    assume(0 < other < label and label + other <= n_samples)
    p, q = label / n_samples, other / n_samples
    odds, bound = beta / (1 - beta), math.sqrt(p * q / ((1 - p) * (1 - q)))
    # The floor under the standard deviation moves the boundary by about 1e-6 / std.
    assume(abs(odds / bound - 1) > 1e-3)
    answers = [0] * label + [1] * other + [-1] * (n_samples - label - other)
    config = ALERT.set(beta_max=beta, minority_share=0.0)
    assert (net_advantages([answers], config)[0][label] > 0) == (odds > bound)


def test_a_weight_on_the_loss_or_the_advantage_is_none():
    ids, decision = flipped_to([ANSWERS], GuardConfig.off())
    plain = group_advantages(ids, decision, GuardConfig())
    decision = replace(decision, weight=np.array([0.35]))
    on_loss = group_advantages(ids, decision, GuardConfig())
    np.testing.assert_array_equal(on_loss, plain)
    assert policy_streams(*on_loss, decision, GuardConfig()).weight.tolist() == [0.35]
    config = GuardConfig().set(weight_on="advantage")
    on_advantage = group_advantages(ids, decision, config)
    np.testing.assert_allclose(on_advantage, 0.35 * np.array(plain), rtol=1e-15)
    for elsewhere in (config, config.set(weight_on="reward")):
        assert policy_streams(*on_advantage, decision, elsewhere).weight.tolist() == [1.0]


def test_bonus_of_the_release():
    """16 for the label, 10 and 6 for two candidates: means in closed form."""
    answers = [0] * 16 + [1] * 10 + [2] * 6 + [-1] * 8
    config = ALERT.set(mix="bonus", minority_share=0.1)
    got = net_advantages([answers], config)[0]
    p = 16 / 40
    std = math.sqrt(p * (1 - p) * 40 / 39) + 1e-6
    won, lost = (1 - p) / std, -p / std
    size = 2 * p * (1 - p) / std
    for place, want in {
        0: won,
        16: lost + 0.3 * size * 10 / 16,
        26: lost + 0.3 * size * 6 / 16,
        32: lost + 0.05 * 0.3 * size / 2,
    }.items():
        assert got[place] == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("skip_by", ["drop", "mask"])
def test_skipped_problems_have_no_advantage_and_only_drop_leaves(skip_by: str):
    config = ALERT.set(skip_by=skip_by)
    ids, decision = flipped_to([ANSWERS, ANSWERS], config)
    decision = replace(decision, skip=np.array([True, False]))
    streams = policy_streams(*group_advantages(ids, decision, config), decision, config)
    assert not streams.majority[0].any()
    assert not streams.minority[0].any()
    assert streams.majority[1].all()
    assert streams.drop.tolist() == [skip_by == "drop", False]


def test_dropped_problems_leave_the_standard_deviation_of_the_batch():
    uniform, mixed = [0] * 32, ANSWERS
    config = ALERT.set(advantage_scale="batch")
    ids, decision = flipped_to([uniform, mixed], config)
    alone, _ = group_advantages(*flipped_to([mixed], config), config)
    together, _ = group_advantages(ids, decision, config)
    decision = replace(decision, skip=np.array([True, False]))
    dropped, _ = group_advantages(ids, decision, config)
    masked, _ = group_advantages(ids, decision, config.set(skip_by="mask"))
    np.testing.assert_allclose(dropped[1], alone[0], rtol=1e-12)
    np.testing.assert_allclose(masked[1], together[1], rtol=1e-12)
    assert abs(together[1, 0]) > abs(alone[0, 0])


def test_a_reward_that_is_no_number_is_not_taken_for_equal_rewards():
    found = standardise(np.array([[np.nan, 1.0, 0.0], [1.0, 1.0, 0.0]]))
    assert np.isnan(found[0]).all() and np.isfinite(found[1]).all()


def test_standardise():
    rewards = np.array([[[1.0, 2.0, 4.0], [0.1, 0.1, 0.1], [10.0, 11.0, 16.0]]])
    centred = rewards - rewards.mean(axis=-1, keepdims=True)
    centred[0, 1] = 0
    kept = np.array([[True, True, False]])
    batch, part = rewards.std(ddof=1), rewards[0, :2].std(ddof=1)
    wanted = {
        "none": (standardise(rewards, "none"), np.ones((1, 3, 1))),
        "group": (standardise(rewards), rewards.std(axis=-1, ddof=1, keepdims=True) + 1e-6),
        "batch": (standardise(rewards, "batch"), np.array(batch) + 1e-6),
        "kept": (standardise(rewards, "batch", kept=kept), np.array(part) + 1e-6),
    }
    for name, (got, by) in wanted.items():
        np.testing.assert_allclose(got, centred / by, 1e-12, 1e-12, err_msg=name)
        assert got[0, 1].tolist() == [0, 0, 0]
