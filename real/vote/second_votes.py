"""Second vote sets: the same problems in other words, or answered by a slower model."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from guard_core.rules import Need, Rule
from real.engines.rollouts import Engine, Rollouts
from real.model.policy import Policy
from real.problems.prompts import PromptSet
from real.vote.paraphrases import Paraphrases
from real.vote.teacher import Teacher

if TYPE_CHECKING:
    from real.run import Run


class Drawn(NamedTuple):
    """Responses beside those that vote first."""

    prompts: list[list[int]]
    """(P,) token ids."""
    rollouts: Rollouts


class SecondVotes(Protocol):
    """Who answers the problems a second time."""

    def begin(self, run: Run) -> dict[str, Any]:
        """Do what has to be done once, before the first votes; returns facts for the manifest."""
        ...

    def prompts(self, prompts: PromptSet) -> PromptSet:
        """What is asked."""
        ...

    def answering(self, version: int) -> AbstractContextManager[int]:
        """The engine samples by whoever answers; gives the version of these weights.

        Args:
            version: of the trained weights, which the engine has before and after.
        """
        ...

    def after_step(self, step: int) -> None:
        """Take in that batch `step` was trained on."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What it remembers, for checkpoints."""
        ...

    def values(self) -> Any:
        """The same in plain values; None for nothing."""
        ...

    def restore(self, run: Run, tensors: dict[str, Tensor], values: Any) -> None:
        """Take over what `tensors` and `values` gave."""
        ...


def make_second(rule: Rule, policy: Policy, engine: Engine, n_steps: int) -> SecondVotes | None:
    """The second vote set that a rule needs; None for most.

    Args:
        rule: of the run.
        policy: as it is before training, or before a checkpoint is loaded.
        engine: samples the votes.
        n_steps: batches of the whole run.
    """
    if Need.PARAPHRASE in rule.needs:
        return Paraphrases()
    if Need.TEACHER in rule.needs:
        return Teacher(policy.model, engine, n_steps)
    return None


def second_of(run: Run) -> SecondVotes | None:
    """The run's second vote set, if its rule has one."""
    return None if run.observer is None else run.observer.second


def draw_second(
    run: Run, second: SecondVotes, problems: list[int], version: int, generator: torch.Generator
) -> Drawn:
    """The second votes of a batch's problems, V each."""
    asked = second.prompts(run.prompts).tokens
    prompts = [asked[problem] for problem in problems]
    with second.answering(version) as answering:
        rollouts = run.engine.sample(prompts, run.config.n_votes, run.sampling, generator)
        return Drawn(prompts, rollouts.of_version(answering))
