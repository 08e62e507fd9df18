r"""Statistics of a response's tokens: log-likelihood of its steps, entropy, self-certainty.

Entropy and self-certainty are those of the engine where it gives them; a vLLM server gives the
log-probs of sampled tokens alone, and then a forward pass of the trainer computes them, over all V
responses and without gradient: about a third of an update on as many rows.

Steps are the parts between blank lines, as SCOPE cuts responses. Log-probs belong to tokens and
blank lines to text, and one token may hold the end of a step and the blank line (`.\n\n`), or a
blank line may be spread over several. So the text is put together token by token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from real.engines.rollouts import Prompts, Rollouts
from real.update.group import Group
from real.update.logprobs import Scorer, group_stats

_BLANK_LINES = re.compile(r"\n\s*\n")
_ANCHORS = 256
"""So many ids of a vocabulary are looked at for a token that is plain text."""


def step_logprobs(rollouts: Rollouts, tokenizer: Any) -> NDArray[np.float64]:
    """Mean over a response's steps of the step's mean token log-prob, in nats.

    A token belongs to the step in which its text begins; blank lines to the step before them,
    those at the beginning, and whatever follows the last text, to the only step there is.

    Args:
        rollouts: P prompts, V responses each.
        tokenizer: that wrote the tokens.

    Returns:
        (P, V); tokens whose log-prob is not finite are left out, and so are steps without any
        other. NaN where a response has none at all. A response without a blank line is one step.
    """
    shape, width = rollouts.lengths_PN.shape, rollouts.tokens_PNT.shape[-1]
    tokens_RT = rollouts.tokens_PNT.reshape(-1, width).cpu().numpy()
    logprobs_RT = rollouts.logprobs_PNT.reshape(-1, width).double().cpu().numpy()
    lengths_R = rollouts.lengths_PN.flatten().cpu().numpy()
    inside_RT = np.arange(width) < lengths_R[:, None]
    steps_RT = np.zeros(tokens_RT.shape, np.int64)
    text_of = token_texts(tokenizer, np.flatnonzero(np.bincount(tokens_RT[inside_RT])).tolist())
    lines = [token for token, text in text_of.items() if "\n" in text]
    broken_R = (np.isin(tokens_RT, lines) & inside_RT).any(axis=1) if lines else []
    for row in np.flatnonzero(broken_R):
        length = lengths_R[row]
        steps_RT[row, :length] = steps_of([text_of[i] for i in tokens_RT[row, :length].tolist()])
    return _mean_of_means(logprobs_RT, steps_RT, inside_RT).reshape(shape)


_TEXTS: WeakKeyDictionary[Any, dict[int, str]] = WeakKeyDictionary()
"""Properties of a tokenizer's tokens; they are few, and the same on every step."""


def token_texts(tokenizer: Any, ids: Collection[int]) -> dict[int, str]:
    """Text that each token adds to the one before; special tokens add nothing.

    Parts of a character that is spread over tokens come as replacement characters.
    """

    def decode(tokens: list[int]) -> str:
        return tokenizer.decode(tokens, skip_special_tokens=True)

    known = _TEXTS.setdefault(tokenizer, {})
    if new := set(ids) - known.keys():
        # At the beginning of a text many tokenizers drop a space, so each follows another token.
        anchor = _anchor(decode, len(tokenizer))
        before = decode(anchor)
        known |= {i: decode([*anchor, i]).removeprefix(before) for i in new}
    return {i: known[i] for i in ids}


def steps_of(texts: list[str]) -> NDArray[np.int64]:
    """(T,) numbers of the steps that the tokens of a response belong to, from 0 on.

    Args:
        texts: (T,) of the tokens.
    """
    whole = "".join(texts)
    first, last = len(whole) - len(whole.lstrip()), len(whole.rstrip())
    ends = [blank.end() for blank in _BLANK_LINES.finditer(whole, first, last)]
    begins_T = np.cumsum([0, *map(len, texts[:-1])])
    return np.searchsorted(ends, begins_T, side="right").astype(np.int64)


