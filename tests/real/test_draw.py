"""Draws of single tokens: by the cumulative distribution, within the nucleus."""

from __future__ import annotations

import torch

from real.engines.transformers_engine import draw


def test_draw_inverts_the_cumulative_distribution() -> None:
    probs = torch.tensor([0.25, 0.0, 0.5, 0.25, 0.0])
    uniforms = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-24])
    tokens, logprobs = draw(probs.log().expand(6, -1), uniforms, 1.0)
    assert tokens.tolist() == [0, 0, 2, 2, 3, 3]
    assert torch.allclose(logprobs.exp(), probs[tokens])


def test_tokens_of_no_probability_are_never_drawn() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(200, 1000, generator=generator) * 4
    banned = torch.rand(logits.shape, generator=generator) < 0.5
    logits[banned] = -torch.inf
    for uniform in (0.0, 2**-24, 0.5, 1 - 2**-24):
        tokens, logprobs = draw(logits, torch.full((200,), uniform), 0.8)
        assert not banned[range(200), tokens].any()
        assert logprobs.isfinite().all()


def test_top_p_keeps_the_smallest_likely_set() -> None:
    probs = torch.tensor([0.1, 0.4, 0.2, 0.3])
    uniforms = torch.linspace(0, 0.999, 1000)
    tokens, logprobs = draw(probs.log().expand(1000, -1), uniforms, 1.0, top_p=0.6)
    counts = torch.bincount(tokens, minlength=4) / 1000
    assert torch.allclose(counts, torch.tensor([0.0, 4 / 7, 0.0, 3 / 7]), atol=2e-3)
    assert torch.allclose(logprobs.exp(), probs[tokens])
    assert torch.equal(
        draw(probs.log().expand(1000, -1), uniforms, 1.0, top_p=1e-6)[0],
        torch.ones(1000, dtype=torch.int64),
    )


def test_nan_logits_are_seen_in_the_logprobs() -> None:
    tokens, logprobs = draw(torch.full((2, 4), torch.nan), torch.tensor([0.0, 0.9]), 1.0)
    assert ((tokens >= 0) & (tokens < 4)).all()
    assert logprobs.isnan().all()
