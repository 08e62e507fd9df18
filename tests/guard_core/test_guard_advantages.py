"""docs/method.md, sections 4 and 5: advantages."""

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from guard_plays import Play, as_votes

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


@pytest.mark.parametrize("scale", [0.0, 0.25])
def test_negative_advantages_are_scaled_in_both_streams(scale: float):
    ids, decision = flipped_to([ANSWERS], ALERT)
    both = group_advantages(ids, decision, ALERT)
    streams = policy_streams(*both, decision, ALERT.set(negative_scale=scale))
    plain = policy_streams(*both, decision, ALERT)
    for scaled, full in zip(streams[:2], plain[:2], strict=True):
        assert (full < 0).any() and (full > 0).any()
        assert np.array_equal(scaled, np.where(full < 0, scale * full, full))


def test_bonus_of_the_release():
    """16 for the label, 10 and 6 for two candidates: means in closed form."""
    answers = [0] * 16 + [1] * 10 + [2] * 6 + [-1] * 8
    config = ALERT.set(mix="bonus", minority_share=0.1)
    ids, decision = flipped_to([answers], config)
    streams = policy_streams(*group_advantages(ids, decision, config), decision, config)
    got = (streams.majority + streams.minority)[0]
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
    assert not streams.majority[0].any() and not streams.minority[0].any()
    assert streams.majority[1].all() and streams.drop.tolist() == [skip_by == "drop", False]


def test_a_reward_that_is_no_number_is_not_taken_for_equal_rewards():
    found = standardise(np.array([[np.nan, 1.0, 0.0], [1.0, 1.0, 0.0]]))
    assert np.isnan(found[0]).all() and np.isfinite(found[1]).all()
    assert standardise(np.full((1, 3), 0.1)).tolist() == [[0.0] * 3]  # though their mean is not .1
    with pytest.raises(ValueError, match="scale = 'Group': must be one of group, batch, none"):
        standardise(np.ones((1, 3)), "Group")  # type: ignore[arg-type]


def test_streams_of_tensors_are_those_of_arrays():
    ids, decision = flipped_to([ANSWERS, ANSWERS], ALERT)
    streams = group_advantages(ids, decision, ALERT)
    tensors = (torch.tensor(stream, requires_grad=True) for stream in streams)
    for ours, theirs in zip(
        policy_streams(*streams, decision, ALERT),
        policy_streams(*tensors, decision, ALERT),  # type: ignore[arg-type]
        strict=True,
    ):
        np.testing.assert_equal(ours, theirs)


@pytest.mark.parametrize("scale", ["group", "batch"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rewards_of_low_precision_are_standardised_in_double(
    dtype: type, scale: Literal["group", "batch"]
):
    rewards = (512 * np.array([[1, 0, 0, 1], [1, 1, 1, 0]]) + 1).astype(dtype)
    kept = torch.tensor([True, True])
    wanted = standardise(rewards.astype(float), scale)
    assert np.array_equal(standardise(rewards, scale, kept=kept), wanted) and wanted.all()
