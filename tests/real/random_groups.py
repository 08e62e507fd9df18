"""Random groups of responses to a small random model, and the gradient of their loss."""

from dataclasses import replace

import torch
from small_models import causal

from real.settings.groups import UpdateSettings
from real.update.grpo import backward
from real.update.packing import Group, PackedRows

VOCABULARY, PROMPT, RESPONSE = 13, 4, 6


def random_model(seed):
    """In double precision throughout, which models with rotary positions are not."""
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": VOCABULARY}
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    return causal("GPT2", seed, **sizes, **ends, initializer_range=0.4).double()


def logprobs_of(scorer, prompt_L, tokens_KT, temperature):
    """(K, T) log-probs of response tokens to one (L,) prompt, with gradient."""
    n_rows, width = tokens_KT.shape
    inputs = torch.cat([prompt_L.expand(n_rows, -1), tokens_KT[:, :-1]], dim=1)
    rows = PackedRows(inputs, None, width, tokens_KT.flatten())
    return scorer(rows, temperature).logprobs_n.view(n_rows, width)


def make_group(scorer, seed=0, rows=8, **changes):
    """Random responses of unequal length, from a policy that is some way off."""
    g = torch.Generator().manual_seed(seed)
    prompt = torch.randint(0, VOCABULARY, (PROMPT + seed % 3,), generator=g)
    tokens = torch.randint(0, VOCABULARY, (rows, RESPONSE), generator=g)
    lengths = torch.randint(1, RESPONSE + 1, (rows,), generator=g)
    with torch.no_grad():
        old = logprobs_of(scorer, prompt, tokens, 0.6)
    old = old + 0.3 * torch.randn(old.shape, generator=g, dtype=old.dtype)
    majority, minority = torch.randn((2, rows), generator=g, dtype=torch.float64)
    group = Group(prompt, tokens, old, lengths, majority, minority)
    return replace(group, **changes)


def silenced(group):
    zero = torch.zeros_like(group.majority_K)
    return replace(group, majority_K=zero, minority_K=zero)


def random_rows(n_prompt, lengths, vocabulary, seed=0, **changes):
    """Random responses of the given lengths, all with an advantage of 1."""
    g = torch.Generator().manual_seed(seed)
    n_rows, width = len(lengths), max(lengths)
    group = Group(
        prompt_L=torch.randint(0, vocabulary, (n_prompt,), generator=g),
        tokens_KT=torch.randint(0, vocabulary, (n_rows, width), generator=g),
        old_KT=-torch.rand((n_rows, width), generator=g),
        lengths_K=torch.tensor(lengths),
        majority_K=torch.ones(n_rows),
        minority_K=torch.zeros(n_rows),
    )
    return replace(group, **changes)


def gradient(scorer, groups, config, **options):
    scorer.zero_grad(set_to_none=True)
    done = backward(scorer, groups, config, **options)
    flat = [p.grad.flatten() for p in scorer.parameters() if p.grad is not None]
    return done.loss, torch.cat(flat) if flat else torch.zeros(0)


CONFIG = UpdateSettings(temperature=0.6)
