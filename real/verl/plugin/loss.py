"""verl's own PPO loss of both advantage streams."""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

MINORITY = "minority_advantages"
"""Column of the second stream; the first one is verl's `advantages`."""


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
