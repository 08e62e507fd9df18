"""Responses beside the K voted ones that a rule trains as well, as groups of the loss."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from real.update.group import Group
from real.vote.grouping import groups_of
from real.vote.observing import Look
from real.vote.supervision import Supervision

if TYPE_CHECKING:
    from real.run import Run


def mini_batches(
    run: Run, groups: list[Group], look: Look | None, supervision: Supervision
) -> list[list[Group]]:
    """The groups of every optimizer step; what is trained besides goes with its problem's.

    Args:
        run: gives the problems per step.
        groups: of the batch's problems, in order.
        look: what the rule drew further.
        supervision: what it pays for that.
    """
    size = run.config.mini_batch
    further = _further(run, look, supervision)
    return [
        [*groups[start : start + size], *chain(*further[start : start + size])]
        for start in range(0, len(groups), size)
    ]


def _further(run: Run, look: Look | None, supervision: Supervision) -> list[list[Group]]:
    """(P,) groups of every problem; empty for most rules."""
    paid = supervision.paid
    if look is None or paid is None:
        return []
    if look.second is not None and paid.second is not None:
        found = groups_of(look.second.prompts, look.second.rollouts, paid.second, run)
        return [[group] for group in found]
    asked = None if look.verification is None else look.verification.asked
    if asked is None or paid.verifier_PQ is None:
        return []
    # A doubted majority is no measure for the verifier either: its problem leaves as a whole.
    weights = zip(paid.streams.weight.tolist(), paid.streams.drop.tolist(), strict=True)
    return [
        [replace(group, weight=weight, dropped=drop) for group in groups]
        for groups, (weight, drop) in zip(asked.groups(paid.verifier_PQ), weights, strict=True)
    ]
