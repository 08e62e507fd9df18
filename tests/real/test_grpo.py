"""The two-stream loss: by hand, one pass against two, any cut, nothing where nothing is due."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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

from real.settings.config import TrainConfig
from real.update.grpo import backward, denominator, initial_reference, token_loss
from real.update.logprobs import Scorer
from real.update.packing import Group, kept, plan, row_counts


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    return random_model(1)


def test_token_loss_by_hand():
    """Ratios 1.5, 0.5 and 1.1 at A1 = 2 and -1, A2 = 0.5 and 0.

    Row 0 (A1 = 2, A2 = .5): 1.5 is cut to 1.2, 0.5 stays (the smaller product), 1.1 stays.
    Row 1 (A1 = -1): 1.5 stays, 0.5 is cut to 0.8 (-.8 is below -.5), 1.1 stays.
    """
    ratio = torch.tensor([[1.5, 0.5, 1.1], [1.5, 0.5, 1.1]], dtype=torch.float64)
    loss, clipped = token_loss(
        ratio.log(),
        torch.zeros(2, 3, dtype=torch.float64),
        torch.tensor([2.0, -1.0]),
        torch.tensor([0.5, 0.0]),
        TrainConfig(temperature=1.0),
    )
    expected = torch.tensor([[-2.4 - 0.6, -1.0 - 0.25, -2.2 - 0.55], [1.5, 0.8, 1.1]])
    torch.testing.assert_close(loss, expected.double())
    assert clipped.tolist() == [[True, False, False], [False, True, False]]


def test_higher_upper_clip_leaves_more_of_the_ratio():
    ratio = torch.tensor([[1.25]], dtype=torch.float64)
    one, zero = torch.ones(1), torch.zeros(1)
    narrow = token_loss(ratio.log(), torch.zeros(1, 1), one, zero, TrainConfig(temperature=1.0))
    wide = token_loss(
        ratio.log(), torch.zeros(1, 1), one, zero, TrainConfig(temperature=1.0, clip_high=0.28)
    )
    assert narrow.loss_KT.item() == pytest.approx(-1.2)
    assert wide.loss_KT.item() == pytest.approx(-1.25)
    assert narrow.clipped_KT.item() and not wide.clipped_KT.item()


def test_one_pass_equals_two_passes(model: GPT2LMHeadModel):
    """(1 - beta) L_MV + beta L_min, each with its own forward and backward, value and gradient."""
    beta, group = 0.24, make_group(model)
    zero = torch.zeros_like(group.majority_K)
    first = gradient(model, [replace(group, minority_K=zero)], CONFIG)
    second = gradient(model, [replace(group, majority_K=zero)], CONFIG)
    both = replace(
        group, majority_K=(1 - beta) * group.majority_K, minority_K=beta * group.minority_K
    )
    loss, grad = gradient(model, [both], CONFIG)
    assert loss == pytest.approx((1 - beta) * first[0] + beta * second[0], rel=1e-12)
    torch.testing.assert_close(
        grad, (1 - beta) * first[1] + beta * second[1], rtol=1e-10, atol=1e-14
    )
    assert grad.abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["dapo", "grpo", "dr_grpo"])
@pytest.mark.parametrize(("max_tokens_per_microbatch", "passes"), [(1, 16), (30, 5)])
def test_any_cut_gives_the_same_gradient(
    model: GPT2LMHeadModel, kind: Any, max_tokens_per_microbatch: int, passes: int
):
    """All rows at once, a row at a time, and in between."""
    groups = [make_group(model, 1, weight=0.4), make_group(model, 2)]
    whole = replace(CONFIG, loss=kind, max_response_tokens=RESPONSE)
    cut = replace(whole, max_tokens_per_microbatch=max_tokens_per_microbatch)
    counts = [row_counts(group) for group in groups]
    assert len(plan(groups, counts, whole.max_tokens_per_microbatch)) == 1
    assert len(plan(groups, counts, max_tokens_per_microbatch)) == passes
    expected, found = gradient(model, groups, whole), gradient(model, groups, cut)
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("kind", ["dapo", "grpo", "dr_grpo"])
def test_order_of_problems_and_rows_does_not_matter(model: GPT2LMHeadModel, kind: Any):
    """Weights and advantages follow their problem and their response."""
    groups = [make_group(model, seed, weight=w) for seed, w in enumerate((0.35, 1.0, 0.7))]
    turned = [permuted(group, seed) for seed, group in enumerate((groups[2], groups[0], groups[1]))]
    config = replace(CONFIG, loss=kind, max_tokens_per_microbatch=25)
    expected, found = gradient(model, groups, config), gradient(model, turned, config)
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-10, atol=1e-14)


def permuted(group: Group, seed: int) -> Group:
    order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    rows = ("tokens_KT", "old_KT", "lengths_K", "majority_K", "minority_K")
    return replace(group, **{name: getattr(group, name)[order] for name in rows})


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_together_are_one_rank(model: GPT2LMHeadModel, world: int, kl_coef: float):
    """The mean of the ranks' gradients, as sharded training takes it, is that of one rank."""
    groups = [make_group(model, seed, rows=4) for seed in (1, 2)]
    config = replace(CONFIG, max_tokens_per_microbatch=25, kl_coef=kl_coef)
    reference = initial_reference(Scorer(random_model(9)))
    whole = gradient(model, groups, config, reference=reference)
    calls: list[int] = []
    scorer = Scorer(model)
    hook = model.base_model.register_forward_hook(lambda *_: calls.append(1))
    parts = [
        gradient(scorer, groups, config, share=(rank, world), reference=reference)
        for rank in range(world)
    ]
    hook.remove()
    assert len(calls) % world == 0 and len(calls) > world
    assert sum(loss for loss, _ in parts) == pytest.approx(whole[0], rel=1e-12)
    mean = torch.stack([grad for _, grad in parts]).mean(dim=0)
    torch.testing.assert_close(mean, whole[1], rtol=1e-10, atol=1e-14)


