"""The two-stream clipped policy-gradient loss, in one forward and one backward pass (SPEC 5, 9).

A token with probability ratio rho = pi / pi_old costs
`-weight * (min(rho * A1, clip(rho) * A1) + min(rho * A2, clip(rho) * A2))`, with A1 and A2 the
majority and the minority advantage of its response, beta already folded in. The loss of a
mini-batch is a sum over tokens divided once by one denominator, so every way of cutting it into
micro-batches gives the same gradient.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from real.config import LossKind

_LOG_RATIO_LIMIT = 20.0
"""Keeps exp finite in single precision; far outside of every clip range."""


@dataclass(frozen=True, slots=True)
class LossConfig:
    """What of GRPO can be chosen once advantages are given."""

    kind: LossKind = "token_mean"
    """Mean over tokens; over responses of their token means; or Dr. GRPO's constant: token sums
    over the number of responses times `max_tokens`."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    """The ratio is clipped to `[1 - clip_low, 1 + clip_high]`."""
    temperature: float = 1.0
    """Log-probs are those of the distribution that was sampled from."""
    max_tokens: int = 1
    """Longest response; read by `kind="constant"` only."""
    drop_uniform: bool = False
    """Problems without any advantage leave the batch instead of counting in its denominator."""
    micro_tokens: int = 16384
    """Rows of one forward pass are so many that prompt and response tokens stay below this."""


@dataclass(frozen=True, slots=True)
class Group:
    """The K trained responses to one problem."""

    prompt_L: Tensor
    """(L,) token ids."""
    tokens_KT: Tensor
    """(K, T) response token ids, padded on the right; the end token is part of the response."""
    old_KT: Tensor
    """(K, T) log-probs of those tokens under the policy that sampled them."""
    lengths_K: Tensor
    """(K,) response lengths in tokens, at least 1."""
    majority_K: Tensor
    """(K,) first advantage stream."""
    minority_K: Tensor
    """(K,) second advantage stream."""
    weight: float = 1.0
    """Factor on the problem's loss."""
    dropped: bool = False
    """The problem leaves the batch: no forward, no backward, no share in the denominator."""

    @property
    def silent(self) -> bool:
        """All advantages are zero, so the gradient is exactly zero (there is no KL term)."""
        return not bool(self.majority_K.any() or self.minority_K.any())

    def rows(self, start: int, stop: int) -> Group:
        """Responses `start..stop`, with the columns that only padding uses cut off."""
        lengths = self.lengths_K[start:stop]
        width = int(lengths.max())
        return Group(
            prompt_L=self.prompt_L,
            tokens_KT=self.tokens_KT[start:stop, :width],
            old_KT=self.old_KT[start:stop, :width],
            lengths_K=lengths,
            majority_K=self.majority_K[start:stop],
            minority_K=self.minority_K[start:stop],
            weight=self.weight,
            dropped=self.dropped,
        )


class TokenLoss(NamedTuple):
    """The loss of every token before any mean."""

    loss_KT: Tensor
    """(K, T); what stands at padding is meaningless."""
    clipped_KT: Tensor
    """(K, T) bool; the clip cut this token's majority or minority gradient."""


class Pass(NamedTuple):
    """One mini-batch after its backward passes."""

    loss: float
    n_tokens: int
    """Response tokens in the mini-batch, those of silent groups included."""
    n_clipped: int
    """Response tokens of which the clip cut the gradient."""
    n_forward: int
    """Response tokens that went through the model."""


def backward(model: Any, groups: Sequence[Group], config: LossConfig) -> Pass:
    """Add the gradient of one mini-batch's loss to the parameters.

    Args:
        model: a causal language model of transformers; should be in evaluation mode, so that
            dropout cannot move the ratio.
        groups: the mini-batch; dropped ones must have been left out.
        config: of the loss.

    Returns:
        What the mini-batch cost. Silent groups are not computed: their gradient is zero.
    """
    bottom = denominator(groups, config)
    losses: list[Tensor] = []
    clips: list[Tensor] = []
    active = [group for group in groups if not group.silent]
    for group in active:
        for rows in micro_batches(group, config.micro_tokens):
            loss, clipped = _rows_loss(model, rows, config)
            (loss / bottom).backward()
            losses.append(loss.detach())
            clips.append(clipped)
    # Numbers are fetched once, at the end: each fetch waits for a GPU to catch up.
    total = sum(part.item() for part in losses) / bottom
    return Pass(total, _n_tokens(groups), sum(int(n) for n in clips), _n_tokens(active))


