"""Controls: random rewards, format rewards, and voting without training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from guard_core.arrays import Array, namespace
from guard_core.config import Share
from guard_core.rules.rule import Observations, Pays, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomReward(Rule):
    """Every response is rewarded with the same chance, whatever it says.

    A control of Shao et al., "Spurious Rewards: Rethinking Training Signals in RLVR",
    https://arxiv.org/abs/2506.10947; read in the authors' code.

    Example: answers 0 1; draws .1 .9; rewards 1 0.
    """

    name: ClassVar[str] = "random"
    title: ClassVar[str] = "Random rewards"
    has_label: ClassVar[bool] = False
    pays: ClassVar[Pays] = "response"

    chance: Share = 0.5
    """Of a reward."""

    def n_draws(self, n_votes: int, n_samples: int) -> int:
        return n_samples

    def pay(self, obs: Observations, label: Array) -> Array:
        draws = obs.drawn(obs.votes.n_samples)
        return namespace(draws).astype(draws < self.chance, obs.real)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatReward(Rule):
    """Every parseable response is rewarded, right or wrong.

    A control of the same paper, https://arxiv.org/abs/2506.10947; read in the authors' code.

    Example: answers 0 1 -; rewards 1 1 0.
    """

    name: ClassVar[str] = "format"
    title: ClassVar[str] = "Format only"
    has_label: ClassVar[bool] = False
    pays: ClassVar[Pays] = "answer"

    def pay(self, obs: Observations, label: Array) -> Array:
        xp = namespace(label)
        parsed = xp.astype(obs.columns >= 0, obs.real)
        return xp.broadcast_to(parsed, (*label.shape, parsed.shape[-1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class MajAtN(Rule):
    """No training: the votes of all visits are summed, and their majority is the answer.

    The training-free baseline at the sampling budget of a whole run: after t visits the label of a
    trace is maj@(t V) when its guard remembers votes (`label_from = "memory"`). The vote itself is
    that of Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models",
    https://arxiv.org/abs/2203.11171.

    Example: answers 0 0 1; weight 0.
    """

    name: ClassVar[str] = "maj_at_n"
    title: ClassVar[str] = "maj@n, no training"
    loss = "none"

    def weigh(self, obs: Observations, label: Array) -> Array:
        """Implement `Rule.weigh`: every problem leaves every batch."""
        return namespace(label).astype(label != label, obs.real)
