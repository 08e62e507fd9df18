"""Mismatch between the log-probs of engine and trainer, and its correction.

The engine and the trainer run the same weights through different kernels, often in low precision,
so the policy that sampled is never quite the one that is trained. The gap is logged at every step:
a jump in it is the first sign of stale weights. Truncated importance weights
`min(pi_trainer / pi_engine, cap)` on the tokens' losses correct for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from real.update.group import Group
from real.update.grpo import kl_estimate
from real.update.logprobs import Scorer, group_logprobs

PROBE_ROWS = 4
"""Responses that are looked at where nothing is corrected: enough to see a wrong engine."""


def importance_weights(trainer: Tensor, engine: Tensor, cap: float) -> Tensor:
    """`min(pi_trainer / pi_engine, cap)` of every token; 1 where either log-prob is not finite."""
    ratio = (trainer - engine).exp().clamp(max=cap)
    return torch.where(ratio.isfinite(), ratio, 1.0)


def mismatch_kl(trainer: Sequence[Tensor], engine: Sequence[Tensor]) -> float:
    """Estimate of KL(engine || trainer), nats per token, over tokens that the engine sampled.

    Args:
        trainer: log-probs; tokens at which one is not finite are left out.
        engine: of the same shapes.

    Returns:
        The mean of `exp(d) - 1 - d` (k3), d = trainer - engine: unbiased, never negative, and of
        small variance. NaN without any token.
    """
    total, n_tokens = 0.0, 0
    for ours, theirs in zip(trainer, engine, strict=True):
        both = ours.isfinite() & theirs.isfinite()
        total += float(kl_estimate(theirs[both], ours[both]).sum())
        n_tokens += int(both.sum())
    return total / n_tokens if n_tokens else math.nan


def compared(
    scorer: Scorer,
    groups: Sequence[Group],
    temperature: float,
    micro_tokens: int,
    cap: float | None = None,
    share: tuple[int, int] = (0, 1),
) -> tuple[list[Group], float]:
    """Compare engine and trainer before the first update of a batch.

    Args:
        scorer: of the model with the weights that sampled.
        groups: the batch; `old_KT` holds the engine's log-probs.
        temperature: of the sampling.
        micro_tokens: tokens of one forward pass.
        cap: of the importance weights; None for no correction, which costs a few rows' forward
            pass. With a cap every response that is trained on goes through the model once more:
            the ratio of the loss then starts from the trainer's own log-probs, and the weights
            stand in `correction_KT`.
        share: rank and number of ranks, see `group_logprobs`.

    Returns:
        The groups to train on, and the mismatch in nats per token.
    """
    if cap is None:
        scored_groups = [_first_row(group) for group in groups[:PROBE_ROWS]]
    else:
        scored_groups = [_first_row(g) if g.dropped or g.silent else g for g in groups]
    trainer_logprobs = group_logprobs(scorer, scored_groups, temperature, micro_tokens, share)
    mismatch = mismatch_kl(trainer_logprobs, [group.old_KT for group in scored_groups])
    if cap is None:
        return list(groups), mismatch
    return [
        group if group.dropped or group.silent else _corrected(group, ours, cap)
        for group, ours in zip(groups, trainer_logprobs, strict=True)
    ], mismatch


def _corrected(group: Group, trainer_KT: Tensor, cap: float) -> Group:
    return replace(
        group,
        # Padding is read by nothing, but a NaN there could still spread.
        old_KT=torch.where(group.real_KT, trainer_KT, 0.0),
        correction_KT=importance_weights(trainer_KT, group.old_KT, cap),
    )


def _first_row(group: Group) -> Group:
    return replace(
        group,
        tokens_KT=group.tokens_KT[:1],
        old_KT=group.old_KT[:1],
        lengths_K=group.lengths_K[:1],
        majority_K=group.majority_K[:1],
        minority_K=group.minority_K[:1],
    )
