"""The two-stream loss: by hand, one pass against two, any cut, nothing where nothing is due."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

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
from torch import Tensor

from real.settings.groups import LossSettings
from real.update.grpo import backward, denominator, initial_reference, kl_estimate, token_loss
from real.update.logprobs import Scorer
from real.update.packing import Group, kept, row_counts, without_rows


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    return Scorer(random_model(1))


def test_token_loss_by_hand():
    """Ratios 1.5, 0.5 and 1.1 at A1 = 2 and -1, A2 = 0.5 and 0.

    Row 0 (A1 = 2, A2 = .5): 1.5 is cut to 1.2, 0.5 stays (the smaller product), 1.1 stays.
    Row 1 (A1 = -1): 1.5 stays, 0.5 is cut to 0.8 (-.8 is below -.5), 1.1 stays.
    """
    ratio = torch.tensor([[1.5, 0.5, 1.1], [1.5, 0.5, 1.1]], dtype=torch.float64)
    given = ratio.log(), torch.zeros_like(ratio), torch.tensor([2.0, -1.0]), torch.tensor([0.5, 0])
    loss, clipped = token_loss(*given, LossSettings())
    expected = torch.tensor([[-2.4 - 0.6, -1.0 - 0.25, -2.2 - 0.55], [1.5, 0.8, 1.1]])
    torch.testing.assert_close(loss, expected.double())
    assert clipped.tolist() == [[True, False, False], [False, True, False]]
    wide = token_loss(*given, LossSettings(clip_high=0.28))[0]
    assert wide[0, 0].item() == pytest.approx(-1.28 * 2.5)


def test_one_pass_equals_two_passes(scorer: Scorer):
    """(1 - beta) L_MV + beta L_min, each with its own forward and backward, value and gradient."""
    beta, group = 0.24, make_group(scorer)
    zero = torch.zeros_like(group.majority_K)
    first = gradient(scorer, [replace(group, minority_K=zero)], CONFIG)
    second = gradient(scorer, [replace(group, majority_K=zero)], CONFIG)
    scaled = (1 - beta) * group.majority_K, beta * group.minority_K
    both = replace(group, majority_K=scaled[0], minority_K=scaled[1])
    found = gradient(scorer, [both], CONFIG)
    check_close(found, *((1 - beta) * a + beta * b for a, b in zip(first, second, strict=True)))
    assert found[1].abs().max() > 1e-3


def check_close(found: tuple[float, Tensor], loss: float, grad: Tensor) -> None:
    assert found[0] == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(found[1], grad, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("max_tokens_per_microbatch", [1, 30, 16384])
@pytest.mark.parametrize("kind", ["dapo", "grpo", "dr_grpo"])
def test_order_of_rows_and_cut_into_passes_do_not_matter(
    scorer: Scorer, kind: Any, max_tokens_per_microbatch: int
):
    """Weights and advantages follow their problem and their response."""
    groups = [make_group(scorer, seed, weight=w) for seed, w in enumerate((0.35, 1.0, 0.7))]
    turned = [permuted(group, seed) for seed, group in enumerate((groups[2], groups[0], groups[1]))]
    config = replace(CONFIG, loss=kind, max_response_tokens=RESPONSE)
    cut = replace(config, max_tokens_per_microbatch=max_tokens_per_microbatch)
    check_close(gradient(scorer, turned, cut), *gradient(scorer, groups, config))


def permuted(group: Group, seed: int) -> Group:
    order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    rows = ("tokens_KT", "old_KT", "lengths_K", "majority_K", "minority_K")
    return replace(group, **{name: getattr(group, name)[order] for name in rows})


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_together_are_one_rank(scorer: Scorer, world: int, kl_coef: float):
    """The mean of the ranks' gradients, as sharded training takes it, is that of one rank."""
    groups = [make_group(scorer, seed, rows=4) for seed in (1, 2)]
    config = replace(CONFIG, max_tokens_per_microbatch=25, kl_coef=kl_coef)
    reference = initial_reference(Scorer(random_model(9)))
    whole = gradient(scorer, groups, config, reference=reference)
    calls: list[int] = []
    hook = scorer.model.base_model.register_forward_hook(lambda *_: calls.append(1))
    parts = [
        gradient(scorer, groups, config, share=(rank, world), reference=reference)
        for rank in range(world)
    ]
    hook.remove()
    assert len(calls) % world == 0 and len(calls) > world
    mean = torch.stack([grad for _, grad in parts]).mean(dim=0)
    check_close((sum(loss for loss, _ in parts), mean), *whole)


