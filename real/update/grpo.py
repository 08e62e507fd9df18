"""The two-stream clipped policy-gradient loss, in one forward and one backward pass.

Definition: docs/method.md, sections 5 and 9.

A token with probability ratio rho = pi / pi_old costs
`-weight * (min(rho * A1, clip(rho) * A1) + min(rho * A2, clip(rho) * A2))`, with A1 and A2 the
majority and the minority advantage of its response, beta already folded in. The loss of a
mini-batch is a sum over tokens divided once by one denominator, so every way of cutting it into
micro-batches, and of dealing those to ranks, gives the same gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from real.settings.choices import LossKind
from real.update.group import Group, kept, without_rows
from real.update.logprobs import Scorer, group_logprobs
from real.update.packing import MicroBatch, PackedRows
from real.update.pass_sums import Sums, broken_rows, totals
from real.update.passes import Place, RowCounts, row_counts

__all__ = [
    "MEAN_OF_LOSS",
    "Group",
    "LossConfig",
    "Pass",
    "Reference",
    "TokenLoss",
    "backward",
    "denominator",
    "kept",
    "token_loss",
    "without_rows",
]

MeanKind = Literal["token_mean", "sequence_mean", "constant"]
MEAN_OF_LOSS: dict[LossKind, MeanKind] = {
    "dapo": "token_mean",
    "grpo": "sequence_mean",
    "dr_grpo": "constant",
}
"""TRL's names of losses (`loss_type`) to what sets them apart there, and here. What their papers
propose besides has settings of its own: upper clip, scale of advantages, dropped groups."""
Reference = Callable[[PackedRows, float], Tensor]
"""Packed rows and temperature to (n,) log-probs of the reference policy, without gradient."""

_LOG_RATIO_LIMIT = 20.0
"""Keeps exp finite in single precision; far outside of every clip range."""


@dataclass(frozen=True, slots=True)
class LossConfig:
    """Options of the GRPO loss for given advantages."""

    kind: MeanKind = "token_mean"
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
    kl_coef: float = 0.0
    """Factor on the KL divergence from the reference policy; at 0 there is no reference. The
    problem's weight does not scale this term: a doubtful label is no reason to drift faster."""
    objective: Literal["policy", "entropy"] = "policy"
    """The clipped loss of the advantages, or the entropy of the responses' tokens whatever their
    advantages are; that needs an `EntropyScorer`."""


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
    """Response tokens that went through the model, on any rank."""
    n_inputs: int = 0
    """The same with their prompts: tokens of which the model's matrices were multiplied."""
    n_left_out: int = 0
    """Response tokens outside of loss and denominator: the sampler's log-prob is not finite."""
    broken: tuple[Place, ...] = ()
    """Rows with tokens whose log-prob under the trained policy is not finite. They spoil the
    gradient: forget it, and repeat the pass on `without_rows(groups, broken)`."""
    kl: float = 0.0
    """Mean over the forwarded tokens of the estimated KL divergence from the reference."""


def backward(
    model: Any,
    groups: Sequence[Group],
    config: LossConfig,
    share: tuple[int, int] = (0, 1),
    reference: Reference | None = None,
) -> Pass:
    """Add the gradient of one mini-batch's loss to the parameters.

    Args:
        model: a causal language model of transformers, or a `Scorer` of one; should be in
            evaluation mode, so that dropout cannot move the ratio.
        groups: the mini-batch, the same on all ranks; dropped ones must have been left out.
        config: of the loss.
        share: rank and number of ranks. Every rank plans the same micro-batches and runs each
            `world`-th, all equally many: one with nothing left runs a row at weight zero, since
            sharded models need all ranks in every pass. The loss is multiplied by `world`,
            because data-parallel wrappers (FSDP2, DDP) average gradients over ranks and here
            the ranks' gradients have to add up: the denominator is that of the whole mini-batch.
        reference: of the KL term; needed when `kl_coef > 0`.

    Returns:
        What the mini-batch cost, over all ranks. Silent groups are not computed while there is no
        KL or entropy term: their gradient is zero.
    """
    rank, world = share
    scorer = model if isinstance(model, Scorer) else Scorer(model)
    counts = [row_counts(group) for group in groups]
    all_cost = config.kl_coef > 0 or config.objective == "entropy"
    active = {i for i, g in enumerate(groups) if all_cost or not g.silent}
    passes, bundle, n_inputs = scorer.plan(groups, counts, config.micro_tokens, world, only=active)
    own_passes = passes[rank::world]
    # All are laid out before the first runs, so that a GPU is never waited for in between.
    batches = [scorer.micro_batch(groups, places or passes[0][:1], bundle) for places in own_passes]
    bottom = denominator(counts, config)
    sums_of_passes: list[Sums] = []
    for places, batch in zip(own_passes, batches, strict=True):
        loss, sums = _micro_loss(scorer, batch, config, reference)
        (loss * (world if places else 0) / bottom).backward()
        if places:
            sums_of_passes.append(sums)
    loss, n_clipped, kl, n_broken = totals(sums_of_passes, world, groups[0].old_KT.device)
    broken = broken_rows(sums_of_passes, passes, share) if n_broken else ()
    if broken and bundle > 1:
        broken = _broken_alone(scorer, groups, config, share) or broken
    n_tokens, n_forward = (sum(map(sum, c)) for c in (counts, [counts[i] for i in active]))
    return Pass(
        loss=loss / bottom if bottom else 0.0,
        n_tokens=n_tokens,
        n_clipped=int(n_clipped),
        n_forward=n_forward,
        n_inputs=n_inputs,
        n_left_out=sum(int(group.lengths_K.sum()) for group in groups) - n_tokens,
        broken=broken,
        kl=kl / n_forward if n_forward else 0.0,
    )


