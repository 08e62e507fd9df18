"""verl's own PPO loss of both advantage streams, and the fields of a row that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

MINORITY = "minority_advantages"
"""Column of the second stream; the first one is verl's `advantages`."""
PADDING = [0.0, 0.0, 0.0]
"""Both advantages and the reward of a row that only fills a mini-batch up."""


def two_stream_loss(
    config: Any, model_output: Any, data: Any, dp_group: Any = None
) -> tuple[Any, dict[str, Any]]:
    """Return verl's loss plus its policy term of the minority stream (paper, section 3.3).

    The clipped loss is positively homogeneous in the advantage, so that a problem's weight and
    beta sit inside both streams. Arguments and result are those of verl's `ppo_loss`.
    """
    loss, metrics = ppo_loss(config, model_output, data, dp_group)
    if MINORITY not in data:
        return loss, metrics
    corrected = "rollout_is_weights" in data
    names = ["response_mask", "old_log_probs", MINORITY, *["rollout_is_weights"] * corrected]
    rows = data.select(*names).to_padded_tensor()
    policy_loss: Any = get_policy_loss_fn(config.policy_loss.get("loss_mode", "vanilla"))
    second, _ = policy_loss(
        old_log_prob=rows["old_log_probs"],
        log_prob=no_padding_2_padding(model_output["log_probs"], data),
        advantages=rows[MINORITY],
        response_mask=rows["response_mask"].to(bool),
        loss_agg_mode=config.loss_agg_mode,
        config=config,
        rollout_is_weights=rows.get("rollout_is_weights", None),
    )
    return loss + second, metrics


def stream_fields(masks: Sequence[Tensor], columns: Sequence[Sequence[float]]) -> TensorDict:
    """Return the advantages of both streams, the same at all tokens of a response.

    Args:
        masks: of the tokens of each response, 1 where they are trained on.
        columns: majority advantage, minority advantage and reward of each response.
    """
    places = {"advantages": 0, "returns": 0, MINORITY: 1}
    pairs = list(zip(masks, columns, strict=True))
    values = {name: _nested([m * c[place] for m, c in pairs]) for name, place in places.items()}
    return TensorDict(values, batch_size=len(pairs))


def score_fields(masks: Sequence[Tensor], columns: Sequence[Sequence[float]]) -> TensorDict:
    """Return the rewards, at the last token of each response; arguments as `stream_fields`."""
    ends = [torch.zeros_like(mask) for mask in masks]
    for end, column in zip(ends, columns, strict=True):
        end[-1] = column[2]
    return TensorDict({"rm_scores": _nested(ends)}, batch_size=len(ends))


def _nested(rows: list[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)
