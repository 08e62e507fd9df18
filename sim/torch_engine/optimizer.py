"""`sim.world.optimizer` on tensors: SGD and Adam with mini-batches and clipping, side by side.

The mini-batches of a batch are steps that follow one another, but all their gradients are known
before the first. What they do to a problem's own logits does not touch, so they are taken at once;
only Adam's moments of shared parameters need them in turn.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from sim.world.optimizer import Rule


class Parts(NamedTuple):
    """How a batch is cut into mini-batches, and the factor on the gradients of each."""

    mini_batch: int
    alive_RB: Tensor | None
    """Mini-batches with a problem that did not leave the batch; None where it does not matter."""
    scale_RB: Tensor | None
    """Factor on the summed gradient; None for 1."""


def grouped(values: Tensor, mini_batch: int) -> Tensor:
    """Sums of (R, P, ...) values over the problems of every mini-batch, (R, B, ...)."""
    if mini_batch == 1:
        return values
    R, P, *rest = values.shape
    missing = -P % mini_batch
    if missing:
        values = pad(values, (0, 0) * len(rest) + (0, missing))
    return values.reshape(R, -1, mini_batch, *rest).sum(2)


def per_problem(values_RB: Tensor, mini_batch: int, n_problems: int) -> Tensor:
    """Give every problem the value of its mini-batch, (R, P)."""
    if mini_batch == 1:
        return values_RB
    return values_RB[..., None].expand(-1, -1, mini_batch).flatten(1)[:, :n_problems]


def cut(rule: Rule, square_RB: Tensor | None, drop_RP: Tensor) -> Parts:
    """Cut a batch, see `sim.world.optimizer.mean_and_clip`.

    Args:
        rule: the optimizer.
        square_RB: squared norms of the summed gradients; None where nothing is clipped.
        drop_RP: problems that left the batch; their gradients are 0.
    """
    if rule.is_plain:
        return Parts(1, None, None)
    kept_RB = grouped((~drop_RP).to(torch.float64), rule.mini_batch)
    alive_RB = kept_RB > 0
    # Without a problem all gradients are 0, and any factor will do.
    kept_RB = kept_RB.clamp(min=1.0)
    if square_RB is None:
        return Parts(rule.mini_batch, alive_RB, 1.0 / kept_RB)
    norm_RB = square_RB.sqrt() / kept_RB
    clip_RB = (rule.max_norm / (norm_RB + 1e-6)).clamp(max=1.0)
    return Parts(rule.mini_batch, alive_RB, clip_RB / kept_RB)


def clips(rule: Rule) -> bool:
    """Whether gradients are clipped, so that their norms are needed."""
    return rule.max_norm < math.inf


def adam(
    rule: Rule, gradient: Tensor, rate: Tensor, moments: tuple[Tensor, Tensor], steps: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Adam's change of parameters, and their moments after it.

    Args:
        rule: the optimizer.
        gradient: scaled.
        rate: step size.
        moments: decayed means of the gradient and of its square.
        steps: steps taken, this one included; floats. It broadcasts, as the rate does.
    """
    first = rule.beta_1 * moments[0] + (1.0 - rule.beta_1) * gradient
    second = rule.beta_2 * moments[1] + (1.0 - rule.beta_2) * gradient * gradient
    rise_1, rise_2 = (1.0 - torch.pow(beta, steps) for beta in (rule.beta_1, rule.beta_2))
    change = rate * (first / rise_1) / ((second / rise_2).sqrt() + rule.eps)
    return change, first, second


