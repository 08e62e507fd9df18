"""One optimizer step per mini-batch: schedule, clipping, refusals, AdamW, the weights' average.

Low-precision parameters are updated through master weights, copies in single precision: at a
learning rate of 1e-6 most bfloat16 weights would never move. Gradients of several backward passes
too are added up in single precision, and each low-precision one is freed.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from real.ranks.distributed import (
    computed_with,
    local_shard,
    norm_over_ranks,
    shard_group,
    shard_of,
    sharded_like,
)
from real.settings.groups import UpdateSettings
from real.update.grpo import Pass, Reference, backward, initial_reference
from real.update.logprobs import Scorer
from real.update.packing import Group, kept, without_rows

Named = Mapping[str, Tensor]


class Masters:
    """Parameters that the optimizer updates in place of the model's."""

    def __init__(self, parameters: Sequence[Tensor], on_host: bool = False) -> None:
        """Copy parameters below single precision, to main memory if `on_host`; watch gradients."""
        self.parameters = list(parameters)
        self.tensors = [_master(p, on_host) for p in self.parameters]
        """One per parameter, the parameter itself where it needs no copy."""
        self._sums = list(map(self._watched, self.parameters, self.tensors))

    @torch.no_grad()
    def gradients(self) -> list[Tensor]:
        """Return this rank's shards of the gradients, one per master, zero before a pass.

        Those of one pass alone may have the precision of their parameters.
        """
        return [
            sums.value() if sums else _own_gradient(parameter)
            for parameter, sums in zip(self.parameters, self._sums, strict=True)
        ]

    @torch.no_grad()
    def zero_gradients(self) -> None:
        """Set the gradients to zero, in place."""
        pairs = list(zip(self.parameters, self._sums, strict=True))
        if own := [_own_gradient(parameter) for parameter, sums in pairs if sums is None]:
            torch._foreach_zero_(own)
        for sums in filter(None, self._sums):
            sums.clear()

    @staticmethod
    def _watched(parameter: Tensor, master: Tensor) -> _Sum | None:
        """The sum of a parameter's gradients where it has a copy; else its own grows in place."""
        if master is parameter:
            parameter.grad = torch.zeros_like(parameter)
            return None
        return _Sum(parameter, master.dtype)


def _own_gradient(parameter: Any) -> Tensor:
    return local_shard(parameter.grad)


class _Sum:
    """The sum of a parameter's gradients, to which each backward pass moves its own.

    It has the precision of the master, or, where no step had several passes yet, that of the
    parameter: nothing is lost and no memory taken.
    """

    def __init__(self, parameter: Tensor, dtype: torch.dtype) -> None:
        self._parameter, self._dtype = parameter, dtype
        self._wide: Tensor | None = None
        self._sum: Tensor | None = None
        """None where it is zero; else the first gradient itself, or `_wide`."""
        parameter.register_post_accumulate_grad_hook(self._move)

    def clear(self) -> None:
        self._sum = None

    def value(self) -> Tensor:
        if self._sum is None:
            self._sum = self._widened().zero_()
        return self._sum

    def _move(self, filled: Tensor) -> None:
        gradient, filled.grad = filled.grad, None
        if gradient is None:
            return
        if self._sum is None:
            self._sum = gradient if self._wide is None else self._wide.copy_(gradient)
            return
        if self._sum is not self._wide:
            self._sum = self._widened().copy_(self._sum)
        self._sum.add_(gradient)

    def _widened(self) -> Tensor:
        if self._wide is None:
            self._wide = torch.empty_like(self._parameter, dtype=self._dtype, requires_grad=False)
        return self._wide


def _master(parameter: Tensor, on_host: bool) -> Tensor:
    if torch.finfo(parameter.dtype).bits >= 32:
        return parameter
    wide = parameter.detach().to(torch.float32, copy=True)
    return host_copy(wide) if on_host else wide


@torch.no_grad()
def host_copy(tensor: Tensor) -> Tensor:
    """Return a copy in main memory, which CUDA can reach directly if the tensor is on a GPU."""
    copied = torch.empty_like(tensor, device="cpu").copy_(tensor)
    if tensor.is_cuda and not registered(torch.cuda.cudart(), copied):
        warnings.warn(
            "offload_optimizer: CUDA could not register main memory, so copies to and from the GPU "
            "are slower; raise the limit of locked memory (ulimit -l)",
            stacklevel=2,
        )
        with contextlib.suppress(RuntimeError):
            # The error stays pending until a kernel is launched, which raises it: this one.
            torch.ones(1, device=tensor.device)
    return copied


