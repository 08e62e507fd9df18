"""AdamW over mini-batches: schedule, clipping, refused steps, and how far each step went."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from guard_core.schedule import rate_factor
from lab.errors import UserError
from real.ranks.sharding import shard_of
from real.update.adamw import MeasuredAdamW
from real.update.group import Group, kept, without_rows
from real.update.grpo import LossConfig, Pass, Reference, backward
from real.update.logprobs import Scorer
from real.update.masters import Masters
from real.update.reference import initial_reference


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
    max_refused: int = 10
    """So many refused steps one after the other end the run."""


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
    n_left_out: int = 0
    """Response tokens outside of the loss: the engine's or the trainer's log-prob was not finite.
    One such token of the trainer takes its whole response out."""
    kl: float = 0.0
    """Mean estimated KL divergence from the reference policy; 0 without one."""

    @property
    def refused(self) -> bool:
        """A number that the step depends on was not finite."""
        return self.fault is not None


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
        self.faults: Counter[Fault] = Counter()
        """Refused steps and left-out tokens by their reason; a caller may clear it."""
        self._share = share
        self._reference = reference
        if loss.kl_coef > 0 and reference is None:
            self._reference = initial_reference(self.scorer)
        named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        self._names = [name for name, _ in named]
        self._masters = Masters([p for _, p in named], copy=config.master_weights)
        self.parameters: list[Tensor] = self._masters.tensors
        self._adamw = MeasuredAdamW(
            self.parameters,
            lr=config.lr,
            betas=config.betas,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
        )

    def step(self, groups: Sequence[Group]) -> Step:
        """One scheduled step on one mini-batch.

        Nothing moves where all groups were dropped: an AdamW step on a zero gradient would still
        follow its moments. The schedule goes on in any case, so that all runs share it.

        Raises:
            UserError: `max_refused` steps in a row were refused, see `Fault`.
        """
        lr = self.config.lr * rate_factor(self.n_done, self.n_scheduled, self.config.warmup_ratio)
        self.n_done += 1
        if n_dead := _n_dead(groups):
            return Step(lr, fault=self._refused(Fault.LOG_PROBS), n_left_out=n_dead)
        batch = kept(groups, self.loss.drop_uniform)
        if not batch:
            return Step(lr)
        done = self._backward(batch)
        counts = {
            name: getattr(done, name)
            for name in ("n_tokens", "n_clipped", "n_forward", "n_left_out", "kl")
        }
        self.faults[Fault.LOG_PROB] += done.n_left_out
        if done.broken and not done.n_forward:
            return Step(lr, fault=self._refused(Fault.LOG_PROBS), **counts)
        if not done.n_tokens:
            return Step(lr, **counts)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        if not math.isfinite(grad_norm := _number(norm)):
            return Step(lr, fault=self._refused(Fault.GRADIENT), **counts)
        if not math.isfinite(done.loss):
            return Step(lr, fault=self._refused(Fault.LOSS), **counts)
        moved = _number(self._adamw.step(lr))
        self._masters.write_back()
        fault = None if math.isfinite(moved) else self._refused(Fault.UPDATE)
        if fault is None:
            self.n_refused_in_a_row = 0
        return Step(lr, True, fault, moved, done.loss, grad_norm, **counts)

    def state_tensors(self) -> dict[str, Tensor]:
        """All that a resumed run needs besides the model's own weights: counters, masters, moments.

        Names are `n_done`, `n_refused`, and per parameter `master/NAME`, `exp_avg/NAME`,
        `exp_avg_sq/NAME`, `step/NAME`. Tensors are the live ones, not copies.
        """
        tensors = {
            "n_done": torch.tensor(self.n_done),
            "n_refused": torch.tensor(self.n_refused_in_a_row),
        }
        for name, parameter, master in self._triples():
            if master is not parameter:
                tensors[f"master/{name}"] = master.detach()
            tensors |= {
                f"{kind}/{name}": value for kind, value in self._adamw.state_of(master).items()
            }
        return tensors

    @property
    def state_bytes(self) -> int:
        """Bytes of `state_tensors` after the first step: two moments, and masters with copies."""
        return sum(
            master.numel() * master.element_size() * (2 + (master is not parameter))
            for _, parameter, master in self._triples()
        )

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `state_tensors` gave; parameters with masters are overwritten by them.

        Raises:
            UserError: the tensors are not those of these parameters.
        """
        remaining = dict(tensors)
        n_done, n_refused = (self._taken(remaining, name) for name in ("n_done", "n_refused"))
        for name, parameter, master in self._triples():
            if master is not parameter:
                with torch.no_grad():
                    value = self._taken(remaining, f"master/{name}", master)
                    master.copy_(shard_of(value, master))
            state = self._adamw.state_of(master)
            state.clear()
            # There are no moments before the first step.
            for kind in ("step", "exp_avg", "exp_avg_sq"):
                if f"{kind}/{name}" in remaining:
                    like = None if kind == "step" else master
                    value = self._taken(remaining, f"{kind}/{name}", like)
                    state[kind] = value.clone() if like is None else shard_of(value, like)
        if remaining:
            raise UserError(
                f"optimizer state: {len(remaining)} tensors belong to no parameter, "
                f"{next(iter(remaining))} for one; resume with the settings of the checkpoint"
            )
        self._masters.write_back()
        self.n_done, self.n_refused_in_a_row = int(n_done), int(n_refused)

    @staticmethod
    def _taken(remaining: dict[str, Tensor], name: str, like: Tensor | None = None) -> Tensor:
        value = remaining.pop(name, None)
        if value is None or (like is not None and value.shape != like.shape):
            raise UserError(
                f"optimizer state: {name} is missing or of the wrong shape; "
                "resume with the settings of the checkpoint"
            )
        return value

    def _triples(self) -> list[tuple[str, Tensor, Tensor]]:
        return list(zip(self._names, self._masters.parameters, self.parameters, strict=True))

    def _backward(self, batch: list[Group]) -> Pass:
        """The gradient of a mini-batch, without rows for which the model gives no finite value.

        `broken` of the result names these rows.
        """
        self._adamw.zero_grad()
        done = backward(self.scorer, batch, self.loss, self._share, self._reference)
        if not done.broken:
            return done
        self._adamw.zero_grad()
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


def _number(norm: Any) -> float:
    """A norm on the host; of all ranks together where parameters are sharded."""
    whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return float(whole.item())
