"""Scores of the trainer beside the engine's: their mismatch, and importance weights against it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from real.settings.groups import UpdateSettings
from real.update.grpo import kl_estimate
from real.update.logprobs import Scorer, group_scores
from real.update.packing import Group, take

PROBE_ROWS = 4
"""Responses that are looked at where nothing is corrected: enough to see a wrong engine."""
GEOMETRIC_MASK = 10.0
"""Mean ratio of a response's tokens from which on it is an outlier, as in prime-rl."""


def importance_weights(trainer_KT: Tensor, engine_KT: Tensor, cap: float) -> Tensor:
    """(K, T) weights `min(pi_trainer / pi_engine, cap)`; 1 where a log-prob is not finite.

    0 in a response whose ratio has a geometric mean beyond `GEOMETRIC_MASK`, either way.
    """
    gap_KT = trainer_KT - engine_KT
    finite_KT = gap_KT.isfinite()
    gap_KT = torch.where(finite_KT, gap_KT, 0.0)
    mean_K = gap_KT.sum(1) / finite_KT.sum(1).clamp(min=1)
    kept_K = mean_K.abs() <= math.log(GEOMETRIC_MASK)
    return gap_KT.exp().clamp(max=cap) * kept_K[:, None]


def mismatch_kl(trainer: Sequence[Tensor], engine: Sequence[Tensor]) -> float:
    """Estimate of KL(engine || trainer), nats per token, by `kl_estimate`; NaN without a token."""
    total, n_tokens = 0.0, 0
    for ours, theirs in zip(trainer, engine, strict=True):
        both = ours.isfinite() & theirs.isfinite()
        total += float(kl_estimate(theirs[both], ours[both]).sum())
        n_tokens += int(both.sum())
    return total / n_tokens if n_tokens else math.nan


def rescore(
    scorer: Scorer, groups: Sequence[Group], config: UpdateSettings, cap: float = 0.0
) -> tuple[list[Group], dict[str, float]]:
    """Compare engine and trainer before the first update of a batch, with the weights that sampled.

    Where the ratio starts from the engine's log-probs a few rows are passed through the model, else
    all that are trained on; with a `cap`, `correction_KT` gets the importance weights.

    Returns the groups to train on, and columns of the steps: the mismatch in nats per token and,
    with a cap, the mean weight and the share of responses whose weights are 0.
    """
    anew = config.scores_anew(cap)
    looked_at = groups if anew else groups[:PROBE_ROWS]
    scored_groups = [g if anew and g.trains else take(g, [0]) for g in looked_at]
    trainer_logprobs = [values_KT for (values_KT,) in group_scores(scorer, scored_groups, config)]
    columns = {"mismatch_kl": mismatch_kl(trainer_logprobs, [g.old_KT for g in scored_groups])}
    if not anew:
        return list(groups), columns
    trained = list(groups)
    for i, (group, ours) in enumerate(zip(groups, trainer_logprobs, strict=True)):
        if group.trains:
            weights = importance_weights(ours, group.old_KT, cap) if cap else None
            # Padding is read by nothing, but a NaN there could still spread.
            old_KT = torch.where(group.real_KT, ours, 0.0)
            trained[i] = replace(group, old_KT=old_KT, correction_KT=weights)
    pairs = [(g.correction_KT, g.counted_KT) for g in trained if g.correction_KT is not None]
    if pairs:
        weights_n = torch.cat([weights_KT[counted_KT] for weights_KT, counted_KT in pairs])
        masked_R = torch.cat([~weights_KT.any(1) for weights_KT, _ in pairs])
        columns["tis_weight"] = float(weights_n.mean())
        columns["masked"] = float(masked_R.double().mean())
    return trained, columns
