"""The answer policies of `sim.world.policies` on tensors; the laws are written there.

A policy is driven epoch by epoch, with batches named by their visits: `begin` brings what belongs
to the problems into visiting order, `end` writes it back. Population, loadings, features and kernel
are drawn and read on the host by the same code as the compiled policies'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sim.settings.config import SimConfig
from sim.torch_engine.device import upload
from sim.torch_engine.guard import Step
from sim.torch_engine.optimizer import Own, Shared, clips, cut, grouped, per_problem
from sim.world.optimizer import rule
from sim.world.policies.attractor import loadings
from sim.world.policies.features import features
from sim.world.policies.kernel_file import read_kernel
from sim.world.populations import Population


class TorchPolicy(Protocol):
    """A model of what the network would answer, for R replicates at once."""

    def begin(self, order_RN: Tensor) -> None:
        """Start an epoch with the problems in visiting order."""
        ...

    def logits(self, at: slice) -> Tensor:
        """(R, P, A) logits of some visits."""
        ...

    def update(self, at: slice, rate: Tensor, step: Step) -> Tensor:
        """Take the optimizer steps of one batch, see `sim.world.policies.base.Policy.update`.

        Args:
            at: the batch's visits.
            rate: 0-d step size of the schedule.
            step: gradient, 0 where a problem was dropped, and the dropped problems.

        Returns:
            (R, P) norm of the parameter change of the optimizer step that the problem was
            scheduled for, 0 where that step was left out.
        """
        ...

    def end(self) -> None:
        """End the epoch."""
        ...


class Independent:
    """Every problem has its own logits."""

    def __init__(self, config: SimConfig, population: Population, device: torch.device) -> None:
        """Start at the population's probabilities."""
        self._rule = rule(config)
        self._own = Own(upload(np.log(population.p0_RNA), device), self._rule)

    def begin(self, order_RN: Tensor) -> None:
        """See `TorchPolicy`."""
        self._own.begin(order_RN)

    def logits(self, at: slice) -> Tensor:
        """See `TorchPolicy`."""
        return self._own.z_RNA[:, at]

    def update(self, at: slice, rate: Tensor, step: Step) -> Tensor:
        """See `TorchPolicy`."""
        m = self._rule.mini_batch
        whole_RB = grouped(_square(step.gradient_RPA), m) if clips(self._rule) else None
        parts = cut(self._rule, whole_RB, step.drop_RP)
        change_RPA = self._own.change(at, rate, parts, step.gradient_RPA, step.drop_RP)
        self._own.move(at, change_RPA)
        return per_problem(grouped(_square(change_RPA), m).sqrt(), m, change_RPA.shape[1])

    def end(self) -> None:
        """See `TorchPolicy`."""
        self._own.end()


