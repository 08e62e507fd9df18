"""Decision of the guard on every problem of a batch, and the part of it that changes the update."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from guard_core.votes import Array


class Route(IntEnum):
    """Path of a problem, for display and counts (docs/method.md, section 7)."""

    STABLE = 0
    AT_RISK = 1
    HIGH_RISK = 2
    SKIPPED = 3


STABLE, AT_RISK, HIGH_RISK, SKIPPED = (int(route) for route in Route)
"""The routes as plain numbers, which compiled functions read."""


_SAME = "label flipped match_rate flip_rate mean_match_rate had_competition route weight beta"
DECIDED = {"tie": "tied", "skipped": "skip", **{name: name for name in _SAME.split()}}
"""Field of `guard_core.visit.VisitRecord` to the field of `Decision` that holds it."""


def rerouted(skip: Array, high_risk: Array, contested: Array) -> Array:
    """(..., P) routes under other skips than the guard's; contested is FR > tau_FR now."""
    unskipped = np.where(high_risk, HIGH_RISK, np.where(contested, AT_RISK, STABLE))
    return np.where(skip, SKIPPED, unskipped).astype(np.int8)


@dataclass(frozen=True, slots=True)
class Decision:
    """The guard's output for each problem of the batch."""

    label: Array
    """(..., P) answer id of the pseudo-label, -1 for none yet."""
    flipped: Array
    """(..., P) bool; the label changed at this visit."""
    tied: Array
    """(..., P) bool; several answers shared the first place."""
    visits: Array
    """(..., P) integers; visits so far, this one included."""
    match_rate: Array
    """(..., P) share of all V votes that the label got."""
    flip_rate: Array
    """(..., P) flip rate of the problem."""
    mean_match_rate: Array
    """(..., P) mean of the last min(t, W) match rates."""
    had_competition: Array
    """(..., P) bool; the flip rate once exceeded `tau_FR`."""
    weight: Array
    """(..., P) FRS weight times the power of the margin, 1 where both are off."""
    beta: Array
    """(..., P) share of the minority loss, 0 where MPS is off."""
    high_risk: Array
    """(..., P) bool; once contested, now confident."""
    skip: Array
    """(..., P) bool; sits this step out."""
    route: Array
    """(..., P) integers, see `Route`."""
    minority: Array
    """(..., P, A) bool; minority candidates."""
    candidate_votes: Array
    """(..., P, A) integers; responses per answer that the candidates were chosen by."""

    def treated(self, weight: Array, beta: Array, skip: Array, tau_FR: float) -> Decision:
        """Replace what changes the update, as in a control that treats other problems."""
        route = rerouted(skip, self.high_risk, self.flip_rate > tau_FR)
        return replace(self, weight=weight, beta=beta, skip=skip, route=route)

    def trained_on(self, label: Array) -> Decision:
        """Replace the label that is trained on, as by the true answer in an oracle run.

        It is never a minority candidate. Negative ids stand for an answer that no response gave.
        """
        label = np.where(label < 0, -1, label)
        ids = np.arange(self.minority.shape[-1], dtype=label.dtype)
        return replace(self, label=label, minority=self.minority & (ids != label[..., None]))


class Treatment(NamedTuple):
    """The part of a decision that changes the update (docs/method.md, section 12)."""

    weight: Array
    beta: Array
    skip: Array

    @classmethod
    def of(cls, decision: Decision) -> Treatment:
        """Return the treatment that the guard decided on."""
        return cls(decision.weight, decision.beta, decision.skip)

    def permuted(self, problems: Array, draws: Array) -> Treatment:
        """Deal the batch's treatments to its problems at random.

        The problem with the i-th smallest number gets the treatment of the one with the i-th
        smallest draw, so the order of the rows does not matter. Both are (..., P).
        """
        rank = np.argsort(np.argsort(problems, axis=-1), axis=-1)
        source = np.take_along_axis(np.argsort(draws, axis=-1), rank, axis=-1)
        return Treatment(*(np.take_along_axis(dealt, source, axis=-1) for dealt in self))
