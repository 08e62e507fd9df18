"""The two-stream loss: by hand, one pass against two, any cut, nothing where nothing is due."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

from real.settings.config import LossKind
from real.update.group import Group, kept, without_rows
from real.update.grpo import (
    MEAN_OF_LOSS,
    LossConfig,
    backward,
    denominator,
    kl_estimate,
    token_loss,
)
from real.update.logprobs import Scorer
from real.update.logprobs import response_logprobs as logprobs_of
from real.update.packing import plan, row_counts
from real.update.reference import initial_reference

VOCABULARY, PROMPT, RESPONSE = 13, 4, 6


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    return random_model(1)


def random_model(seed: int) -> GPT2LMHeadModel:
    """In double precision throughout, which models with rotary positions are not."""
    torch.manual_seed(seed)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    config = GPT2Config(
        vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=1, initializer_range=0.4, **sizes
    )
    return GPT2LMHeadModel(config).double().eval()


def make_group(model: GPT2LMHeadModel, seed: int = 0, rows: int = 8, **changes: object) -> Group:
    """Random responses of unequal length, from a policy that is some way off."""
    g = torch.Generator().manual_seed(seed)
    prompt = torch.randint(0, VOCABULARY, (PROMPT + seed % 3,), generator=g)
    tokens = torch.randint(0, VOCABULARY, (rows, RESPONSE), generator=g)
    lengths = torch.randint(1, RESPONSE + 1, (rows,), generator=g)
    with torch.no_grad():
        old = logprobs_of(model, prompt, tokens, 0.6)
    old = old + 0.3 * torch.randn(old.shape, generator=g, dtype=old.dtype)
    majority, minority = torch.randn((2, rows), generator=g, dtype=torch.float64)
    group = Group(prompt, tokens, old, lengths, majority, minority)
    return replace(group, **changes)


def gradient(
    model: torch.nn.Module, groups: list[Group], config: LossConfig, **options: Any
) -> tuple[float, Tensor]:
    model.zero_grad(set_to_none=True)
    done = backward(model, groups, config, **options)
    flat = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return done.loss, torch.cat(flat) if flat else torch.zeros(0)


CONFIG = LossConfig(temperature=0.6)


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
        LossConfig(),
    )
    expected = torch.tensor([[-2.4 - 0.6, -1.0 - 0.25, -2.2 - 0.55], [1.5, 0.8, 1.1]])
    torch.testing.assert_close(loss, expected.double())
    assert clipped.tolist() == [[True, False, False], [False, True, False]]


def test_higher_upper_clip_leaves_more_of_the_ratio():
    ratio = torch.tensor([[1.25]], dtype=torch.float64)
    one, zero = torch.ones(1), torch.zeros(1)
    narrow = token_loss(ratio.log(), torch.zeros(1, 1), one, zero, LossConfig())
    wide = token_loss(ratio.log(), torch.zeros(1, 1), one, zero, LossConfig(clip_high=0.28))
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


@pytest.mark.parametrize("kind", ["token_mean", "sequence_mean", "constant"])
@pytest.mark.parametrize(("micro_tokens", "passes"), [(1, 16), (30, 5)])
def test_any_cut_gives_the_same_gradient(
    model: GPT2LMHeadModel, kind: Any, micro_tokens: int, passes: int
):
    """All rows at once, a row at a time, and in between."""
    groups = [make_group(model, 1, weight=0.4), make_group(model, 2)]
    whole = replace(CONFIG, kind=kind, max_tokens=RESPONSE)
    cut = replace(whole, micro_tokens=micro_tokens)
    counts = [row_counts(group) for group in groups]
    assert len(plan(groups, counts, whole.micro_tokens)) == 1
    assert len(plan(groups, counts, micro_tokens)) == passes
    expected, found = gradient(model, groups, whole), gradient(model, groups, cut)
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("kind", ["token_mean", "sequence_mean", "constant"])
def test_order_of_problems_and_rows_does_not_matter(model: GPT2LMHeadModel, kind: Any):
    """Weights and advantages follow their problem and their response."""
    groups = [make_group(model, seed, weight=w) for seed, w in enumerate((0.35, 1.0, 0.7))]
    turned = [permuted(group, seed) for seed, group in enumerate((groups[2], groups[0], groups[1]))]
    config = replace(CONFIG, kind=kind, micro_tokens=25)
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
    config = replace(CONFIG, micro_tokens=25, kl_coef=kl_coef)
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


@pytest.mark.parametrize("kind", ["token_mean", "sequence_mean", "constant"])
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
            total += group.weight * (cost / length if kind == "sequence_mean" else cost)
            n_tokens, n_rows = n_tokens + length, n_rows + 1
    bottom = {
        "token_mean": n_tokens,
        "sequence_mean": n_rows,
        "constant": n_rows * RESPONSE,
    }[kind]
    config = replace(CONFIG, kind=kind, max_tokens=RESPONSE)
    assert denominator([row_counts(group) for group in groups], config) == bottom
    assert gradient(model, groups, config)[0] == pytest.approx(total / bottom, rel=1e-10)


def test_silent_group_counts_in_the_denominator_without_being_computed(model: GPT2LMHeadModel):
    loud, zero = make_group(model, 7), torch.zeros(8, dtype=torch.float64)
    silent = replace(make_group(model, 8), majority_K=zero, minority_K=zero)
    alone = gradient(model, [loud], CONFIG)[1]
    calls: list[int] = []
    scorer = Scorer(model)
    hook = model.base_model.register_forward_hook(lambda *_: calls.append(1))
    together = gradient(scorer, [loud, silent], CONFIG)[1]
    hook.remove()
    assert len(calls) == 1
    n_loud, n_silent = int(loud.lengths_K.sum()), int(silent.lengths_K.sum())
    torch.testing.assert_close(
        together, alone * n_loud / (n_loud + n_silent), rtol=1e-10, atol=1e-14
    )


def test_kept_leaves_out_dropped_groups_and_if_asked_uniform_ones(model: GPT2LMHeadModel):
    loud, zero = make_group(model, 7), torch.zeros(8, dtype=torch.float64)
    silent = replace(loud, majority_K=zero, minority_K=zero)
    dropped = replace(loud, dropped=True)
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


def test_counts_of_a_pass(model: GPT2LMHeadModel):
    loud, zero = make_group(model, 7), torch.zeros(8, dtype=torch.float64)
    silent = replace(make_group(model, 8), majority_K=zero, minority_K=zero)
    done = backward(model, [loud, silent], CONFIG)
    assert done.n_forward == int(loud.lengths_K.sum())
    assert done.n_tokens == done.n_forward + int(silent.lengths_K.sum())
    assert 0 < done.n_clipped < done.n_forward


def qwen2() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    return Qwen2ForCausalLM(config).eval()


@pytest.mark.parametrize("name", ["gpt2", "qwen2"])
def test_log_probs_are_those_of_the_whole_forward(model: GPT2LMHeadModel, name: str):
    chosen = model if name == "gpt2" else qwen2()
    group = make_group(model, 10)
    rows = torch.cat([group.prompt_L.expand(8, -1), group.tokens_KT], dim=1)
    with torch.no_grad():
        logits = chosen(input_ids=rows).logits[:, -RESPONSE - 1 : -1]
        found = logprobs_of(chosen, group.prompt_L, group.tokens_KT, 0.6)
    expected = torch.log_softmax(logits / 0.6, dim=-1)
    expected = expected.gather(-1, group.tokens_KT[..., None]).squeeze(-1)
    torch.testing.assert_close(found, expected)


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
    for kind, bottom in (("token_mean", 41), ("sequence_mean", 7), ("constant", 7 * RESPONSE)):
        per_row = torch.where(old.isfinite(), cost, 0.0).sum(dim=1)
        if kind == "sequence_mean":
            per_row = per_row / old.isfinite().sum(dim=1).clamp(min=1)
        config = replace(CONFIG, kind=kind, max_tokens=RESPONSE)
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
    done = backward(broken, groups, replace(CONFIG, micro_tokens=30))
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
    zero = torch.zeros(8, dtype=torch.float64)
    silent = replace(make_group(model, 1), majority_K=zero, minority_K=zero)
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


def test_losses_have_the_names_of_trl():
    assert MEAN_OF_LOSS == {
        "dapo": "token_mean",
        "grpo": "sequence_mean",
        "dr_grpo": "constant",
    }
    assert set(MEAN_OF_LOSS) == set(get_args(LossKind))
