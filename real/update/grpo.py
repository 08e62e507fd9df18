"""The two-stream clipped policy-gradient loss, in one forward and one backward pass.

A token costs what `guard_core.PolicyStreams` says (docs/method.md, sections 5 and 9). The loss of a
mini-batch is a sum over tokens divided once by one denominator, so every way of cutting it into
micro-batches, and of dealing those to ranks, gives the same gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from real.model.prepare import adapters_off, has_adapters
from real.settings.groups import LossSettings, UpdateSettings
from real.update.logprobs import EntropyScorer, Scorer, group_scores
from real.update.packing import Group, MicroBatch, PackedRows, Place, RowCounts, plan

Reference = Callable[[PackedRows, float], Tensor]
"""Packed rows and temperature to (n,) log-probs of the reference policy, without gradient."""

_LOG_RATIO_LIMIT = 20.0
"""Keeps exp finite in single precision; far outside of every clip range."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One mini-batch after its backward passes."""

    loss: float = 0.0
    n_tokens: int = 0
    """Response tokens in the mini-batch, those of silent groups included."""
    n_clipped: int = 0
    """Response tokens of which the clip cut the gradient."""
    n_forward: int = 0
    """Response tokens whose loss was computed, on any rank."""
    n_inputs: int = 0
    """Tokens that the model's matrices were multiplied with; what rows share counts once."""
    n_left_out: int = 0
    """Response tokens outside of loss and denominator: of no finite log-prob of the sampler, or in
    responses with one of the trainer."""
    broken: tuple[Place, ...] = ()
    """Rows with tokens whose log-prob under the trained policy is not finite. They spoil the
    gradient: forget it, and repeat the pass on `without_rows(groups, broken)`."""
    kl: float = 0.0
    """Mean over the `n_forward` tokens of the estimated KL divergence from the reference."""


def backward(
    scorer: Scorer,
    groups: Sequence[Group],
    config: UpdateSettings,
    reference: Reference | None = None,
) -> Pass:
    """Add the gradient of one mini-batch's loss to the parameters; returns its cost on all ranks.

    Silent groups are not computed while there is no KL or entropy term: their gradient is zero.

    Args:
        scorer: with an `EntropyScorer` the loss is the entropy of the responses' tokens. Every
            rank plans the same micro-batches and runs each `world`-th, all equally many: one with
            nothing left runs a row at weight zero, since sharded models need all ranks in every
            pass. The loss is multiplied by `world`: FSDP2 and DDP average gradients over ranks.
        groups: the mini-batch, the same on all ranks; dropped ones must have been left out.
        reference: of the KL term, which the problem's weight does not scale: a doubtful label is
            no reason to drift faster.
    """
    rank, world = scorer.share
    counts = [group.row_counts for group in groups]
    all_cost = config.kl_coef > 0 or isinstance(scorer, EntropyScorer)
    # Rows without tokens of the loss are not computed.
    pairs = zip(groups, counts, strict=True)
    active = [row if all_cost or not g.silent else [0] * len(row) for g, row in pairs]
    most, width = config.max_tokens_per_microbatch, scorer.bundle_width
    passes, bundle, n_inputs = plan(groups, active, most, scorer.layout, width, world)
    own_passes = passes[rank::world]
    # All are laid out before the first runs, so that a GPU is never waited for in between.
    batches = [scorer.micro_batch(groups, places or passes[0][:1], bundle) for places in own_passes]
    bottom = denominator(counts, config)
    added = torch.zeros(4, dtype=torch.float64, device=groups[0].old_KT.device)
    for places, batch in zip(own_passes, batches, strict=True):
        loss, numbers = _micro_loss(scorer, batch, config, reference)
        (loss * (world if places else 0) / bottom).backward()
        if places:
            added += numbers
    if world > 1 and dist.is_initialized():
        dist.all_reduce(added)
    loss, n_clipped, kl, n_broken = added.tolist()  # which waits for a GPU to catch up
    broken = _broken_rows(scorer, groups, active, config) if n_broken else ()
    n_tokens, n_forward = (sum(map(sum, c)) for c in (counts, active))
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


def _broken_rows(
    scorer: Scorer, groups: Sequence[Group], active: Sequence[RowCounts], config: UpdateSettings
) -> tuple[Place, ...]:
    """Broken rows without those that share a sequence with one: 0 times NaN is NaN in attention."""
    scores = group_scores(scorer, groups, config, bundled=False)
    return tuple(
        (index, row)
        for index, (group, (values_KT,)) in enumerate(zip(groups, scores, strict=True))
        for row in (group.counted_KT & ~values_KT.isfinite()).any(dim=1).nonzero()[:, 0].tolist()
        if active[index][row]
    )