def test_rank_without_rows_runs_along_at_weight_zero(model: GPT2LMHeadModel):
    group = make_group(model, 1, rows=1)
    first = gradient(model, [group], CONFIG, share=(0, 2))
    second = gradient(model, [group], CONFIG, share=(1, 2))
    assert first[1].any() and len(second[1]) == len(first[1])
    assert not second[1].any() and second[0] == 0


@pytest.mark.parametrize("kind", ["dapo", "grpo", "dr_grpo"])
def test_loss_against_loops(model: GPT2LMHeadModel, kind: str):
    """The mini-batch's loss from its definition, token by token."""
    groups = [make_group(model, 3, weight=0.7), make_group(model, 4)]
    total, n_tokens, n_rows = 0.0, 0, 0
    for group in groups:
        with torch.no_grad():
            new = logprobs_of(model, group.prompt_L, group.tokens_KT, CONFIG.temperature)
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
    assert gradient(model, groups, config)[0] == pytest.approx(total / bottom, rel=1e-10)


def test_silent_group_counts_in_the_denominator_without_being_computed(model: GPT2LMHeadModel):
    loud, silent = make_group(model, 7), silenced(make_group(model, 8))
    alone = gradient(model, [loud], CONFIG)[1]
    calls: list[int] = []
    scorer = Scorer(model)
    hook = model.base_model.register_forward_hook(lambda *_: calls.append(1))
    together = gradient(scorer, [loud, silent], CONFIG)[1]
    hook.remove()
    assert len(calls) == 1
    done = backward(model, [loud, silent], CONFIG)
    assert done.n_tokens - int(silent.lengths_K.sum()) == done.n_forward > done.n_clipped > 0
    n_loud, n_silent = int(loud.lengths_K.sum()), int(silent.lengths_K.sum())
    torch.testing.assert_close(
        together, alone * n_loud / (n_loud + n_silent), rtol=1e-10, atol=1e-14
    )


def test_kept_leaves_out_dropped_groups_and_if_asked_uniform_ones(model: GPT2LMHeadModel):
    loud = make_group(model, 7)
    silent, dropped = silenced(loud), replace(loud, dropped=True)
    assert kept([loud, silent, dropped], drop_uniform=False) == [loud, silent]
    assert kept([loud, silent, dropped], drop_uniform=True) == [loud]


def test_padding_reaches_nothing(model: GPT2LMHeadModel):
    group = make_group(model, 9)
    places = torch.arange(RESPONSE)
    padding = places >= group.lengths_K[:, None]
    assert padding.any()
    spoiled = replace(
        group,
        tokens_KT=torch.where(padding, 3, group.tokens_KT),
        old_KT=torch.where(padding, torch.nan, group.old_KT),
    )
    expected, found = gradient(model, [group], CONFIG), gradient(model, [spoiled], CONFIG)
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-10, atol=1e-14)