class Own:
    """The problems' own parameters: a row of A logits each, with Adam's memory of them.

    During an epoch they are in visiting order, so that a batch is a view.
    """

    def __init__(self, z_RNA: Tensor, rule: Rule) -> None:
        """Take the logits over."""
        self._rule = rule
        self._stored = [z_RNA]
        if rule.adam:
            steps_RN1 = torch.zeros_like(z_RNA[..., :1])
            self._stored += [torch.zeros_like(z_RNA), torch.zeros_like(z_RNA), steps_RN1]

    def begin(self, order_RN: Tensor) -> None:
        """Bring everything into visiting order."""
        self._order_RN1 = order_RN[..., None]
        self._visited = [v.gather(1, self._order_RN1.expand(v.shape)) for v in self._stored]
        self.z_RNA = self._visited[0]

    def change(
        self, at: slice, rate: Tensor, parts: Parts, gradient_RPA: Tensor, drop_RP: Tensor
    ) -> Tensor:
        """The optimizer's change of a batch's logits, (R, P, A); it does not move them."""
        if parts.scale_RB is not None:
            scale_RP = per_problem(parts.scale_RB, parts.mini_batch, gradient_RPA.shape[1])
            gradient_RPA = scale_RP[..., None] * gradient_RPA
        if not self._rule.adam:
            return rate * gradient_RPA
        left_RP1 = drop_RP[..., None]
        first_RPA, second_RPA, steps_RP1 = (v[:, at] for v in self._visited[1:])
        steps_RP1.add_((~left_RP1).to(torch.float64))
        # A row that was never stepped has no t to divide by, and is left as it was anyway.
        change, first, second = adam(
            self._rule, gradient_RPA, rate, (first_RPA, second_RPA), steps_RP1.clamp(min=1.0)
        )
        first_RPA.copy_(torch.where(left_RP1, first_RPA, first))
        second_RPA.copy_(torch.where(left_RP1, second_RPA, second))
        return change.masked_fill(left_RP1, 0.0)

    def move(self, at: slice, change_RPA: Tensor) -> None:
        """Add to a batch's logits."""
        # Not `z[:, at] += change`, which writes the sum to itself once more.
        self.z_RNA[:, at].add_(change_RPA)

    def end(self) -> None:
        """Write everything back."""
        for stored, visited in zip(self._stored, self._visited, strict=True):
            stored.scatter_(1, self._order_RN1.expand(stored.shape), visited)


class Shared:
    """D parameters that all problems of a replicate share, with Adam's memory of them."""

    def __init__(self, theta_RD: Tensor, rule: Rule) -> None:
        """Take the parameters over."""
        self._rule = rule
        self.theta_RD = theta_RD
        self._moments = (torch.zeros_like(theta_RD), torch.zeros_like(theta_RD))
        self._steps_R1 = torch.zeros_like(theta_RD[:, :1])

    def step(self, rate: Tensor, parts: Parts, pull_RBD: Tensor) -> Tensor:
        """Take the steps of a batch.

        Args:
            rate: step size, 0-d or (D,).
            parts: of the batch.
            pull_RBD: summed gradient of every mini-batch.

        Returns:
            (R, B) squared norm of every step's change.
        """
        if parts.scale_RB is not None:
            pull_RBD = parts.scale_RB[..., None] * pull_RBD
        if self._rule.adam and parts.alive_RB is not None:
            change_RBD = self._adam(rate, parts.alive_RB, pull_RBD)
        else:
            change_RBD = rate * pull_RBD
        self.theta_RD += change_RBD.sum(1)
        return (change_RBD * change_RBD).sum(-1)

    def _adam(self, rate: Tensor, alive_RB: Tensor, pull_RBD: Tensor) -> Tensor:
        changes = []
        for b in range(pull_RBD.shape[1]):
            alive_R1 = alive_RB[:, b, None]
            self._steps_R1 += alive_R1.to(torch.float64)
            steps_R1 = self._steps_R1.clamp(min=1.0)
            change_RD, *moments = adam(self._rule, pull_RBD[:, b], rate, self._moments, steps_R1)
            for old_RD, new_RD in zip(self._moments, moments, strict=True):
                old_RD.copy_(torch.where(alive_R1, new_RD, old_RD))
            changes.append(torch.where(alive_R1, change_RD, 0.0))
        return torch.stack(changes, dim=1)