def denominator(counts: Sequence[RowCounts], config: UpdateSettings) -> float:
    """Denominator of the mini-batch's sum over tokens; silent groups count.

    For dapo the number of tokens, for grpo of responses, whose token means are added, for dr_grpo
    that times the longest response allowed. The names are those of TRL's `loss_type`.
    """
    if config.loss == "dapo":
        return float(sum(map(sum, counts)))
    n_rows = sum(count > 0 for row in counts for count in row)
    return float(n_rows * (1 if config.loss == "grpo" else config.max_response_tokens or 1))


def token_loss(
    logprobs_KT: Tensor,
    old_KT: Tensor,
    majority_K: Tensor,
    minority_K: Tensor,
    config: LossSettings,
) -> tuple[Tensor, Tensor]:
    """(K, T) clipped loss of every token by both advantage streams, and bool where clipped."""
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
    return loss, clipped


def kl_estimate(logprobs: Tensor, other: Tensor) -> Tensor:
    """Schulman's k3, `exp(d) - 1 - d` with `d = other - logprobs`, for every token.

    Its mean over tokens sampled with `logprobs` is KL(policy || other); it is never negative, and
    varies less than `-d`.
    """
    gap = (other - logprobs).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    return torch.expm1(gap) - gap


def _micro_loss(
    scorer: Scorer, batch: MicroBatch, config: UpdateSettings, reference: Reference | None
) -> tuple[Tensor, Tensor]:
    """Summed loss, with gradient; (4,) loss, clipped tokens, KL, rows of no finite log-prob."""
    scored = scorer(batch.rows, config.temperature)
    n_clipped = kl = torch.zeros((), device=batch.counted_RT.device)
    if isinstance(scorer, EntropyScorer):
        assert scored.entropy_n is not None
        values_RT = batch.unfold(scored.entropy_n)
        loss = _weighted_sum(values_RT, batch, config)
    else:
        values_RT = batch.unfold(scored.logprobs_n)
        # Chosen before the loss, so that padding can bring no infinity into the gradient.
        old = torch.where(batch.counted_RT, batch.stacked("old_KT").to(values_RT.dtype), 0.0)
        majority_R, minority_R = batch.stacked("majority_K"), batch.stacked("minority_K")
        per_token, clipped = token_loss(values_RT, old, majority_R, minority_R, config)
        if any(part.correction_KT is not None for part in batch.parts):
            per_token = per_token * batch.stacked("correction_KT").where(batch.counted_RT, 1.0)
        loss = _weighted_sum(per_token, batch, config)
        if config.kl_coef > 0:
            assert reference is not None
            kl_RT = kl_estimate(values_RT, batch.unfold(reference(batch.rows, config.temperature)))
            loss = loss + config.kl_coef * row_sums(kl_RT, batch.counted_RT, config).sum()
            kl = torch.where(batch.counted_RT, kl_RT.detach(), 0.0).sum()
        n_clipped = (clipped & batch.counted_RT).sum()
    n_broken = (batch.counted_RT & ~values_RT.isfinite()).any(dim=1).sum()
    return loss, torch.stack((loss.detach(), n_clipped, kl, n_broken))


def _weighted_sum(values_RT: Tensor, batch: MicroBatch, config: LossSettings) -> Tensor:
    n_rows = [part.lengths_K.shape[0] for part in batch.parts]
    by_part = row_sums(values_RT, batch.counted_RT, config).split(n_rows)
    weighted = [p.weight * sums.sum() for p, sums in zip(batch.parts, by_part, strict=True)]
    return weighted[0] if len(weighted) == 1 else torch.stack(weighted).sum()


def row_sums(values_RT: Tensor, counted_RT: Tensor, config: LossSettings) -> Tensor:
    """(R,) sums over a row's tokens, or means where every row shall weigh the same."""
    sums_R = torch.where(counted_RT, values_RT, 0.0).sum(dim=1)
    return sums_R / counted_RT.sum(dim=1).clamp(min=1) if config.loss == "grpo" else sums_R


def initial_reference(
    scorer: Scorer, shard: Callable[[Scorer], None] = lambda _: None
) -> Reference:
    """Log-probs of the policy as it is now: before a checkpoint is loaded.

    With LoRA by the model with its adapters off, for no memory; else by a frozen, sharded copy.
    """
    start = scorer
    if not has_adapters(scorer.model):
        # Shards are copies, and each rank's whole copy would fill main memory.
        shared = {id(p): Parameter(p.detach(), requires_grad=False) for p in scorer.parameters()}
        start = copy.deepcopy(scorer, shared)
        shard(start)
        for parameter in start.parameters():
            if not isinstance(parameter, DTensor):
                parameter.data = parameter.data.clone()

    @torch.no_grad()
    def reference(rows: PackedRows, temperature: float) -> Tensor:
        with adapters_off(start.model):
            return start(rows, temperature).logprobs_n

    return reference
