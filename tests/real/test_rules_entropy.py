import pytest
import torch
from random_groups import random_rows
from torch import nn

import real.update.logprobs as entropy_loss
from real.model.policy import load_policy
from real.settings.groups import UpdateSettings
from real.tiny import CHECKPOINT
from real.update.grpo import backward
from real.update.logprobs import EntropyScorer, Head, Scorer, entropies, head_entropies

N, WIDTH, WORDS = 13, 5, 7


def plain(logits, temperature):
    """By automatic differentiation."""
    logp = torch.log_softmax(logits / temperature, dim=-1)
    return -(logp.exp() * logp).sum(-1)


def parts(bias):
    torch.manual_seed(3)
    hidden = torch.randn(N, WIDTH, dtype=torch.float64, requires_grad=True)
    return hidden, nn.Linear(WIDTH, WORDS, bias=bias).double(), torch.randn(N).double()


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk", [WORDS * 4, 10**6, 1])
def test_gradient(chunk, bias, softcap):
    hidden, linear, pull = parts(bias)
    head = Head(linear, factor=0.7, softcap=softcap)
    inputs = [hidden, *linear.parameters()]
    found = head_entropies(head, hidden, 0.6, chunk)
    expected = plain(head.logits(hidden), 0.6)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    ours = torch.autograd.grad((found * pull).sum(), inputs)
    theirs = torch.autograd.grad((expected * pull).sum(), inputs)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-10)


def test_a_frozen_head_and_low_precision():
    hidden, linear, pull = parts(True)
    linear.requires_grad_(False)
    head_entropies(Head(linear), hidden, 1.0, WORDS).mul(pull).sum().backward()
    assert hidden.grad.isfinite().all()
    low = torch.randn(N, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    words = nn.Linear(WIDTH, WORDS, bias=False).bfloat16()
    found = head_entropies(Head(words), low, 1.0, WORDS)
    assert found.dtype == torch.float32
    found.sum().backward()
    assert low.grad.dtype == torch.bfloat16
    wide = low.detach().float().requires_grad_()
    plain(wide @ words.weight.float().T, 1.0).sum().backward()
    torch.testing.assert_close(low.grad.float(), wide.grad, rtol=0.05, atol=0.02)


def test_impossible_tokens_add_nothing():
    logits = torch.tensor([[0.0, 1.0, -torch.inf], [0.0, -torch.inf, -torch.inf]]).requires_grad_()
    found = entropies(logits, 1.0)
    torch.testing.assert_close(found[0], plain(logits[0, :2], 1.0))
    assert found[1] == 0
    found.sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all() and logits.grad[0].any()


def groups():
    made = []
    for weight in (1.0, 0.5):
        old = torch.zeros(3, 6)
        old[1, 1] = torch.nan  # one token that is out of the loss
        made.append(random_rows(4, [6, 4, 2], 19, len(made), old_KT=old, weight=weight))
    return made


@pytest.mark.parametrize("kind", ["dapo", "grpo"])
def test_the_loss_of_a_mini_batch_in_any_pieces(kind):
    model = load_policy(CHECKPOINT, "cpu").model.double()
    expected = torch.zeros((), dtype=torch.float64)
    tokens = rows = 0
    for group in groups():
        ids = torch.cat([group.prompt_L.expand(3, -1), group.tokens_KT], dim=1)
        logits = model(input_ids=ids).logits[:, 3:-1]
        sums = torch.where(group.counted_KT, plain(logits, 0.6), 0.0).sum(1)
        n_K = group.counted_KT.sum(1)
        tokens, rows = tokens + int(n_K.sum()), rows + 3
        expected = expected + group.weight * (sums / n_K if kind == "grpo" else sums).sum()
    expected = expected / (rows if kind == "grpo" else tokens)
    expected.backward()
    gradient = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    for n_tokens, chunk in ((10**6, 2**25), (12, 64)):
        model.zero_grad()
        config = UpdateSettings(loss=kind, temperature=0.6, max_tokens_per_microbatch=n_tokens)
        done = backward(EntropyScorer(model, chunk), groups(), config)
        assert done.loss == pytest.approx(float(expected.detach()), abs=1e-9)
        assert done.n_tokens == done.n_forward == tokens and done.n_left_out == 2
        found = [p.grad for p in model.parameters() if p.grad is not None]
        for mine, other in zip(found, gradient, strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)


def test_without_gradient_it_is_a_scorer(monkeypatch):
    model = load_policy(CHECKPOINT, "cpu").model
    rows = Scorer(model).micro_batch(groups(), [(0, 0), (0, 1)]).rows
    monkeypatch.setattr(entropy_loss, "head_entropies", None)
    with torch.no_grad():
        ours, theirs = (kind(model)(rows, 0.6, True) for kind in (EntropyScorer, Scorer))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine is not None and torch.equal(mine, other)
