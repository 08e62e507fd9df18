"""A tiny checkpoint in a larger model says what it said."""

from __future__ import annotations

import pytest
import torch
from grown_model import grown_policy

from lab.errors import UserError
from real.model.policy import load_policy
from real.tiny import CHECKPOINT
from real.tiny.arithmetic import RESPONSE_TOKENS


def test_it_says_the_same():
    small, large = load_policy(CHECKPOINT, "cpu"), grown_policy(CHECKPOINT, 3, 96, 22)
    tokens = torch.randint(0, 32, (4, 30), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, found = small.model(tokens).logits, large.model(tokens).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    assert large.eos_token_ids == small.eos_token_ids
    sizes = [sum(p.numel() for p in policy.model.parameters()) for policy in (small, large)]
    assert sizes[1] > 2 * sizes[0]


def test_longer_responses_have_no_end_but_room():
    large = grown_policy(CHECKPOINT, 2, 64, 40)
    assert large.eos_token_ids == ()
    small = load_policy(CHECKPOINT, "cpu")
    assert large.max_positions == small.max_positions + 2 * (40 - RESPONSE_TOKENS)


@pytest.mark.parametrize(("layers", "width"), [(1, 64), (2, 32), (2, 80)])
def test_it_cannot_shrink(layers: int, width: int):
    with pytest.raises(UserError, match=r"^(layers|width) = \d+: .*(at least|multiple)"):
        grown_policy(CHECKPOINT, layers, width, 22)
