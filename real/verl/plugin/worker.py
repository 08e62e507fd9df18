"""What verl's workers compute for the guard: the loss of both streams, the norm of each update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.linalg import vector_norm
from torch.nn.functional import pad
from torch.nn.utils import get_total_norm
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

MINORITY = "minority_advantages"
"""Column of the second stream; the first one is verl's `advantages`."""
PADDING = (0.0, 0.0, 0.0)
"""Both advantages and the reward of a row that only fills a mini-batch up."""


def two_stream_loss(
    config: Any, model_output: Any, data: Any, dp_group: Any = None
) -> tuple[Any, dict[str, Any]]:
    """Return verl's loss plus its policy term of the minority stream (paper, section 3.3).

    The clipped loss is positively homogeneous in the advantage, so that a problem's weight and
    beta sit inside both streams. Arguments and result are those of verl's `ppo_loss`.
    """
    loss, metrics = ppo_loss(config, model_output, data, dp_group)
    names = "response_mask", "old_log_probs", MINORITY, "rollout_is_weights"
    rows = data.select(*names, strict=False).to_padded_tensor()
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
    """Return the advantages of both streams at all tokens of a response, the reward at its last.

    Args:
        masks: of the tokens of each response, 1 where they are trained on.
        columns: majority advantage, minority advantage and reward of each response.
    """
    pairs = list(zip(masks, columns, strict=True))
    rows = {
        "advantages": [mask * majority for mask, (majority, _, _) in pairs],
        MINORITY: [mask * minority for mask, (_, minority, _) in pairs],
        "rm_scores": [pad(mask.new_tensor([r]), (len(mask) - 1, 0)) for mask, (_, _, r) in pairs],
    }
    made = {n: torch.nested.as_nested_tensor(r, layout=torch.jagged) for n, r in rows.items()}
    return TensorDict({**made, "returns": made["advantages"]}, batch_size=len(pairs))


@torch.no_grad()
def update_norm(optimizer: Any, rates: list[float]) -> float:
    """Return the L2 norm of the change of all parameters by the last step, over all ranks.

    It follows from AdamW's state, so that no second copy of the weights is kept. NaN for other
    optimizers.

    Args:
        rates: learning rates of its groups at the step.
    """
    if not isinstance(optimizer, torch.optim.AdamW):
        return math.nan
    norms: list[torch.Tensor] = []
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        decay, (beta1, beta2) = rate * group["weight_decay"], group["betas"]
        for parameter in group["params"]:
            if state := optimizer.state.get(parameter):
                n = float(state["step"])
                root = (state["exp_avg_sq"] / (1 - beta2**n)).sqrt_().add_(group["eps"])
                move = state["exp_avg"] * (rate / (1 - beta1**n)) / root
                norms.append(vector_norm(move + decay * (parameter + move) / (1 - decay)))
    total = get_total_norm(norms)
    return float(total.full_tensor() if isinstance(total, DTensor) else total)


class MeasuringWorker(TrainingWorker):
    """Adds `update_norm` to the metrics of every optimizer step."""

    def train_batch(self, data: Any) -> Any:
        """Do one optimizer step."""
        optimizer = getattr(self.engine, "optimizer", None)
        rates = [group["lr"] for group in getattr(optimizer, "param_groups", [])]
        output = super().train_batch(data)
        norm = update_norm(optimizer, rates)
        if output is not None:
            metrics = tu.get(output, "metrics")
            # verl leaves a step out whose gradient is not finite.
            moved = norm if math.isfinite(metrics["grad_norm"]) else 0.0
            tu.assign_non_tensor_data(output, "metrics", {**metrics, "update_norm": moved})
        return output


class GuardWorker(ActorRolloutRefWorker):
    """verl's worker with the actor that measures its steps."""

    actor_worker_cls = MeasuringWorker
