"""AdamW over mini-batches: schedule, clipping, refused steps, and how far each step went."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from guard_core.schedule import rate_factor
from lab.errors import UserError
from real.ranks.sharding import (
    computed_with,
    is_sharded,
    local_shard,
    norm_over_ranks,
    shard_of,
)
from real.update.adamw import MeasuredAdamW
from real.update.average import WeightAverage
from real.update.group import Group, kept, without_rows
from real.update.grpo import LossConfig, Pass, Reference, backward
from real.update.logprobs import Scorer
from real.update.masters import Masters
from real.update.reference import initial_reference
from real.update.step import Fault, Step


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """AdamW and its schedule."""

    lr: float
    """Peak learning rate."""
    warmup_ratio: float = 0.03
    """Share of the scheduled steps with linearly growing learning rate; cosine to 0 after it."""
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    master_weights: bool = True
    """Parameters in low precision are updated through copies in single precision."""
    average: float = 0.0
    """Decay of the weights' moving average per step taken; 0 keeps none."""
    offload: bool = False
    """Moments and copies in single precision are kept in main memory."""
    max_refused: int = 10
    """So many refused steps one after the other end the run."""


class PolicyOptimizer:
    """Takes one optimizer step per mini-batch of groups."""

    def __init__(
        self,
        model: Any,
        loss: LossConfig,
        config: OptimizerConfig,
        n_scheduled: int,
        share: tuple[int, int] = (0, 1),
        reference: Reference | None = None,
    ) -> None:
        """Prepare AdamW for `n_scheduled` steps, left-out ones included.

        Args:
            model: a causal language model, or a `Scorer` of one (sharded already, with FSDP2).
            loss: of a mini-batch; with `kl_coef > 0` the model as it is now is the reference.
            config: of the optimizer.
            n_scheduled: steps of the whole run.
            share: rank and number of ranks, see `backward`.
            reference: with `kl_coef > 0`, in place of the model as it is now.
        """
        self.scorer = model if isinstance(model, Scorer) else Scorer(model)
        self.model: Any = self.scorer.model
        self.loss = loss
        self.config = config
        self.n_scheduled = n_scheduled
        self.n_done = 0
        self.n_refused_in_a_row = 0
        self.rate_scale = 1.0
        """Factor on the learning rate of the steps to come, see `guard_core.brake`."""
        self.faults: Counter[Fault] = Counter()
        """Refused steps and left-out tokens by their reason; a caller may clear it."""
        self._share = share
        self._reference = reference
        if loss.kl_coef > 0 and reference is None:
            self._reference = initial_reference(self.scorer)
        named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        self._names = [name for name, _ in named]
        self._masters = Masters([p for _, p in named], config.master_weights, config.offload)
        self.parameters: list[Tensor] = self._masters.tensors
        self._adamw = MeasuredAdamW(
            self._masters,
            betas=config.betas,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            on_host=config.offload,
        )
        self._sharded = is_sharded(self.model)
        self.average = WeightAverage(dict(self._named())) if config.average > 0 else None

    def step(self, groups: Sequence[Group]) -> Step:
        """One scheduled step on one mini-batch.

        Nothing moves where all groups were dropped: an AdamW step on a zero gradient would still
        follow its moments. The schedule goes on in any case, so that all runs share it.

        Raises:
            UserError: `max_refused` steps in a row were refused, see `Fault`.
        """
        factor = rate_factor(self.n_done, self.n_scheduled, self.config.warmup_ratio)
        lr = self.config.lr * factor * self.rate_scale
        self.n_done += 1
        if n_dead := _n_dead(groups):
            return Step(lr, fault=self._refused(Fault.LOG_PROBS), n_left_out=n_dead)
        batch = kept(groups, self.loss.drop_uniform)
        if not batch:
            return Step(lr)
        done = self._backward(batch)
        counts = {
            name: getattr(done, name)
            for name in ("n_tokens", "n_clipped", "n_forward", "n_inputs", "n_left_out", "kl")
        }
        self.faults[Fault.LOG_PROB] += done.n_left_out
        if done.broken and not done.n_forward:
            return Step(lr, fault=self._refused(Fault.LOG_PROBS), **counts)
        if not done.n_tokens:
            return Step(lr, **counts)
        if not math.isfinite(grad_norm := self._clipped()):
            return Step(lr, fault=self._refused(Fault.GRADIENT), **counts)
        if not math.isfinite(done.loss):
            return Step(lr, fault=self._refused(Fault.LOSS), **counts)
        moved = norm_over_ranks(self._adamw.step(lr), self._sharded).item()
        fault = None if math.isfinite(moved) else self._refused(Fault.UPDATE)
        if fault is None:
            self.n_refused_in_a_row = 0
            if self.average:
                self.average.follow(dict(self._named()), 1 - self.config.average)
        return Step(lr, True, fault, moved, done.loss, grad_norm, **counts)

    def state_tensors(self) -> dict[str, Tensor]:
        """All that a resumed run needs besides the model's own weights: counters, masters, moments.

        Names are `n_done`, `n_refused`, `rate_scale` where it is not 1, and per parameter
        `master/NAME`, `average/NAME`, `exp_avg/NAME`, `exp_avg_sq/NAME`, `step/NAME`. Tensors are
        the live ones, not copies.
        """
        tensors = {
            "n_done": torch.tensor(self.n_done),
            "n_refused": torch.tensor(self.n_refused_in_a_row),
        }
        if self.rate_scale != 1:
            tensors["rate_scale"] = torch.tensor(self.rate_scale, dtype=torch.float64)
        for index, (name, master) in enumerate(self._named()):
            if self._has_master(index):
                tensors[f"master/{name}"] = master.detach()
            if self.average:
                tensors[f"average/{name}"] = self.average.weights[name]
            if not self._adamw.n_steps:
                continue  # the moments are zero
            moments = self._adamw.moments_of(index)
            tensors |= {f"{kind}/{name}": value for kind, value in moments.items()}
            tensors[f"step/{name}"] = torch.tensor(float(self._adamw.n_steps))
        return tensors

    @property
    def state_bytes(self) -> int:
        """Bytes of `state_tensors` after the first step: two moments, copies and the average."""
        means = self.average.weights.values() if self.average else ()
        averages = sum(mean.numel() * mean.element_size() for mean in means)
        return averages + sum(
            master.numel() * master.element_size() * (2 + self._has_master(index))
            for index, master in enumerate(self.parameters)
        )

    @torch.no_grad()
    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `state_tensors` gave; parameters with masters are overwritten by them.

        Raises:
            UserError: the tensors are not those of these parameters.
        """
        unknown = tensors.keys() - self._state_names()
        if unknown:
            raise UserError(
                f"optimizer state: {len(unknown)} tensors belong to no parameter, "
                f"{min(unknown)} for one; resume with the settings of the checkpoint"
            )
        # There are no moments before the first step.
        steps = max((int(tensors[n]) for n in tensors if n.startswith("step/")), default=0)
        for index, (name, master) in enumerate(self._named()):
            if self._has_master(index):
                _copy(self._taken(tensors, f"master/{name}", master), master, master)
            if self.average:
                mean = self.average.weights[name]
                _copy(self._taken(tensors, f"average/{name}", mean), mean, mean)
            for kind, moment in self._adamw.moments_of(index).items():
                if steps:
                    _copy(self._taken(tensors, f"{kind}/{name}", master), moment, master)
                else:
                    local_shard(moment).zero_()
        self._adamw.n_steps = steps
        self._masters.write_back()
        self.n_done = int(self._taken(tensors, "n_done"))
        self.n_refused_in_a_row = int(self._taken(tensors, "n_refused"))
        self.rate_scale = float(tensors.get("rate_scale", 1.0))

    @staticmethod
    def _taken(tensors: dict[str, Tensor], name: str, like: Tensor | None = None) -> Tensor:
        value = tensors.get(name)
        if value is None or (like is not None and value.shape != like.shape):
            raise UserError(
                f"optimizer state: {name} is missing or of the wrong shape; "
                "resume with the settings of the checkpoint"
            )
        return value

    def _named(self) -> list[tuple[str, Tensor]]:
        return list(zip(self._names, self.parameters, strict=True))

    def _state_names(self) -> set[str]:
        means = ("average",) if self.average else ()
        kinds = {i: ("master",) * self._has_master(i) for i in range(len(self._names))}
        return {"n_done", "n_refused", "rate_scale"} | {
            f"{kind}/{name}"
            for i, name in enumerate(self._names)
            for kind in (*kinds[i], *means, "exp_avg", "exp_avg_sq", "step")
        }

    def _has_master(self, index: int) -> bool:
        """The model computes with a rounded copy of this weight."""
        parameter, master = self._masters.parameters[index], self.parameters[index]
        return computed_with(parameter, self.model) != master.dtype

    @torch.no_grad()
    def _clipped(self) -> float:
        """Scale the gradients down to the greatest norm allowed, and return their norm before."""
        gradients = self._masters.gradients()
        norm = norm_over_ranks(torch.nn.utils.get_total_norm(gradients), self._sharded)
        torch._foreach_mul_(  # pyright: ignore[reportPrivateImportUsage]
            gradients, (self.config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        )
        return norm.item()

    def _backward(self, batch: list[Group]) -> Pass:
        """The gradient of a mini-batch, without rows for which the model gives no finite value.

        `broken` of the result names these rows.
        """
        self._masters.zero_gradients()
        done = backward(self.scorer, batch, self.loss, self._share, self._reference)
        if not done.broken:
            return done
        self._masters.zero_gradients()
        batch = without_rows(batch, done.broken)
        again = backward(self.scorer, batch, self.loss, self._share, self._reference)
        return again._replace(broken=done.broken)

    def _refused(self, fault: Fault) -> Fault:
        """Count a refused step."""
        self.faults[fault] += 1
        self.n_refused_in_a_row += 1
        if self.n_refused_in_a_row >= self.config.max_refused:
            raise UserError(
                f"optimizer step {self.n_done}: {fault} was not finite, "
                f"{self.n_refused_in_a_row} times in a row; lower lr or max_grad_norm, train in "
                "float32, or check the weights of the model"
            )
        return fault


def _n_dead(groups: Sequence[Group]) -> int:
    """Response tokens of a mini-batch of which not one has a finite log-prob; else 0."""
    if not groups or any(bool(group.counted_KT.any()) for group in groups):
        return 0
    return sum(int(group.lengths_K.sum()) for group in groups)


def _copy(value: Tensor, to: Tensor, like: Tensor) -> None:
    """Copy a whole tensor into a tensor that is sharded like another, wherever it is kept."""
    local_shard(to).copy_(local_shard(shard_of(value, like)))