def registered(runtime: Any, memory: Tensor) -> bool:
    """Let CUDA, as `torch.cuda.cudart` returns it, reach main memory; returns whether it can.

    torch would round pinned memory up to a power of two. CUDA refuses an empty shard.
    """
    size = memory.numel() * memory.element_size()
    return not size or int(runtime.cudaHostRegister(memory.data_ptr(), size, 0)) == 0


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
        self,
        masters: Masters,
        weight_decay: float,
        on_host: bool = False,
        block_elements: int | None = None,
    ) -> None:
        """Make the moments, zero before the first step; `block_elements` weights move at a time."""
        self.masters, self._weight_decay, self._on_host = masters, weight_decay, on_host
        self.n_steps = 0
        shards = self._shards()
        zeros = [[torch.zeros_like(s, requires_grad=False) for s in shards] for _ in _MOMENTS]
        self._moments = [[host_copy(z) for z in kind] for kind in zeros] if on_host else zeros
        on_cpu = shards[0].device.type == "cpu" and not on_host
        most = block_elements or (CPU_BLOCK_ELEMENTS if on_cpu else BLOCK_ELEMENTS)
        self._blocks = list(_blocks(shards, most))

    def moments_of(self, index: int) -> dict[str, Tensor]:
        """Return the live `exp_avg` and `exp_avg_sq` of a weight, sharded as it is."""
        pairs = zip(_MOMENTS, self._moments, strict=True)
        like = self.masters.tensors[index]
        return {name: sharded_like(shards[index], like) for name, shards in pairs}

    @torch.no_grad()
    def step(self, lr: float, scale: Tensor) -> Tensor:
        """Move all weights by the gradients, which may change in place, times `scale`.

        Returns:
            The L2 norm of the change of this rank's shards.
        """
        sources = (self._shards(), *self._moments)
        gradients = self.masters.gradients()
        norms = [self._move(block, sources, gradients, lr, scale) for block in self._blocks]
        self.n_steps += 1
        if not norms:
            return torch.zeros((), device=gradients[0].device)
        return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))

    def _move(
        self,
        block: list[_Piece],
        sources: tuple[list[Tensor], ...],
        gradients: list[Tensor],
        lr: float,
        scale: Tensor,
    ) -> Tensor:
        """Move one block; `sources` are weights and moments."""
        grads = [p.of(gradients[p.place]).to(sources[0][p.place].dtype) for p in block]
        torch._foreach_mul_(grads, scale)
        kept = [[piece.of(source[piece.place]) for piece in block] for source in sources]
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
        on_host = self._on_host and part.device.type == "cpu"
        return part.to(grad.device, non_blocking=True, copy=True) if on_host else part

    def _shards(self) -> list[Tensor]:
        with torch.no_grad():
            return [local_shard(tensor) for tensor in self.masters.tensors]


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


class WeightAverage:
    """An average in single precision at least, of weights by name, sharded as they are."""

    def __init__(self, weights: Named) -> None:
        self.weights = {
            name: w.detach().to(torch.promote_types(w.dtype, torch.float32), copy=True)
            for name, w in weights.items()
        }

    @torch.no_grad()
    def follow(self, weights: Named, rate: float) -> None:
        """Move the average towards the weights: `mean + rate * (weights - mean)`."""
        for name, mean in self.weights.items():
            mean.lerp_(weights[name].detach().to(mean.dtype), rate)

    @contextlib.contextmanager
    def held_by(self, model: Any) -> Iterator[None]:
        """Let the model hold the average meanwhile. It costs one more copy of its weights."""
        own = {name: p for name, p in model.named_parameters() if name in self.weights}
        kept = {name: p.detach().clone() for name, p in own.items()}
        try:
            _copy_all(self.weights, own)
            yield
        finally:
            _copy_all(kept, own)

    @contextlib.contextmanager
    def answering(
        self, model: Any, hand_over: Callable[[int], object], version: int
    ) -> Iterator[int]:
        """Let an engine, given weights by `hand_over`, sample by the average; gives its version."""
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