def _anchor(decode: Callable[[list[int]], str], size: int) -> list[int]:
    """One token of plain text, if one is found quickly."""
    for token in range(min(size, _ANCHORS)):
        text = decode([token])
        if text.isascii() and text.isprintable() and text.strip() == text != "":
            return [token]
    return []


def _mean_of_means(
    values_RT: NDArray[np.float64], steps_RT: NDArray[np.int64], inside_RT: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """(R,) mean over steps of the mean of a step's finite values."""
    rows, n_steps = len(values_RT), int(steps_RT.max(initial=0)) + 1
    kept = inside_RT & np.isfinite(values_RT)
    bins = (np.arange(rows)[:, None] * n_steps + steps_RT)[kept]
    size = rows * n_steps
    sums = np.bincount(bins, values_RT[kept], size).reshape(rows, n_steps)
    counts = np.bincount(bins, minlength=size).reshape(rows, n_steps)
    result = np.full(rows, np.nan)
    n_filled = (counts > 0).sum(axis=1)
    means = (sums / np.maximum(counts, 1)).sum(axis=1)
    np.divide(means, n_filled, out=result, where=n_filled > 0)
    return result


def token_stats(
    scorer: Scorer,
    prompts: Prompts,
    rollouts: Rollouts,
    temperature: float,
    micro_tokens: int,
    share: tuple[int, int] = (0, 1),
) -> tuple[Tensor, Tensor]:
    """Mean entropy and self-certainty of the tokens of every response.

    Equal responses to a prompt are computed once. Logits exist for a chunk of tokens at a time.

    Args:
        scorer: the model of the version that drew the rollouts.
        prompts: (P,) token ids of each prompt.
        rollouts: of these prompts, on the model's device.
        temperature: that of sampling.
        micro_tokens: most tokens of a pass, padding included.
        share: rank and number of ranks, which divide the passes and get all values.

    Returns:
        (P, V) float64 mean entropy and (P, V) float64 mean KL(uniform || next-token distribution),
        in nats; not finite where the model's logits are not.
    """
    groups, inverses = [], []
    for prompt, tokens_VT, lengths_V in zip(
        prompts, rollouts.tokens_PNT, rollouts.lengths_PN, strict=True
    ):
        rows, inverse = _distinct(tokens_VT, lengths_V)
        groups.append(_group(prompt, tokens_VT[rows], lengths_V[rows]))
        inverses.append(inverse)
    stats = group_stats(scorer, groups, temperature, micro_tokens, share)
    pairs = zip(stats, inverses, strict=True)
    entropy_PV, certainty_PV = torch.stack([values[:, rows] for values, rows in pairs], dim=1)
    return entropy_PV, certainty_PV - math.log(_vocabulary(scorer))


def _distinct(tokens_VT: Tensor, lengths_V: Tensor) -> tuple[Tensor, Tensor]:
    """Places of the first of equal responses, and which of these every response is."""
    row_of: dict[tuple[int, ...], int] = {}
    first: list[int] = []
    inverse: list[int] = []
    pairs = zip(tokens_VT.tolist(), lengths_V.tolist(), strict=True)
    for index, (row, length) in enumerate(pairs):
        key = tuple(row[:length])
        if key not in row_of:
            row_of[key] = len(first)
            first.append(index)
        inverse.append(row_of[key])
    device = tokens_VT.device
    return torch.tensor(first, device=device), torch.tensor(inverse, device=device)


def _group(prompt: Sequence[int], tokens_KT: Tensor, lengths_K: Tensor) -> Group:
    """Responses to be scored; all their tokens count, whatever log-prob the engine gave them."""
    zeros_K = torch.zeros(len(lengths_K), device=tokens_KT.device)
    return Group(
        prompt_L=torch.tensor(prompt, dtype=torch.long, device=tokens_KT.device),
        tokens_KT=tokens_KT,
        old_KT=torch.zeros(tokens_KT.shape, device=tokens_KT.device),
        lengths_K=lengths_K,
        majority_K=zeros_K,
        minority_K=zeros_K,
    )


def _vocabulary(scorer: Scorer) -> int:
    """Logits a token."""
    linear = scorer.head.linear if scorer.head else scorer.model.get_output_embeddings()
    return linear.weight.shape[0]