@pytest.mark.parametrize("kind", ["dapo", "grpo", "dr_grpo"])
def test_loss_against_loops(scorer: Scorer, kind: str):
    """The mini-batch's loss from its definition, token by token."""
    groups = [make_group(scorer, 3, weight=0.7), make_group(scorer, 4)]
    total, n_tokens, n_rows = 0.0, 0, 0
    for group in groups:
        with torch.no_grad():
            new = logprobs_of(scorer, group.prompt_L, group.tokens_KT, CONFIG.temperature)
        for row, length in enumerate(group.lengths_K.tolist()):
            cost = 0.0
            for place in range(length):
                ratio = float((new[row, place] - group.old_KT[row, place]).exp())
                bounded = min(max(ratio, 0.8), 1.2)
                for advantage in (float(group.majority_K[row]), float(group.minority_K[row])):
                    cost -= min(ratio * advantage, bounded * advantage)
            total += group.weight * (cost / length if kind == "grpo" else cost)
            n_tokens, n_rows = n_tokens + length, n_rows + 1
    bottom = {"dapo": n_tokens, "grpo": n_rows, "dr_grpo": n_rows * RESPONSE}[kind]
    config = replace(CONFIG, loss=kind, max_response_tokens=RESPONSE)
    assert denominator([row_counts(group) for group in groups], config) == bottom
    assert gradient(scorer, groups, config)[0] == pytest.approx(total / bottom, rel=1e-10)


def test_silent_group_counts_in_the_denominator_without_being_computed(scorer: Scorer):
    loud, silent = make_group(scorer, 7), silenced(make_group(scorer, 8))
    alone = gradient(scorer, [loud], CONFIG)[1]
    calls: list[int] = []
    hook = scorer.model.base_model.register_forward_hook(lambda *_: calls.append(1))
    together = gradient(scorer, [loud, silent], CONFIG)[1]
    hook.remove()
    assert len(calls) == 1
    done = backward(scorer, [loud, silent], CONFIG)
    assert done.n_tokens - int(silent.lengths_K.sum()) == done.n_forward > done.n_clipped > 0
    share = int(loud.lengths_K.sum()) / done.n_tokens
    torch.testing.assert_close(together, alone * share, rtol=1e-10, atol=1e-14)


def test_kept_leaves_out_dropped_groups_and_if_asked_uniform_ones(scorer: Scorer):
    loud = make_group(scorer, 7)
    silent, dropped = silenced(loud), replace(loud, dropped=True)
    assert kept([loud, silent, dropped], drop_uniform=False) == [loud, silent]
    assert kept([loud, silent, dropped], drop_uniform=True) == [loud]


def test_padding_reaches_nothing(scorer: Scorer):
    group = make_group(scorer, 9)
    places = torch.arange(RESPONSE)
    padding = places >= group.lengths_K[:, None]
    assert padding.any()
    tokens = torch.where(padding, 3, group.tokens_KT)
    spoiled = replace(group, tokens_KT=tokens, old_KT=group.old_KT.masked_fill(padding, torch.nan))
    check_close(gradient(scorer, [spoiled], CONFIG), *gradient(scorer, [group], CONFIG))


def test_tokens_without_a_log_prob_leave_loss_and_denominator(scorer: Scorer):
    """The engine gave NaN for one token: as if the token had no loss; for a row: as if not there.

    The loss of the rest is found from its definition.
    """
    group = make_group(scorer, 3, lengths_K=torch.full((8,), RESPONSE))
    old = group.old_KT.clone()
    old[0, 2], old[5] = torch.nan, -torch.inf
    holed = replace(group, old_KT=old)
    done = backward(scorer, [holed], CONFIG)
    assert done.n_tokens == done.n_forward == 8 * RESPONSE - 7 and done.n_left_out == 7
    with torch.no_grad():
        new = logprobs_of(scorer, group.prompt_L, group.tokens_KT, CONFIG.temperature)
    cost = token_loss(new, group.old_KT, group.majority_K, group.minority_K, CONFIG)[0]
    for kind, bottom in (("dapo", 41), ("grpo", 7), ("dr_grpo", 7 * RESPONSE)):
        per_row = torch.where(old.isfinite(), cost, 0.0).sum(dim=1)
        if kind == "grpo":
            per_row = per_row / old.isfinite().sum(dim=1).clamp(min=1)
        config = replace(CONFIG, loss=kind, max_response_tokens=RESPONSE)
        loss, grad = gradient(scorer, [holed], config)
        assert loss == pytest.approx(float(per_row.sum()) / bottom, rel=1e-10)
        assert grad.isfinite().all() and grad.any()