class Attractor:
    """Own logits, and one shared direction each for correct answers and for attractors."""

    def __init__(self, config: SimConfig, population: Population, device: torch.device) -> None:
        """Start at the population's probabilities, with both directions at 0."""
        self._rule = rule(config)
        self._own = Own(upload(np.log(population.p0_RNA), device), self._rule)
        zero_R2 = torch.zeros((config.replicates, 2), dtype=torch.float64, device=device)
        self._shared = Shared(zero_R2, self._rule)
        self._all_places_RN2 = _places(population, device)
        self._all_loads_RN2 = upload(loadings(config), device)
        self._kappa_2 = upload(np.array([config.kappa_corr, config.kappa_att], np.float64), device)
        self._neg_transfer = float(config.neg_transfer)

    def begin(self, order_RN: Tensor) -> None:
        """See `TorchPolicy`."""
        self._own.begin(order_RN)
        index_RN2 = order_RN[..., None].expand(self._all_places_RN2.shape)
        self._place_RN2 = self._all_places_RN2.gather(1, index_RN2)
        self._load_RN2 = self._all_loads_RN2.gather(1, index_RN2)

    def logits(self, at: slice) -> Tensor:
        """See `TorchPolicy`."""
        lift_RP2 = self._load_RN2[:, at] * self._shared.theta_RD[:, None]
        return self._own.z_RNA[:, at].scatter_add(-1, self._place_RN2[:, at], lift_RP2)

    def update(self, at: slice, rate: Tensor, step: Step) -> Tensor:
        """See `TorchPolicy`."""
        m, gradient_RPA = self._rule.mini_batch, step.gradient_RPA
        pull_RP2 = gradient_RPA.gather(-1, self._place_RN2[:, at])
        pull_RP2 = self._load_RN2[:, at] * _passed(pull_RP2, self._neg_transfer)
        pull_RB2 = grouped(pull_RP2, m)
        whole_RB = None
        if clips(self._rule):
            whole_RB = grouped(_square(gradient_RPA), m) + _square(pull_RB2)
        parts = cut(self._rule, whole_RB, step.drop_RP)
        change_RPA = self._own.change(at, rate, parts, gradient_RPA, step.drop_RP)
        self._own.move(at, change_RPA)
        square_RB = self._shared.step(rate * self._kappa_2, parts, pull_RB2)
        square_RB = grouped(_square(change_RPA), m) + square_RB
        return per_problem(square_RB.sqrt(), m, change_RPA.shape[1])

    def end(self) -> None:
        """See `TorchPolicy`."""
        self._own.end()


class Features:
    """No own logits: all are linear in a few shared parameters with random features."""

    def __init__(self, config: SimConfig, population: Population, device: torch.device) -> None:
        """Start at the population's probabilities, with all parameters at 0."""
        self._rule = rule(config)
        self._all_z_RNA = upload(np.log(population.p0_RNA), device)
        phi_FNDA = upload(features(config), device)
        self._phi_MDA = phi_FNDA.flatten(0, 1)
        """Features of all problems, of one replicate after the other unless all share them."""
        n_own = phi_FNDA.shape[0]
        first_R = torch.arange(config.replicates, device=device).clamp(max=n_own - 1)
        self._first_R1 = (first_R * config.n_problems)[:, None]
        shape = (config.replicates, config.feature_dim)
        zero_RD = torch.zeros(shape, dtype=torch.float64, device=device)
        self._shared = Shared(zero_RD, self._rule)

    def begin(self, order_RN: Tensor) -> None:
        """See `TorchPolicy`."""
        self._z_RNA = self._all_z_RNA.gather(1, order_RN[..., None].expand(self._all_z_RNA.shape))
        self._row_RN = self._first_R1 + order_RN

    def logits(self, at: slice) -> Tensor:
        """See `TorchPolicy`."""
        lift_RPDA = self._phi(at) * self._shared.theta_RD[:, None, :, None]
        return self._z_RNA[:, at] + lift_RPDA.sum(2)

    def update(self, at: slice, rate: Tensor, step: Step) -> Tensor:
        """See `TorchPolicy`."""
        m = self._rule.mini_batch
        pull_RPD = (self._phi(at) * step.gradient_RPA[:, :, None]).sum(-1)
        pull_RBD = grouped(pull_RPD, m)
        whole_RB = _square(pull_RBD) if clips(self._rule) else None
        parts = cut(self._rule, whole_RB, step.drop_RP)
        square_RB = self._shared.step(rate, parts, pull_RBD)
        return per_problem(square_RB.sqrt(), m, step.drop_RP.shape[1])

    def end(self) -> None:
        """See `TorchPolicy`; the problems have nothing that changes."""

    def _phi(self, at: slice) -> Tensor:
        """(R, P, D, A) features of some visits, single precision as they are stored."""
        row_RP = self._row_RN[:, at]
        phi_MDA = self._phi_MDA.index_select(0, row_RP.flatten())
        return phi_MDA.unflatten(0, row_RP.shape)


