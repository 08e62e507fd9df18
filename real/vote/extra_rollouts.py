"""Responses that a rule samples in addition to the votes: the protocol of `ExtraRollouts`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from guard_core import PolicyStreams
from lab.base.columns import Ints
from real.problems.problem import Problem
from real.problems.prompts import prompt_tokens
from real.update.packing import Group
from real.vote.decide import Decided, Fields
from real.vote.sample import Parts, Responses


def encode(parts: Parts, problem: Problem, suffix: str | None = None) -> list[int] | None:
    """Return a prompt's tokens; None where they are too many for the settings or the model."""
    return prompt_tokens(problem, parts.config, parts.sampler.policy, suffix)


class ExtraRollouts:
    """A rule's own generation. This class samples nothing; it is that of most rules.

    For every batch of problems the trainer calls `before`, `ask`, `groups` and, once the batch was
    trained on, `after_step`, in this order and on all ranks.
    """

    n_sampled = 0
    file: str | None = None
    """Name in the run folder of a copy of the plain values of `state` for readers."""

    def begin(self) -> dict[str, Any]:
        """Prepare, once before the first votes; returns facts for the manifest."""
        return {}

    def first(self) -> Fields:
        """Return observations of all problems before training, that labels depend on."""
        return {}

    def before(self, problems_P: Ints, step: int) -> Fields:
        """Sample what labels of batch `step` depend on; returns observations by their names."""
        return {}

    def ask(self, decided: Decided | None, responses: Responses) -> Decided | None:
        """Sample what rewards depend on; returns `decided` with the evidence, None for None."""
        return decided

    def groups(self, decided: Decided | None, streams: PolicyStreams) -> list[list[Group]]:
        """Return (P,) groups of extra responses to train on; empty for none at all."""
        return []

    def after_step(self, step: int) -> None:
        """Follow the weights, which batch `step` has changed."""

    def state(self) -> tuple[dict[str, Tensor], Any] | None:
        """Return tensors and plain values for checkpoints; None where there is nothing to keep."""
        return None

    def restore(self, tensors: dict[str, Tensor], values: Any) -> None:
        """Take over what `state` returned."""
