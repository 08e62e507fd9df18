"""One optimizer step per mini-batch: schedule, clipping, refusals, and the weights' average."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from guard_core.schedule import rate_factor
from lab.base.errors import UserError
from real.ranks.distributed import (
    computed_with,
    is_split,
    local_shard,
    norm_over_ranks,
    shard_of,
)
from real.settings.config import TrainConfig
from real.update.adamw import Masters, MeasuredAdamW
from real.update.grpo import Pass, Reference, backward, initial_reference
from real.update.logprobs import Scorer
from real.update.packing import Group, kept, without_rows

Named = Mapping[str, Tensor]


class WeightAverage:
    """An average in single precision at least, of weights by name.

    It is sharded and placed as the weights are, so every rank averages its own shards.
    """

    def __init__(self, weights: Named) -> None:
        """Start at the weights as they are now."""
        self.weights = {
            name: w.detach().to(torch.promote_types(w.dtype, torch.float32), copy=True)
            for name, w in weights.items()
        }

    @torch.no_grad()
    def follow(self, weights: Named, rate: float) -> None:
        """Move the average towards the weights: `mean + rate * (weights - mean)`."""
        for name, mean in self.weights.items():
            mean.lerp_(weights[name].detach().to(mean.dtype), rate)

    @contextmanager
    def held_by(self, model: Any) -> Iterator[None]:
        """Let the model hold the average meanwhile. It costs one more copy of its weights."""
        own = {name: p for name, p in model.named_parameters() if name in self.weights}
        kept = {name: p.detach().clone() for name, p in own.items()}
        try:
            _copy_all(self.weights, own)
            yield
        finally:
            _copy_all(kept, own)

    @contextmanager
    def answering(
        self, model: Any, hand_over: Callable[[int], object], version: int
    ) -> Iterator[int]:
        """Let an engine sample by the average; gives the version of these weights.

        Args:
            model: as for `held_by`.
            hand_over: gives the model's weights to the engine, under a version.
            version: of the model's own weights, which the engine has before and after.
        """
        with self.held_by(model):
            # A number that no version of the trained weights has.
            hand_over(-1 - version)
            yield -1 - version
        hand_over(version)


@torch.no_grad()
def _copy_all(weights: Named, to: Named) -> None:
    for name, p in to.items():
        p.copy_(weights[name])


class Fault(StrEnum):
    """A number of a step that was not finite; all but the first lead to a refusal."""

    LOG_PROB = "their log-prob"
    LOG_PROBS = "the log-prob of every response token"
    LOSS = "the loss"
    GRADIENT = "the gradient"
    UPDATE = "the norm of the update"

    @property
    def notice(self) -> str:
        """Consequence and reason, to be followed by a number."""
        left_out = self is Fault.LOG_PROB
        done = "response tokens left out" if left_out else "optimizer steps refused"
        return f"{done} since {self} was not finite"


@dataclass(frozen=True, slots=True)
class Step:
    """One scheduled optimizer step."""

    lr: float
    taken: bool = False
    """The optimizer moved; false where the mini-batch was empty or the step was refused."""
    fault: Fault | None = None
    """Reason why the step was refused; an update that is not finite was made before it was known.
    """
    update_norm: float = 0.0
    """L2 norm of the change of all parameters together; 0 for a step not taken."""
    loss: float = 0.0
    grad_norm: float = 0.0
    """Before clipping."""
    n_tokens: int = 0
    n_clipped: int = 0
    n_forward: int = 0
    n_inputs: int = 0
    """Tokens that went through the model, prompts included, see `Pass`."""
    n_left_out: int = 0
    """Response tokens outside of the loss: the engine's or the trainer's log-prob was not finite.
    One such token of the trainer takes its whole response out."""
    kl: float = 0.0
    """Mean estimated KL divergence from the reference policy; 0 without one."""

    @property
    def refused(self) -> bool:
        """A number that the step depends on was not finite."""
        return self.fault is not None


BETAS, EPSILON = (0.9, 0.999), 1e-8
"""Of AdamW."""


class PolicyOptimizer:
    """Takes one optimizer step per mini-batch of groups."""

    def __init__(
        self,
        model: Any,
        config: TrainConfig,
        n_scheduled: int,
        share: tuple[int, int] = (0, 1),
        reference: Reference | None = None,
    ) -> None:
        """Prepare AdamW for `n_scheduled` steps, left-out ones included.

        Args:
            model: a causal language model, or a `Scorer` of one (sharded already, with FSDP2).
            share: rank and number of ranks, see `backward`.
            reference: with `kl_coef > 0`, in place of the model as it is now.
        """
        self.scorer = model if isinstance(model, Scorer) else Scorer(model)
        self.model: Any = self.scorer.model
        self.config = config
        self.n_scheduled = n_scheduled
        self.n_done = 0
        self.n_refused_in_a_row = 0
        self.rate_scale = 1.0
        """Factor on the learning rate of the steps to come, see `guard_core.schedule`."""
        self.faults: Counter[Fault] = Counter()
        """Refused steps and left-out tokens by their reason; a caller may clear it."""
        self._share = share
        self._reference = reference
        if config.kl_coef > 0 and reference is None:
            self._reference = initial_reference(self.scorer)
        named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        self._names = [name for name, _ in named]
        self._masters = Masters([p for _, p in named], config.offload_optimizer)
        self.parameters: list[Tensor] = self._masters.tensors
        self._adamw = MeasuredAdamW(
            self._masters,
            betas=BETAS,
            eps=EPSILON,
            weight_decay=config.weight_decay,
            on_host=config.offload_optimizer,
        )
        self._sharded = is_split(self.model.parameters())
        self.average = WeightAverage(dict(self._named())) if config.average > 0 else None

    def step(self, groups: Sequence[Group]) -> Step:
        """One scheduled step on one mini-batch.

        Nothing moves where all groups were dropped: an AdamW step on a zero gradient would still
        follow its moments. The schedule goes on in any case, so that all runs share it.

        Raises:
            UserError: `max_refused` steps in a row were refused, see `Fault`.
        """
        factor = rate_factor(self.n_done, self.n_scheduled, self.config.warmup_ratio)
        lr = (self.config.lr or 0.0) * self.config.step_factor * factor * self.rate_scale
        self.n_done += 1
        if n_dead := _n_dead(groups):
            return Step(lr, fault=self._refused(Fault.LOG_PROBS), n_left_out=n_dead)
        batch = kept(groups, self.config.drop_uniform)
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
        done = backward(self.scorer, batch, self.config, self._share, self._reference)
        if not done.broken:
            return done
        self._masters.zero_gradients()
        batch = without_rows(batch, done.broken)
        again = backward(self.scorer, batch, self.config, self._share, self._reference)
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
