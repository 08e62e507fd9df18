"""Rules that know nothing: random rewards, format rewards, and voting without training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from guard_core.arrays import Array, namespace
from guard_core.checks import Share
from guard_core.rules.observations import Observations
from guard_core.rules.rule import Pays, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomReward(Rule):
    """Every response is rewarded with the same chance, whatever it says.

    A control of Shao et al., "Spurious Rewards: Rethinking Training Signals in RLVR"; read in the
    authors' code.
    """

    name: ClassVar[str] = "random"
    title: ClassVar[str] = "Random rewards"
    has_label: ClassVar[bool] = False
    pays: ClassVar[Pays] = "response"

    chance: Share = 0.5
    """Of a reward."""

    def n_draws(self, n_votes: int, n_samples: int) -> int:
        """Implement `Rule.n_draws`."""
        return n_samples

    def pay(self, obs: Observations, label: Array) -> Array:
        """Implement `Rule.pay`."""
        draws = obs.drawn(obs.votes.n_samples)
        return namespace(draws).astype(draws < self.chance, obs.real)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatReward(Rule):
    """Every parseable response is rewarded, right or wrong.

    A control of the same paper, read in the authors' code.
    """

    name: ClassVar[str] = "format"
    title: ClassVar[str] = "Format only"
    has_label: ClassVar[bool] = False
    pays: ClassVar[Pays] = "answer"

    def pay(self, obs: Observations, label: Array) -> Array:
        """Implement `Rule.pay`."""
        xp = namespace(label)
        parsed = xp.astype(obs.columns >= 0, obs.real)
        return xp.broadcast_to(parsed, (*label.shape, parsed.shape[-1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class MajAtN(Rule):
    """No training: the votes of all visits are summed, and their majority is the answer.

    The training-free baseline at the sampling budget of a whole run: after t visits the label of a
    trace is maj@(t V) when its guard remembers votes (`label_from = "memory"`).
    """

    name: ClassVar[str] = "maj_at_n"
    title: ClassVar[str] = "maj@n, no training"
    loss = "none"

    def weigh(self, obs: Observations, label: Array) -> Array:
        """Implement `Rule.weigh`: every problem leaves every batch."""
        return namespace(label).astype(label != label, obs.real)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneShotEM(Rule):
    """No rewards: the loss is the mean token entropy of the responses.

    Gao et al., "One-shot Entropy Minimization"; read in the authors' code (learning rate 2e-5,
    temperature .5, trained on a single problem; here on those of the run). The labels are watched
    and train nothing.
    """

    name: ClassVar[str] = "one_shot_em"
    title: ClassVar[str] = "One-shot EM"
    has_label: ClassVar[bool] = False
    pays: ClassVar[Pays] = "answer"
    loss = "entropy"

    def pay(self, obs: Observations, label: Array) -> Array:
        """Implement `Rule.pay`: all 0."""
        xp = namespace(label)
        zero = xp.astype(obs.columns != obs.columns, obs.real)
        return xp.broadcast_to(zero, (*label.shape, zero.shape[-1]))
