from dataclasses import replace

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

from real.update.grpo import backward, denominator, initial_reference
from real.update.logprobs import Scorer


@pytest.fixture(scope="module")
def scorer():
    return Scorer(random_model(1))


def check_close(found, loss, grad):
    assert found[0] == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(found[1], grad, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("kind", ["dapo", "grpo", "dr_grpo"])
def test_loss_against_loops_in_any_order_and_passes(scorer, kind):
    """The mini-batch's loss from its definition, token by token, without those of no log-prob."""
    first = make_group(scorer, 3, weight=0.7)
    padded = first.old_KT.clone()
    padded[::2] = padded[::2].masked_fill(~first.real_KT[::2], torch.nan)
    second = make_group(scorer, 4, lengths_K=torch.full((8,), RESPONSE))
    holed = second.old_KT.clone()
    holed[0, 2], holed[5] = torch.nan, -torch.inf
    groups = [replace(first, old_KT=padded), replace(second, old_KT=holed)]
    total, n_tokens, n_rows, n_clipped = 0.0, 0, 0, 0
    for group in groups:
        with torch.no_grad():
            new = logprobs_of(scorer, group.prompt_L, group.tokens_KT, CONFIG.temperature)
        for row, counted_T in enumerate(group.counted_KT):
            cost, length = 0.0, int(counted_T.sum())
            for place in counted_T.nonzero().flatten():
                ratio = float((new[row, place] - group.old_KT[row, place]).exp())
                bounded = min(max(ratio, 0.8), 1.28)
                pair = float(group.majority_K[row]), float(group.minority_K[row])
                cost -= sum(min(ratio * advantage, bounded * advantage) for advantage in pair)
                n_clipped += any(bounded * advantage < ratio * advantage for advantage in pair)
            total += group.weight * (cost / max(length, 1) if kind == "grpo" else cost)
            n_tokens, n_rows = n_tokens + length, n_rows + (length > 0)
    assert (n_tokens, n_rows) == (int(first.lengths_K.sum()) + 8 * RESPONSE - 7, 15)
    bottom = {"dapo": n_tokens, "grpo": n_rows, "dr_grpo": n_rows * RESPONSE}[kind]
    config = replace(CONFIG, loss=kind, max_response_tokens=RESPONSE, clip_high=0.28)
    assert denominator([group.row_counts for group in groups], config) == bottom
    loss, grad = gradient(scorer, groups, config)
    assert loss == pytest.approx(total / bottom, rel=1e-10) and grad.isfinite().all()
    for most in (1, 30):
        cut = replace(config, max_tokens_per_microbatch=most)
        check_close(gradient(scorer, groups[::-1], cut), loss, grad)
    done = backward(scorer, groups, config)
    assert (done.n_tokens, done.n_left_out, done.n_clipped) == (n_tokens, 7, n_clipped)


def test_silent_group_counts_in_the_denominator_without_being_computed(scorer):
    loud, silent = make_group(scorer, 7), silenced(make_group(scorer, 8))
    alone = gradient(scorer, [loud], CONFIG)[1]
    calls = []
    hook = scorer.model.base_model.register_forward_hook(lambda *_: calls.append(1))
    together = gradient(scorer, [loud, silent], CONFIG)[1]
    hook.remove()
    assert len(calls) == 1
    done = backward(scorer, [loud, silent], CONFIG)
    assert done.n_tokens - int(silent.lengths_K.sum()) == done.n_forward > done.n_clipped > 0
    share = int(loud.lengths_K.sum()) / done.n_tokens
    torch.testing.assert_close(together, alone * share, rtol=1e-10, atol=1e-14)


def test_kl_term_by_its_definition(scorer):
    """The mean of k3 times the coefficient, which no weight scales, of silent groups as well."""
    groups = [make_group(scorer, 1, weight=0.5), silenced(make_group(scorer, 2))]
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


def test_a_reference_is_sharded_from_the_weights_themselves():
    """Whole copies of all ranks would be as many models in main memory; left whole, it is one."""
    scorer, shared = Scorer(random_model(1)), []
    group, config = make_group(scorer, 1), replace(CONFIG, kl_coef=0.3)
    places = [p.data_ptr() for p in scorer.parameters()]
    reference = initial_reference(
        scorer, lambda start: shared.extend(p.data_ptr() for p in start.parameters())
    )
    assert shared == places and all(p.requires_grad for p in scorer.parameters())
    assert backward(scorer, [group], config, reference).kl == 0
    with torch.no_grad():
        next(scorer.parameters()).mul_(1.5)
    assert backward(scorer, [group], config, reference).kl > 1e-3


def test_correction_scales_each_token(scorer):
    """A constant factor scales the loss; what stands at padding reaches nothing."""
    group, other = make_group(scorer, 1), make_group(scorer, 2, weight=0.5)
    half = replace(group, correction_KT=torch.where(group.real_KT, 0.5, torch.nan))
    found = gradient(scorer, [half, other], CONFIG)
    check_close(found, *gradient(scorer, [replace(group, weight=0.5), other], CONFIG))
