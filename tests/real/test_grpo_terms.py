"""Terms of the loss: KL to a reference, corrected tokens, tokens without a log-prob."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from random_groups import (
    CONFIG,
    RESPONSE,
    gradient,
    logprobs_of,
    make_group,
    random_model,
    silenced,
)
from transformers import GPT2LMHeadModel

from real.update.grpo import backward, initial_reference, kl_estimate, token_loss
from real.update.logprobs import Scorer
from real.update.packing import without_rows


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    return random_model(1)


def test_tokens_without_a_log_prob_leave_loss_and_denominator(model: GPT2LMHeadModel):
    """The engine gave NaN for one token: as if the token had no loss; for a row: as if not there.

    The loss of the rest is found from its definition.
    """
    group = make_group(model, 3, lengths_K=torch.full((8,), RESPONSE))
    old = group.old_KT.clone()
    old[0, 2], old[5] = torch.nan, -torch.inf
    holed = replace(group, old_KT=old)
    done = backward(model, [holed], CONFIG)
    assert done.n_tokens == done.n_forward == 8 * RESPONSE - 7 and done.n_left_out == 7
    with torch.no_grad():
        new = logprobs_of(model, group.prompt_L, group.tokens_KT, CONFIG.temperature)
    cost = token_loss(new, group.old_KT, group.majority_K, group.minority_K, CONFIG).loss_KT
    for kind, bottom in (("dapo", 41), ("grpo", 7), ("dr_grpo", 7 * RESPONSE)):
        per_row = torch.where(old.isfinite(), cost, 0.0).sum(dim=1)
        if kind == "grpo":
            per_row = per_row / old.isfinite().sum(dim=1).clamp(min=1)
        config = replace(CONFIG, loss=kind, max_response_tokens=RESPONSE)
        loss, grad = gradient(model, [holed], config)
        assert loss == pytest.approx(float(per_row.sum()) / bottom, rel=1e-10)
        assert grad.isfinite().all() and grad.any()


def test_rows_for_which_the_model_gives_nothing_are_named(model: GPT2LMHeadModel):
    """And without them the pass is that of the others."""
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.base_model.wte.weight[5] = torch.nan
    groups = [make_group(model, seed) for seed in (1, 2)]
    tokens = [torch.where(g.tokens_KT == 5, 6, g.tokens_KT) for g in groups]
    tokens[0][3, 0] = 5
    tokens[1][6, 1] = 5
    longest = torch.full((8,), RESPONSE)
    # The spoiled weight is never an input but in these rows: not in prompts, and heads are tied.
    broken.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    groups = [
        replace(
            g, tokens_KT=t, lengths_K=longest, prompt_L=torch.where(g.prompt_L == 5, 6, g.prompt_L)
        )
        for g, t in zip(groups, tokens, strict=True)
    ]
    done = backward(broken, groups, replace(CONFIG, max_tokens_per_microbatch=30))
    assert done.broken == ((0, 3), (1, 6))
    rest = backward(broken, without_rows(groups, done.broken), CONFIG)
    assert rest.broken == () and rest.n_left_out == 2 * RESPONSE
    assert rest.n_tokens == 14 * RESPONSE and np.isfinite(rest.loss)


def test_kl_term_by_finite_reference(model: GPT2LMHeadModel):
    """Loss = policy loss + coefficient x mean of k3, which no problem's weight scales."""
    groups = [make_group(model, 1, weight=0.5), make_group(model, 2)]
    other = random_model(7)
    config = replace(CONFIG, kl_coef=0.3)
    done = backward(model, groups, config, reference=initial_reference(Scorer(other)))
    plain = backward(model, groups, CONFIG)
    total, n_tokens = 0.0, 0
    for group in groups:
        with torch.no_grad():
            mine = logprobs_of(model, group.prompt_L, group.tokens_KT, 0.6)[group.real_KT]
            its = logprobs_of(other, group.prompt_L, group.tokens_KT, 0.6)[group.real_KT]
        total += float(((its - mine).exp() - (its - mine) - 1).sum())
        n_tokens += len(mine)
    assert done.kl == pytest.approx(total / n_tokens, rel=1e-9) and done.kl > 0
    assert done.loss == pytest.approx(plain.loss + 0.3 * total / n_tokens, rel=1e-9)
    assert plain.kl == 0


def test_silent_groups_are_pulled_to_the_reference(model: GPT2LMHeadModel):
    """With a KL term they have a gradient, so they are computed."""
    silent = silenced(make_group(model, 1))
    config = replace(CONFIG, kl_coef=0.3)
    reference = initial_reference(Scorer(random_model(7)))
    assert gradient(model, [silent], config, reference=reference)[1].abs().max() > 1e-3
    assert not gradient(model, [silent], CONFIG)[1].any()


def test_kl_estimate_has_the_mean_of_the_divergence():
    p, q = torch.tensor([0.7, 0.2, 0.1]).double(), torch.tensor([0.4, 0.4, 0.2]).double()
    mean = (p * kl_estimate(p.log(), q.log())).sum()
    torch.testing.assert_close(mean, (p * (p / q).log()).sum())
    assert (kl_estimate(p.log(), q.log()) >= 0).all()


def test_correction_scales_each_token(model: GPT2LMHeadModel):
    """A constant factor scales the loss; 0 leaves a token without a gradient."""
    group, other = make_group(model, 1), make_group(model, 2)
    half = replace(group, correction_KT=torch.full_like(group.old_KT, 0.5))
    scaled = gradient(model, [half, replace(other, weight=0.5)], CONFIG)
    plain = gradient(model, [group, other], CONFIG)
    assert scaled[0] == pytest.approx(plain[0] / 2, rel=1e-12)
    torch.testing.assert_close(scaled[1], plain[1] / 2, rtol=1e-10, atol=1e-14)
    # What stands at padding reaches nothing.
    holed = torch.where(group.real_KT, 0.5, torch.nan)
    found = gradient(
        model, [replace(half, correction_KT=holed), replace(other, weight=0.5)], CONFIG
    )
    torch.testing.assert_close(found[1], plain[1] / 2, rtol=1e-10, atol=1e-14)
    muted = replace(group, correction_KT=torch.zeros_like(group.old_KT))
    assert not gradient(model, [muted], CONFIG)[1].any()
