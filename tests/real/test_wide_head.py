"""Logits in single precision: log-probs and gradients in bfloat16 against double precision."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from real.model.policy import WideHead, add_product, load_policy, wide_product, widen_head
from real.tiny import CHECKPOINT
from real.update.head import Head, head_scores
from real.update.logprobs import find_head

VOCABULARY = 40
BIAS = (False, True)


def draws(bias: bool) -> tuple[Tensor, Any, Tensor]:
    """Hidden states and a head in bfloat16 with logits of about 16, and target tokens."""
    g = torch.Generator().manual_seed(0)
    head = torch.nn.Linear(64, VOCABULARY, bias=bias)
    with torch.no_grad():
        head.weight.copy_(2 * torch.randn(VOCABULARY, 64, generator=g))
    hidden = torch.randn(300, 64, generator=g).bfloat16()
    return hidden, head.bfloat16(), torch.randint(0, VOCABULARY, (300,), generator=g)


def widened(head: Any) -> Any:
    wide = copy.deepcopy(head)
    wide.__class__ = WideHead
    return wide


def scored(head: Any, hidden: Tensor, targets: Tensor, chunk: int) -> tuple[Tensor, ...]:
    """Log-probs, and gradients of the hidden states, the weights and the bias."""
    hidden = hidden.clone().requires_grad_()
    scores = head_scores(Head(head), hidden, targets, 0.6, chunk_elements=chunk)
    scores.logprobs_n.sum().backward()
    grads = [p.grad for p in head.parameters()]
    return scores.logprobs_n.detach(), hidden.grad, *grads  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("bias", BIAS)
@pytest.mark.parametrize("chunk", [2**20, 16 * VOCABULARY])
def test_log_probs_are_those_of_double_precision(bias: bool, chunk: int) -> None:
    hidden, head, targets = draws(bias)
    exact = scored(copy.deepcopy(head).double(), hidden.double(), targets, chunk)
    wide = scored(widened(head), hidden, targets, chunk)
    narrow = scored(copy.deepcopy(head), hidden, targets, chunk)
    assert wide[0].dtype == torch.float32
    assert (wide[0] - exact[0]).abs().max() < 1e-4
    assert (narrow[0] - exact[0]).abs().max() > 0.05
    for found, expected in zip(wide[1:], exact[1:], strict=True):
        assert found.dtype == torch.bfloat16
        assert (found.double() - expected).norm() / expected.norm() < 0.01


def test_full_precision_is_unchanged_to_the_bit() -> None:
    hidden, head, targets = draws(True)
    head = head.float()
    plain = scored(copy.deepcopy(head), hidden.float(), targets, 16 * VOCABULARY)
    wide = scored(widened(head), hidden.float(), targets, 16 * VOCABULARY)
    assert all(torch.equal(a, b) for a, b in zip(plain, wide, strict=True))


def test_a_model_keeps_its_weights_and_gives_wide_logits() -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    config = LlamaConfig(
        **sizes, num_attention_heads=2, vocab_size=VOCABULARY, tie_word_embeddings=True
    )
    model: Any = LlamaForCausalLM(config).bfloat16().eval()
    names = list(model.state_dict())
    widen_head(model)
    assert model(input_ids=torch.arange(5)[None]).logits.dtype == torch.float32
    assert list(model.state_dict()) == names
    assert model.lm_head.weight is model.model.embed_tokens.weight
    head = find_head(model)
    assert head is not None and head.plain


def test_the_low_precision_product_adds_up_in_the_total_s_precision() -> None:
    g = torch.Generator().manual_seed(0)
    left, right = (torch.randn(30, 30, generator=g).bfloat16() for _ in range(2))
    total = torch.full((30, 30), 1000.0)
    add_product(total, left, right)
    expected = 1000.0 + left.double() @ right.double()
    assert (total - expected).abs().max() < 1e-3


def test_products_of_tensors_without_data_have_single_precision() -> None:
    """The path of a GPU, as far as shapes and types go."""
    left, right = (torch.empty(30, 30, dtype=torch.bfloat16, device="meta") for _ in range(2))
    assert wide_product(left, right, right[0]).dtype == torch.float32
    total = torch.empty(30, 30, device="meta")
    add_product(total, left, right)
    assert total.dtype == torch.float32


@pytest.mark.parametrize(("head_dtype", "dtype"), [("float32", "float32"), ("model", "bfloat16")])
def test_the_setting_decides(head_dtype: Any, dtype: str) -> None:
    policy = load_policy(CHECKPOINT, "cpu", "bfloat16", head_dtype=head_dtype)
    logits = policy.model(input_ids=torch.arange(5)[None]).logits
    assert logits.dtype == getattr(torch, dtype)
