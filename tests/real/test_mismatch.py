import math
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from random_groups import gradient
from small_models import causal, decoder_sizes

from guard_core import PolicyStreams
from real.engines.rollouts import Sampling
from real.engines.transformers_engine import TransformersEngine
from real.settings.groups import UpdateSettings
from real.update.correction import (
    GEOMETRIC_MASK,
    PROBE_ROWS,
    importance_weights,
    mismatch_kl,
    rescore,
)
from real.update.logprobs import Scorer, group_scores
from real.update.packing import Group
from real.vote.sample import Responses

TEMPERATURE = 0.8


@pytest.fixture(scope="module")
def scorer():
    wider = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    sizes = decoder_sizes(13, num_key_value_heads=2, bos_token_id=None, eos_token_id=None, **wider)
    return Scorer(causal("Qwen2", **sizes))


def sampled(scorer, n_problems=6):
    prompts = [[1, 2, 3 + i] for i in range(n_problems)]
    engine, generator = TransformersEngine(scorer.model, [5]), torch.Generator().manual_seed(0)
    drawn = engine.sample(prompts, 4, Sampling(8, TEMPERATURE), generator)
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5]), torch.zeros(4)
    tables = torch.tensor(prompts), drawn.tokens_PNT, drawn.logprobs_PNT, drawn.lengths_PN
    return [Group(*of_prompt, *advantages) for of_prompt in zip(*tables, strict=True)]


def off_by(groups, gap):
    """An engine whose log-probs are those of the trainer plus `gap`."""
    return [replace(g, old_KT=torch.where(g.real_KT, g.old_KT + gap, 0.0)) for g in groups]


def test_tokens_without_a_number_are_left_out():
    nan, gone = math.nan, -math.inf
    trainer = [torch.tensor([-1.0, nan, -2.0]), torch.tensor([-1.0])]
    engine = [torch.tensor([-1.5, -1.0, gone]), torch.tensor([-1.0])]
    expected = (math.exp(0.5) - 1 - 0.5) / 2
    assert mismatch_kl(trainer, engine) == pytest.approx(expected)
    assert math.isnan(mismatch_kl([torch.tensor([nan])], [torch.tensor([-1.0])]))


def test_importance_weights_are_truncated_ratios():
    trainer = torch.tensor([[-1.0, -1.0, -3.0, math.nan, -1.0]])
    engine = torch.tensor([[-1.0, -3.0, -1.0, -1.0, -math.inf]])
    found = importance_weights(trainer, engine, cap=2.0)
    assert torch.allclose(found, torch.tensor([[1.0, 2.0, math.exp(-2), 1.0, 1.0]]))