@dataclass(frozen=True, kw_only=True)
class Step(Pass):
    """One scheduled optimizer step."""

    lr: float
    taken: bool = False
    """The optimizer moved; false where the mini-batch was empty or the step was refused."""
    fault: Fault | None = None
    """Reason why the step was refused; an update that is not finite was made before it was known.
    """
    update_norm: float = 0.0
    """L2 norm of the change of all parameters together; 0 for a step not taken."""
    grad_norm: float = 0.0


class PolicyOptimizer:
    """Takes one optimizer step per mini-batch of groups."""

    def __init__(
        self,
        model: Any,
        config: UpdateSettings,
        n_scheduled: int,
        share: tuple[int, int] = (0, 1),
        reference: Reference | None = None,
    ) -> None:
        """Prepare AdamW for `n_scheduled` steps, left-out ones included, see `backward`.

        With FSDP2 the scorer is sharded already. Without a reference it is the model as it is now.
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
        trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.masters = Masters(list(trained.values()), config.offload_optimizer)
        self.parameters: list[Tensor] = self.masters.tensors
        self._named = dict(zip(trained, self.parameters, strict=True))
        self.adamw = MeasuredAdamW(self.masters, config.weight_decay, config.offload_optimizer)
        self._group = shard_group(self.model.parameters())
        self.average = WeightAverage(self._named) if config.ema_decay > 0 else None

    def step(self, groups: Sequence[Group]) -> Step:
        """One scheduled step on one mini-batch.

        Nothing moves where all groups were dropped: an AdamW step on a zero gradient would still
        follow its moments. The schedule goes on in any case. After `max_bad_steps` refused steps in
        a row the run ends.
        """
        factor = rate_factor(self.n_done, self.n_scheduled, self.config.warmup_ratio)
        lr = (self.config.lr or 0.0) * self.config.step_factor * factor * self.rate_scale
        self.n_done += 1
        if groups and not any(bool(group.counted_KT.any()) for group in groups):
            n_tokens = sum(int(group.lengths_K.sum()) for group in groups)
            return Step(lr=lr, fault=self._refused(Fault.LOG_PROBS), n_left_out=n_tokens)
        batch = kept(groups, self.config.drop_uniform)
        if not batch:
            return Step(lr=lr)
        done = self._backward(batch)
        step = partial(Step, lr=lr, **vars(done))
        self.faults[Fault.LOG_PROB] += done.n_left_out
        if done.broken and not done.n_forward:
            return step(fault=self._refused(Fault.LOG_PROBS))
        if not done.n_tokens:
            return step()
        norm = self._grad_norm()
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
        tensors = {
            "n_done": torch.tensor(self.n_done),
            "n_refused": torch.tensor(self.n_refused_in_a_row),
        }
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
        for index, (name, master) in enumerate(self._named.items()):
            if self._has_master(index):
                live[f"master/{name}"] = master, master
            if self.average:
                live[f"average/{name}"] = (mean := self.average.weights[name]), mean
            moments = self.adamw.moments_of(index)
            live |= {f"{kind}/{name}": (moment, master) for kind, moment in moments.items()}
        return live

    def _has_master(self, index: int) -> bool:
        """The model computes with a rounded copy of this weight."""
        parameter, master = self.masters.parameters[index], self.parameters[index]
        return computed_with(parameter, self.model) != master.dtype

    @torch.no_grad()
    def _grad_norm(self) -> Tensor:
        gradients = self.masters.gradients()
        dtype = torch.promote_types(gradients[0].dtype, torch.float32)
        norms = torch._foreach_norm(gradients, dtype=dtype)
        return norm_over_ranks(torch.linalg.vector_norm(torch.stack(norms)), self._group)

    def _backward(self, batch: list[Group]) -> Pass:
        """The gradient of a mini-batch, without rows of no finite value, which `broken` names."""
        self.masters.zero_gradients()
        done = backward(self.scorer, batch, self.config, self._share, self._reference)
        if not done.broken:
            return done
        self.masters.zero_gradients()
        batch = without_rows(batch, done.broken)
        again = backward(self.scorer, batch, self.config, self._share, self._reference)
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