def _broken_alone(
    scorer: Scorer, groups: Sequence[Group], config: LossConfig, share: tuple[int, int]
) -> tuple[Place, ...]:
    """Broken rows without those that share a sequence with one: 0 times NaN is NaN in attention."""
    logprobs = group_logprobs(
        scorer, groups, config.temperature, config.micro_tokens, share, bundled=False
    )
    return tuple(
        (index, row)
        for index, (group, values_KT) in enumerate(zip(groups, logprobs, strict=True))
        for row in (group.counted_KT & ~values_KT.isfinite()).any(dim=1).nonzero()[:, 0].tolist()
    )


def denominator(counts: Sequence[RowCounts], config: LossConfig) -> float:
    """Denominator of the mini-batch's sum over tokens.

    Args:
        counts: tokens of the loss in every row of every group, silent groups included.
        config: of the loss.
    """
    if config.kind == "token_mean":
        return float(sum(map(sum, counts)))
    n_rows = sum(count > 0 for row in counts for count in row)
    return float(n_rows if config.kind == "sequence_mean" else n_rows * config.max_tokens)


def token_loss(
    logprobs_KT: Tensor,
    old_KT: Tensor,
    majority_K: Tensor,
    minority_K: Tensor,
    config: LossConfig,
) -> TokenLoss:
    """The clipped loss of every token, both advantage streams at once.

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


def kl_estimate(logprobs: Tensor, other: Tensor) -> Tensor:
    """Schulman's k3, `exp(d) - 1 - d` with `d = other - logprobs`, for every token.

    Its mean over tokens sampled with `logprobs` is KL(policy || other); it is never negative, and
    varies less than `-d`.
    """
    gap = (other - logprobs).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    return torch.expm1(gap) - gap


def _micro_loss(
    scorer: Scorer, batch: MicroBatch, config: LossConfig, reference: Reference | None
) -> tuple[Tensor, Sums]:
    """Summed loss of one micro-batch, with gradient, and what else it adds up to."""
    scored = scorer(batch.rows, config.temperature)
    if config.objective == "entropy":
        assert scored.entropy_n is not None
        return _entropy_loss(batch.unfold(scored.entropy_n), batch, config)
    logprobs = batch.unfold(scored.logprobs_n)
    # Chosen before the loss, so that padding can bring no infinity into the gradient.
    old = torch.where(batch.counted_RT, batch.stacked("old_KT").to(logprobs.dtype), 0.0)
    streams = batch.stacked("majority_K"), batch.stacked("minority_K")
    per_token, clipped = token_loss(logprobs, old, *streams, config)
    if any(part.correction_KT is not None for part in batch.parts):
        correction = batch.stacked("correction_KT", missing=1.0)
        per_token = per_token * torch.where(batch.counted_RT, correction, 1.0)
    loss = _weighted_sum(per_token, batch, config)
    kl = loss.new_zeros(())
    if config.kl_coef > 0:
        kl_RT = _reference_kl(logprobs, batch, config, reference)
        loss = loss + config.kl_coef * _row_sums(kl_RT, batch.counted_RT, config).sum()
        kl = torch.where(batch.counted_RT, kl_RT.detach(), 0.0).sum()
    broken_R = (batch.counted_RT & ~logprobs.isfinite()).any(dim=1)
    n_clipped = (clipped & batch.counted_RT).sum()
    numbers = (loss.detach(), n_clipped, kl, broken_R.sum())
    return loss, Sums(torch.stack(numbers), broken_R)


def _entropy_loss(entropy_RT: Tensor, batch: MicroBatch, config: LossConfig) -> tuple[Tensor, Sums]:
    """Loss and sums of the mean token entropy, without clipping."""
    loss = _weighted_sum(entropy_RT, batch, config)
    broken_R = (batch.counted_RT & ~entropy_RT.isfinite()).any(dim=1)
    zero = loss.new_zeros(())
    return loss, Sums(torch.stack((loss.detach(), zero, zero, broken_R.sum())), broken_R)


def _weighted_sum(values_RT: Tensor, batch: MicroBatch, config: LossConfig) -> Tensor:
    """Sum over the rows of all problems, each times its problem's weight."""
    by_part = _row_sums(values_RT, batch.counted_RT, config).split(batch.n_rows_of_parts)
    weighted = [p.weight * sums.sum() for p, sums in zip(batch.parts, by_part, strict=True)]
    return weighted[0] if len(weighted) == 1 else torch.stack(weighted).sum()


def _row_sums(values_RT: Tensor, counted_RT: Tensor, config: LossConfig) -> Tensor:
    """(R,) sums over a row's tokens, or means where every row shall weigh the same."""
    sums_R = torch.where(counted_RT, values_RT, 0.0).sum(dim=1)
    return sums_R / counted_RT.sum(dim=1) if config.kind == "sequence_mean" else sums_R


def _reference_kl(
    logprobs_RT: Tensor, batch: MicroBatch, config: LossConfig, reference: Reference | None
) -> Tensor:
    if reference is None:
        raise ValueError("kl_coef > 0 needs a reference policy")
    return kl_estimate(logprobs_RT, batch.unfold(reference(batch.rows, config.temperature)))