def kept(groups: Sequence[Group], drop_uniform: bool) -> list[Group]:
    """The groups that stay in the mini-batch and in its denominator."""
    return [g for g in groups if not g.dropped and not (drop_uniform and g.silent)]


def denominator(groups: Sequence[Group], config: LossConfig) -> float:
    """What the mini-batch's sum over tokens is divided by, once."""
    if config.kind == "token_mean":
        return float(_n_tokens(groups))
    n_rows = sum(group.lengths_K.shape[0] for group in groups)
    return float(n_rows if config.kind == "sequence_mean" else n_rows * config.max_tokens)


def micro_batches(group: Group, micro_tokens: int) -> list[Group]:
    """Rows of one problem in pieces of at most `micro_tokens` tokens, but at least one row.

    All rows of a piece share the prompt, so nothing is padded on the left, and no attention mask
    is needed: under causal attention padding on the right reaches no earlier token.
    """
    n_rows, width = group.tokens_KT.shape
    size = max(1, micro_tokens // (group.prompt_L.shape[0] + width))
    starts = range(0, n_rows, size)
    return [group.rows(start, min(start + size, n_rows)) for start in starts]


def token_loss(
    logprobs_KT: Tensor,
    old_KT: Tensor,
    majority_K: Tensor,
    minority_K: Tensor,
    config: LossConfig,
) -> TokenLoss:
    """The clipped loss of both streams for every token, from one set of log-probs.

    Args:
        logprobs_KT: (K, T) log-probs under the policy that is trained.
        old_KT: (K, T) log-probs under the policy that sampled.
        majority_K: (K,) first advantage stream.
        minority_K: (K,) second advantage stream.
        config: the clip range is read.
    """
    log_ratio = logprobs_KT - old_KT.to(logprobs_KT.dtype)
    ratio = log_ratio.clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT).exp()
    bounded = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    loss = torch.zeros_like(ratio)
    clipped = torch.zeros_like(ratio, dtype=torch.bool)
    for advantages_K in (majority_K, minority_K):
        advantages_K1 = advantages_K.to(ratio.dtype)[:, None]
        free, cut = ratio * advantages_K1, bounded * advantages_K1
        loss = loss - torch.minimum(free, cut)
        clipped = clipped | (cut < free)
    return TokenLoss(loss, clipped)


def response_logprobs(
    model: Any, prompt_L: Tensor, tokens_KT: Tensor, temperature: float
) -> Tensor:
    """(K, T) log-probs of response tokens, with gradient; logits of the prompt are never made.

    Args:
        model: a causal language model of transformers.
        prompt_L: (L,) token ids that all rows share.
        tokens_KT: (K, T) response token ids, padded on the right.
        temperature: divides the logits.
    """
    n_rows, width = tokens_KT.shape
    rows = torch.cat([prompt_L.expand(n_rows, -1), tokens_KT[:, :-1]], dim=1)
    options = {"logits_to_keep": width} if _takes(model, "logits_to_keep") else {}
    logits = model(input_ids=rows, use_cache=False, **options).logits[:, -width:]
    # In place: the projection that made the logits does not need them for its gradient.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).div_(temperature)
    chosen = logits.gather(-1, tokens_KT[..., None]).squeeze(-1)
    return chosen - logits.logsumexp(-1)


def _rows_loss(model: Any, rows: Group, config: LossConfig) -> tuple[Tensor, Tensor]:
    """Summed loss of some rows of one problem, and how many of their tokens were clipped."""
    logprobs = response_logprobs(model, rows.prompt_L, rows.tokens_KT, config.temperature)
    places = torch.arange(rows.tokens_KT.shape[1], device=logprobs.device)
    real_KT = places < rows.lengths_K[:, None]
    # Chosen before the loss, so that padding can bring no infinity into the gradient.
    old = torch.where(real_KT, rows.old_KT.to(logprobs.dtype), logprobs.detach())
    per_token, clipped = token_loss(logprobs, old, rows.majority_K, rows.minority_K, config)
    sums_K = torch.where(real_KT, per_token, 0.0).sum(dim=1)
    if config.kind == "sequence_mean":
        sums_K = sums_K / rows.lengths_K
    return rows.weight * sums_K.sum(), (clipped & real_KT).sum()


def _n_tokens(groups: Sequence[Group]) -> int:
    return sum(int(group.lengths_K.sum()) for group in groups)


def _takes(model: Any, option: str) -> bool:
    return option in inspect.signature(model.forward).parameters
