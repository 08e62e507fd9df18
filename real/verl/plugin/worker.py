"""verl's training worker, which also says how far a step moved the weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.linalg import vector_norm
from torch.nn.utils import get_total_norm
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker


@torch.no_grad()
def update_norm(optimizer: Any, rates: list[float]) -> float:
    """Return the L2 norm of the change of all parameters by the last step, over all ranks.

    It follows from AdamW's state, so that no second copy of the weights is kept. NaN for other
    optimizers.

    Args:
        optimizer: after the step.
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
