"""One optimizer step per mini-batch: schedule, clipping, refusals, AdamW."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim.adamw import adamw

from guard_core.schedule import rate_factor
from lab.base.errors import UserError
from real.model.prepare import trained_parameters
from real.ranks.distributed import (
    computed_with,
    local_shard,
    norm_over_ranks,
    shard_group,
    shard_of,
    sharded_like,
)
from real.settings.groups import UpdateSettings
from real.update.ema import WeightAverage
from real.update.grpo import Pass, Reference, backward
from real.update.logprobs import Scorer
from real.update.masters import Masters, reachable
from real.update.packing import Group, without_rows

BETAS, EPSILON = (0.9, 0.999), 1e-8
_MOMENTS = ("exp_avg", "exp_avg_sq")
BLOCK_ELEMENTS = 2**26
"""Weights that are moved at a time: so many are kept twice, to measure their change."""
CPU_BLOCK_ELEMENTS = 2**20
"""On a CPU, whose caches hold them: a step over 135 million weights took 0.7 of the time, and its
norm, added up in single precision, was off by 1e-4 in place of 3e-3."""


class _Piece(NamedTuple):
    """Part of a weight, flattened where it is not all of it."""

    place: int
    part: slice | None

    def of(self, tensor: Tensor) -> Tensor:
        return tensor if self.part is None else tensor.view(-1)[self.part]


class MeasuredAdamW:
    """Fused AdamW over blocks of weights, whose state may be kept in main memory between steps."""

    def __init__(
        self, masters: Masters, weight_decay: float, block_elements: int | None = None
    ) -> None:
        """Make the moments, zero before the first step; `block_elements` weights move at a time."""
        self.masters, self._weight_decay, on_host = masters, weight_decay, masters.on_host
        self.n_steps = 0
        with torch.no_grad():
            shards = list(map(local_shard, masters.tensors))
        zeros = partial(torch.zeros_like, requires_grad=False, device="cpu" if on_host else None)
        device = masters.parameters[0].device
        self.moments = [[reachable(zeros(s), device) for s in shards] for _ in _MOMENTS]
        on_cpu = shards[0].device.type == "cpu" and not on_host
        most = block_elements or (CPU_BLOCK_ELEMENTS if on_cpu else BLOCK_ELEMENTS)
        self._blocks = list(_blocks(shards, most))

    @torch.no_grad()
    def step(self, lr: float, scale: Tensor) -> Tensor:
        """Move all weights by the gradients, which may change in place, times `scale`.

        Returns the L2 norm of the change of this rank's shards.
        """
        gradients = self.masters.gradients()
        sources = gradients, list(map(local_shard, self.masters.tensors)), *self.moments
        norms = [self._move(block, sources, lr, scale) for block in self._blocks]
        self.n_steps += 1
        if not norms:
            return torch.zeros((), device=gradients[0].device)
        return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))

    def _move(
        self, block: list[_Piece], sources: tuple[list[Tensor], ...], lr: float, scale: Tensor
    ) -> Tensor:
        """Move one block; `sources` are gradients, weights and moments."""
        given, *kept = [[piece.of(source[piece.place]) for piece in block] for source in sources]
        grads = [gradient.to(part.dtype) for gradient, part in zip(given, kept[0], strict=True)]
        torch._foreach_mul_(grads, scale)
        used = [list(map(self._fetched, parts, grads)) for parts in kept]
        weights, exp_avgs, exp_avg_sqs = used
        before = [weight.clone() for weight in weights]
        n_steps = torch.full((len(block),), float(self.n_steps), device=grads[0].device)
        adamw(
            weights,
            grads,
            exp_avgs,
            exp_avg_sqs,
            [],
            list(n_steps.unbind()),
            fused=True,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=lr,
            weight_decay=self._weight_decay,
            eps=EPSILON,
            maximize=False,
        )
        torch._foreach_sub_(before, weights)
        for parts, moved in zip(kept, used, strict=True):
            for part, value in zip(parts, moved, strict=True):
                if part is not value:
                    part.copy_(value, non_blocking=True)
        # Moved masters are rounded into the parameters that they are copies of.
        for piece, weight in zip(block, weights, strict=True):
            parameter = self.masters.parameters[piece.place]
            if parameter is not self.masters.tensors[piece.place]:
                piece.of(parameter.detach()).copy_(weight)
        return get_total_norm(before)

    def _fetched(self, part: Tensor, grad: Tensor) -> Tensor:
        on_host = self.masters.on_host and part.device.type == "cpu"
        return part.to(grad.device, non_blocking=True, copy=True) if on_host else part


def _blocks(shards: list[Tensor], block_elements: int) -> Iterable[list[_Piece]]:
    block: list[_Piece] = []
    room = block_elements
    for index, shard in enumerate(shards):
        n = shard.numel()
        starts = range(0, n, block_elements) if shard.is_contiguous() else range(min(n, 1))
        for start in starts:
            size = min(n - start, block_elements)
            if block and size > room:
                yield block
                block, room = [], block_elements
            block.append(_Piece(index, slice(start, start + size) if len(starts) > 1 else None))
            room -= size
    if block:
        yield block


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
        done = "response tokens left out" if self is Fault.LOG_PROB else "optimizer steps refused"
        return f"{done} since {self} was not finite"


@dataclass(frozen=True, kw_only=True)
class Step(Pass):
    """One scheduled optimizer step."""

    lr: float
    taken: bool = False
    """The optimizer moved; false where the mini-batch was empty or the step was refused."""
    fault: Fault | None = None
    """Why the step was refused; an update that is not finite was made before it was known."""
    update_norm: float = 0.0
    """L2 norm of the change of all parameters together; 0 for a step not taken."""
    grad_norm: float = 0.0


class PolicyOptimizer:
    """Takes one optimizer step per mini-batch of groups."""

    def __init__(
        self,
        scorer: Scorer,
        config: UpdateSettings,
        n_scheduled: int,
        reference: Reference | None = None,
    ) -> None:
        """Prepare AdamW for `n_scheduled` steps, left-out ones included; FSDP2 must come before."""
        self.scorer = scorer
        self.model: Any = scorer.model
        self.config = config
        self.n_scheduled = n_scheduled
        self.n_done = 0
        self.n_refused_in_a_row = 0
        self.rate_scale = 1.0
        """Factor on the learning rate of the steps to come, see `guard_core.schedule`."""
        self.faults: Counter[Fault] = Counter()
        """Refused steps and left-out tokens by their reason; a caller may clear it."""
        self._reference = reference
        trained = trained_parameters(self.model)
        self.masters = Masters(list(trained.values()), config.offload_optimizer)
        self.parameters: list[Tensor] = self.masters.tensors
        self._named = dict(zip(trained, self.parameters, strict=True))
        self.adamw = MeasuredAdamW(self.masters, config.weight_decay)
        self._group = shard_group(self.model.parameters())
        self.average = WeightAverage(self._named) if config.ema_decay > 0 else None

    def step(self, groups: Sequence[Group]) -> Step:
        """One scheduled step on one mini-batch; too many refused ones in a row end the run.

        Nothing moves where all groups were dropped: an AdamW step on a zero gradient would still
        follow its moments. The schedule goes on in any case.
        """
        factor = rate_factor(self.n_done, self.n_scheduled, self.config.warmup_ratio)
        lr = (self.config.lr or 0.0) * self.config.step_factor * factor * self.rate_scale
        self.n_done += 1
        if groups and not any(bool(group.counted_KT.any()) for group in groups):
            n_tokens = sum(int(group.lengths_K.sum()) for group in groups)
            return Step(lr=lr, fault=self._refused(Fault.LOG_PROBS), n_left_out=n_tokens)
        uniform_stay = not self.config.drop_uniform
        batch = [g for g in groups if g.trains or (uniform_stay and not g.dropped)]
        if not batch:
            return Step(lr=lr)
        done = self._backward(batch)
        step = partial(Step, lr=lr, **vars(done))
        self.faults[Fault.LOG_PROB] += done.n_left_out
        if done.broken and not done.n_forward:
            return step(fault=self._refused(Fault.LOG_PROBS))
        if not done.n_tokens:
            return step()
        gradients = self.masters.gradients()
        wide = torch.promote_types(gradients[0].dtype, torch.float32)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, dtype=wide)))
        norm = norm_over_ranks(norm, self._group)
        if not math.isfinite(grad_norm := norm.item()):
            return step(fault=self._refused(Fault.GRADIENT))
        if not math.isfinite(done.loss):
            return step(fault=self._refused(Fault.LOSS))
        scale = (self.config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        moved = norm_over_ranks(self.adamw.step(lr, scale), self._group).item()
        fault = None if math.isfinite(moved) else self._refused(Fault.UPDATE)
        if fault is None:
            self.n_refused_in_a_row = 0
            if self.average:
                self.average.follow(self._named, 1 - self.config.ema_decay)
        return step(taken=True, fault=fault, update_norm=moved, grad_norm=grad_norm)

    def state_tensors(self) -> dict[str, Tensor]:
        """All that a resumed run needs besides the model's own weights, live and not copied.

        Names are `n_done`, `n_refused`, `rate_scale` where it is not 1, and per parameter
        `master/NAME`, `average/NAME`, `exp_avg/NAME`, `exp_avg_sq/NAME`, `step/NAME`.
        """
        counts = {"n_done": self.n_done, "n_refused": self.n_refused_in_a_row}
        tensors = {name: torch.tensor(count) for name, count in counts.items()}
        if self.rate_scale != 1:
            tensors["rate_scale"] = torch.tensor(self.rate_scale, dtype=torch.float64)
        n_steps = self.adamw.n_steps
        for name, (tensor, _) in self._live().items():
            if n_steps or not name.startswith(_MOMENTS):  # which are zero before the first step
                tensors[name] = tensor.detach()
        if n_steps:
            tensors |= {f"step/{name}": torch.tensor(float(n_steps)) for name in self._named}
        return tensors

    @torch.no_grad()
    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `state_tensors` gave; parameters with masters are overwritten by them."""
        steps = int(next((tensors[n] for n in tensors if n.startswith("step/")), 0))
        for name, (tensor, like) in self._live().items():
            if steps or not name.startswith(_MOMENTS):
                local_shard(tensor).copy_(local_shard(shard_of(tensors[name], like)))
            else:
                local_shard(tensor).zero_()
        self.adamw.n_steps = steps
        for parameter, master in zip(self.masters.parameters, self.parameters, strict=True):
            if master is not parameter:
                parameter.copy_(master)
        self.n_done = int(tensors["n_done"])
        self.n_refused_in_a_row = int(tensors["n_refused"])
        self.rate_scale = float(tensors.get("rate_scale", 1.0))

    def _live(self) -> dict[str, tuple[Tensor, Tensor]]:
        """All tensors of the state by name, and for each one that is sharded as it is."""
        live: dict[str, tuple[Tensor, Tensor]] = {}
        pairs = zip(self._named.items(), self.masters.parameters, strict=True)
        for index, ((name, master), parameter) in enumerate(pairs):
            if computed_with(parameter, self.model) != master.dtype:  # with a rounded copy of it
                live[f"master/{name}"] = master, master
            if self.average:
                live[f"average/{name}"] = (mean := self.average.weights[name]), mean
            for kind, shards in zip(_MOMENTS, self.adamw.moments, strict=True):
                live[f"{kind}/{name}"] = sharded_like(shards[index], master), master
        return live

    def _backward(self, batch: list[Group]) -> Pass:
        """The gradient of a mini-batch, without rows of no finite value, which `broken` names."""
        self.masters.zero_gradients()
        done = backward(self.scorer, batch, self.config, self._reference)
        if not done.broken:
            return done
        self.masters.zero_gradients()
        batch = without_rows(batch, done.broken)
        again = backward(self.scorer, batch, self.config, self._reference)
        return replace(again, broken=done.broken)

    def _refused(self, fault: Fault) -> Fault:
        self.faults[fault] += 1
        self.n_refused_in_a_row += 1
        if self.n_refused_in_a_row >= self.config.max_bad_steps:
            raise UserError(
                f"optimizer step {self.n_done}: {fault} was not finite, "
                f"{self.n_refused_in_a_row} times in a row; lower lr or max_grad_norm, train in "
                "float32, or check the weights of the model"
            )
        return fault