def test_responses_with_an_outlying_mean_ratio_have_no_weight():
    """Beyond the mask in the mean of the tokens, either way; padding does not count."""
    inside, outside = 0.99 * math.log(GEOMETRIC_MASK), 1.01 * math.log(GEOMETRIC_MASK)
    gap = torch.tensor([[inside] * 2, [outside] * 2, [-outside] * 2, [outside, math.nan]])
    found = importance_weights(gap, torch.zeros(4, 2), cap=3.0)
    assert found.tolist() == [[3.0, 3.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]


SETTINGS = UpdateSettings(temperature=TEMPERATURE, max_tokens_per_microbatch=4096)


@pytest.mark.parametrize("cap", [0.0, 1.1])
@pytest.mark.parametrize("gap", [0.0, 0.2, -0.2])
def test_the_mismatch_is_that_of_the_engine(scorer, gap, cap):
    groups = sampled(scorer)
    found, columns = rescore(scorer, off_by(groups, gap), SETTINGS, cap)
    expected = math.exp(-gap) - 1 + gap
    assert columns["mismatch_kl"] == pytest.approx(expected, rel=1e-3, abs=1e-10)
    if cap:
        weight = min(math.exp(-gap), cap)
        assert columns["tis_weight"] == pytest.approx(weight, rel=1e-4)
        assert columns["masked"] == 0
        for before, after in zip(groups, found, strict=True):
            inside = before.real_KT
            assert torch.allclose(after.old_KT[inside], before.old_KT[inside], atol=1e-5)
            assert (after.correction_KT[inside] - weight).abs().max() < 1e-4


def test_without_a_cap_only_a_few_rows_are_looked_at(scorer, monkeypatch):
    scores = Mock(side_effect=group_scores)
    monkeypatch.setattr("real.update.correction.group_scores", scores)
    groups = sampled(scorer)
    found, _ = rescore(scorer, groups, SETTINGS)
    assert all(a is b for a, b in zip(found, groups, strict=True))
    assert [len(g.lengths_K) for g in scores.call_args.args[1]] == [1] * PROBE_ROWS


def test_groups_that_are_not_trained_on_are_not_corrected(scorer):
    groups = sampled(scorer)
    groups[0] = replace(groups[0], dropped=True)
    groups[1] = replace(groups[1], majority_K=torch.zeros(4))
    found, columns = rescore(scorer, off_by(groups, 0.2), SETTINGS, 2.0)
    assert [g.correction_KT is None for g in found] == [True, True, *[False] * 4]
    assert columns["mismatch_kl"] == pytest.approx(math.exp(-0.2) - 1 + 0.2, rel=1e-3)


def test_log_probs_of_the_trainer_may_replace_the_engines_without_weights(scorer):
    groups, anew = sampled(scorer), replace(SETTINGS, old_logprobs="trainer")
    found, columns = rescore(scorer, off_by(groups, 0.5), anew)
    assert all(group.correction_KT is None for group in found) and "tis_weight" not in columns
    assert columns["mismatch_kl"] == pytest.approx(math.exp(-0.5) - 1 + 0.5, rel=1e-3)
    (_, before), (_, after) = (gradient(scorer, some, SETTINGS) for some in (groups, found))
    assert torch.allclose(after, before, atol=1e-6, rtol=1e-4)


def test_a_missing_log_prob_of_the_engine_stays_out_of_the_loss(scorer):
    groups = sampled(scorer)
    groups[2].old_KT[1, 0] = math.nan
    found, columns = rescore(scorer, groups, SETTINGS, 2.0)
    assert not found[2].counted_KT[1, 0]
    assert found[2].counted_KT.sum() == groups[2].counted_KT.sum()
    assert math.isfinite(columns["mismatch_kl"])
    assert gradient(scorer, found, SETTINGS)[1].isfinite().all()


def test_outliers_of_an_engine_are_left_out_and_counted(scorer):
    groups = off_by(sampled(scorer), 0.01)
    groups[0].old_KT[1] -= 5.0
    found, columns = rescore(scorer, groups, SETTINGS, 2.0)
    assert columns["masked"] == pytest.approx(1 / 24)
    assert found[0].correction_KT is not None and not found[0].correction_KT[1].any()
    groups[0].majority_K[1] = 7.0
    again, _ = rescore(scorer, groups, SETTINGS, 2.0)
    pair = (gradient(scorer, some, SETTINGS)[1] for some in (again, found))
    torch.testing.assert_close(*pair)


def test_truncated_responses_leave_the_loss(scorer):
    """A problem of which no response ends is dropped."""
    engine = TransformersEngine(scorer.model, [5])
    prompts = [[1, 2, 3], [1, 2, 4]]
    rollouts = engine.sample(prompts, 4, Sampling(4, 1.0), torch.Generator().manual_seed(1))
    ended_PN = torch.tensor([[True, False, True, False], [False] * 4])
    responses = Responses([0, 1], prompts, replace(rollouts, finished_PN=ended_PN), None)
    ones = np.ones((2, 4)) * np.arange(1, 5)
    flags = np.zeros(2, bool)
    streams = PolicyStreams(majority=ones, minority=-ones, weight=np.ones(2), drop=flags)
    assert [len(g.lengths_K) for g in responses.groups(streams)] == [4, 4]
    first, second = responses.groups(streams, mask_truncated=True)
    assert first.majority_K.tolist() == [1.0, 3.0] and first.minority_K.tolist() == [-1.0, -3.0]
    assert torch.equal(first.tokens_KT, rollouts.tokens_PNT[0, ::2])
    assert second.dropped and not first.dropped