class Kernel:
    """Problems move each other by a given matrix.

    What the updates of all problems lift a problem's correct answer and attractor by is kept apart
    from its own logits and added to them when they are read.
    """

    def __init__(self, config: SimConfig, population: Population, device: torch.device) -> None:
        """Read the matrix and start at the population's probabilities.

        Raises:
            UserError: the file cannot be read, or is no finite symmetric (N, N) matrix.
        """
        self._rule = rule(config)
        self._own = Own(upload(np.log(population.p0_RNA), device), self._rule)
        self._k_NN = upload(read_kernel(str(config.kernel), config.n_problems), device)
        self._all_places_RN2 = _places(population, device)
        self._lift_RN2 = torch.zeros(self._all_places_RN2.shape, dtype=torch.float64, device=device)
        self._neg_transfer = float(config.neg_transfer)

    def begin(self, order_RN: Tensor) -> None:
        """See `TorchPolicy`."""
        self._own.begin(order_RN)
        self._order_RN2 = order_RN[..., None].expand(self._all_places_RN2.shape)
        self._place_RN2 = self._all_places_RN2.gather(1, self._order_RN2)

    def logits(self, at: slice) -> Tensor:
        """See `TorchPolicy`."""
        lift_RP2 = self._lift_RN2.gather(1, self._order_RN2[:, at])
        return self._own.z_RNA[:, at].scatter_add(-1, self._place_RN2[:, at], lift_RP2)

    def update(self, at: slice, rate: Tensor, step: Step) -> Tensor:
        """See `TorchPolicy`."""
        m, P = self._rule.mini_batch, step.drop_RP.shape[1]
        whole_RB = grouped(_square(step.gradient_RPA), m) if clips(self._rule) else None
        parts = cut(self._rule, whole_RB, step.drop_RP)
        change_RPA = self._own.change(at, rate, parts, step.gradient_RPA, step.drop_RP)
        problem_RP, place_RP2 = self._order_RN2[:, at, 0], self._place_RN2[:, at]
        k_RPN = self._k_NN.index_select(0, problem_RP.flatten()).unflatten(0, problem_RP.shape)
        self_RP1 = k_RPN.gather(-1, problem_RP[..., None])
        lift_RPN2 = self._lifts(change_RPA.gather(-1, place_RP2), k_RPN, self_RP1, problem_RP)
        lift_RBN2 = grouped(lift_RPN2, m)
        self._lift_RN2 += lift_RBN2.sum(1)
        # Both roles' own shares are among the lifts, so that mini-batches add up first.
        moved_RPA = (self_RP1 * change_RPA).scatter(-1, place_RP2, 0.0)
        self._own.move(at, moved_RPA)
        square_RB = grouped(_square(moved_RPA), m) + _square(lift_RBN2.flatten(2))
        return per_problem(square_RB.sqrt(), m, P)

    def end(self) -> None:
        """See `TorchPolicy`."""
        self._own.end()

    def _lifts(
        self, change_RP2: Tensor, k_RPN: Tensor, self_RP1: Tensor, problem_RP: Tensor
    ) -> Tensor:
        """What every problem of the batch gives to both roles of all problems, (R, P, N, 2)."""
        passed_RP2 = _passed(change_RP2, self._neg_transfer)
        lift_RPN2 = k_RPN[..., None] * passed_RP2[:, :, None]
        own_RP12 = (self_RP1 * change_RP2)[:, :, None]
        return lift_RPN2.scatter_(2, problem_RP[..., None, None].expand(own_RP12.shape), own_RP12)


POLICIES: dict[str, Callable[[SimConfig, Population, torch.device], TorchPolicy]] = {
    "independent": Independent,
    "attractor": Attractor,
    "features": Features,
    "kernel": Kernel,
}


def _places(population: Population, device: torch.device) -> Tensor:
    """(R, N, 2) ids of the correct answer and of the attractor."""
    return upload(np.stack([population.truth_RN, population.attractor_RN], axis=-1), device)


def _passed(pull: Tensor, neg_transfer: float) -> Tensor:
    """What a gradient or a change passes on to other problems: less where it is a penalty."""
    return torch.where(pull < 0, pull * neg_transfer, pull)


def _square(values: Tensor) -> Tensor:
    """Squared norms of the rows."""
    return (values * values).sum(-1)