def test_rows_for_which_the_model_gives_nothing_are_named(scorer: Scorer):
    """And without them the pass is that of the others."""
    broken = copy.deepcopy(scorer.model)
    with torch.no_grad():
        broken.base_model.wte.weight[5] = torch.nan
    groups = [make_group(scorer, seed) for seed in (1, 2)]
    tokens = [torch.where(g.tokens_KT == 5, 6, g.tokens_KT) for g in groups]
    tokens[0][3, 0] = 5
    tokens[1][6, 1] = 5
    longest = torch.full((8,), RESPONSE)
    # The spoiled weight is never an input but in these rows: not in prompts, and heads are tied.
    broken.lm_head.weight = torch.nn.Parameter(scorer.model.lm_head.weight.detach().clone())
    prompts = [torch.where(g.prompt_L == 5, 6, g.prompt_L) for g in groups]
    groups = [
        replace(g, tokens_KT=t, lengths_K=longest, prompt_L=p)
        for g, t, p in zip(groups, tokens, prompts, strict=True)
    ]
    done = backward(Scorer(broken), groups, replace(CONFIG, max_tokens_per_microbatch=30))
    assert done.broken == ((0, 3), (1, 6))
    rest = backward(Scorer(broken), without_rows(groups, done.broken), CONFIG)
    assert rest.broken == () and rest.n_left_out == 2 * RESPONSE
    assert rest.n_tokens == 14 * RESPONSE and np.isfinite(rest.loss)


def test_kl_term_by_finite_reference(scorer: Scorer):
    """Loss = policy loss + coefficient x mean of k3, which no problem's weight scales."""
    groups = [make_group(scorer, 1, weight=0.5), make_group(scorer, 2)]
    other = Scorer(random_model(7))
    config = replace(CONFIG, kl_coef=0.3)
    done = backward(scorer, groups, config, reference=initial_reference(other))
    plain = backward(scorer, groups, CONFIG)
    total, n_tokens = 0.0, 0
    for group in groups:
        with torch.no_grad():
            mine = logprobs_of(scorer, group.prompt_L, group.tokens_KT, 0.6)[group.real_KT]
            its = logprobs_of(other, group.prompt_L, group.tokens_KT, 0.6)[group.real_KT]
        total += float(((its - mine).exp() - (its - mine) - 1).sum())
        n_tokens += len(mine)
    assert done.loss == pytest.approx(plain.loss + 0.3 * total / n_tokens, rel=1e-9)
    assert done.kl == pytest.approx(total / n_tokens, rel=1e-9) and done.kl > 0 == plain.kl


def test_silent_groups_are_pulled_to_the_reference(scorer: Scorer):
    """With a KL term they have a gradient, so they are computed."""
    silent = silenced(make_group(scorer, 1))
    config = replace(CONFIG, kl_coef=0.3)
    reference = initial_reference(Scorer(random_model(7)))
    assert gradient(scorer, [silent], config, reference=reference)[1].abs().max() > 1e-3
    assert not gradient(scorer, [silent], CONFIG)[1].any()


def test_kl_estimate_has_the_mean_of_the_divergence():
    p, q = torch.tensor([0.7, 0.2, 0.1]).double(), torch.tensor([0.4, 0.4, 0.2]).double()
    mean = (p * kl_estimate(p.log(), q.log())).sum()
    torch.testing.assert_close(mean, (p * (p / q).log()).sum())
    assert (kl_estimate(p.log(), q.log()) >= 0).all()


def test_correction_scales_each_token(scorer: Scorer):
    """A constant factor scales the loss; 0 leaves a token without a gradient."""
    group, other = make_group(scorer, 1), make_group(scorer, 2)
    half = replace(group, correction_KT=torch.full_like(group.old_KT, 0.5))
    scaled = gradient(scorer, [half, replace(other, weight=0.5)], CONFIG)
    plain = gradient(scorer, [group, other], CONFIG)
    check_close(scaled, plain[0] / 2, plain[1] / 2)
    # What stands at padding reaches nothing.
    holed = torch.where(group.real_KT, 0.5, torch.nan)
    half = replace(half, correction_KT=holed)
    found = gradient(scorer, [half, replace(other, weight=0.5)], CONFIG)
    check_close(found, plain[0] / 2, plain[1] / 2)
    muted = replace(group, correction_KT=torch.zeros_like(group.old_KT))
    assert not gradient(scorer, [muted], CONFIG)[1].any()
