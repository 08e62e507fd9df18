"""Interface of the rules: from observations of a batch to rewards, a label and a weight.

A rule is a frozen record of its settings with pure methods: no randomness, no state, no true
answer. `Guard.step` chooses the label between `scores` and the rest, so that the guard, frozen
labels and vote memory stand in the same place for every rule; docs/rules.md has the loop.

A rule that pays 1 to the label and 0 to the rest goes through the same lines as plain TTRL, so its
numbers are equal to the bit. Other rewards are standardised within the K trained responses of a
problem, or over the batch; there a problem that the rule leaves out still counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Literal, Self

import numpy as np

from guard_core import advantages
from guard_core.advantages import PolicyStreams
from guard_core.config import ConfigError, GuardConfig, check_fields, settings
from guard_core.decision import Decision
from guard_core.votes import Array, Votes, as_ids, as_numpy, check_ids


@dataclass(frozen=True, slots=True)
class Observations:
    """One visit of a batch: the votes, and the observations that the rule needs.

    A number that is not finite is a missing observation: the mean of the problem's others stands
    for it unless the rule's docstring says otherwise.

    Raises:
        ValueError: shapes do not fit together, or answer ids are none of the votes'.
    """

    votes: Votes
    """The answers, counted."""
    draws: Array
    """(..., P, D) uniform numbers in [0, 1)."""
    answers: Array | None = None
    """(..., P, V) integer answer ids, -1 unparseable; the first K are trained on. None only where
    no reward, score or question depends on single responses."""
    step_logprob: Array | None = None
    """(..., P, V) mean over a response's steps (parts between blank lines) of the mean log-prob of
    the step's tokens, in nats."""
    entropy: Array | None = None
    """(..., P, V) mean over the tokens of the entropy of the next-token distribution, in nats."""
    certainty: Array | None = None
    """(..., P, V) mean over the tokens of KL(uniform || next-token distribution), in nats."""
    similarity: Array | None = None
    """(..., P, K, K) cosine similarities of the trained responses."""
    second: Array | None = None
    """(..., P, V2) answer ids of a second vote set, numbered as `answers`."""
    verdicts: Array | None = None
    """(..., P, Q) integers; 1 judged right, 0 judged wrong, -1 not asked or not readable."""
    tool: Array | None = None
    """(..., P, V) bool; a tool confirmed the response."""
    prior: Array | None = None
    """(..., P, A) scores remembered from earlier visits, already discounted; A may differ from
    that of the votes. None where labels do not remember."""

    def __post_init__(self) -> None:
        """Check the shapes; give the votes a column where no answer is known yet."""
        object.__setattr__(self, "votes", self.votes.wide(1))
        names = [f.name for f in fields(self) if f.name != "votes"]
        as_numpy(self, *names)
        front, V = self.votes.counts.shape[:-1], self.votes.n_votes
        by_response = ("answers", "step_logprob", "entropy", "certainty", "tool")
        last: dict[str, tuple[int, ...]] = dict.fromkeys(by_response, (V,))
        last["similarity"] = (self.votes.n_samples,) * 2
        for name in names:
            if (array := getattr(self, name)) is None:
                continue
            needs = (*front, *last.get(name, array.shape[-1:]))
            if array.shape != needs:
                wanted = needs if name in last else f"({', '.join(map(str, front))}, any)"
                raise ValueError(f"{name}: shape {array.shape}, needs {wanted}")
            if name in ("answers", "second"):
                object.__setattr__(self, name, as_ids(array, name))
                check_ids(getattr(self, name), self.votes.counts.shape[-1], name)

    @property
    def trained(self) -> Array:
        """(..., P, K) answers of the trained responses."""
        return self.of("answers")[..., : self.votes.n_samples]

    @property
    def n_parsed(self) -> Array:
        """(..., P) votes that hold an answer."""
        return np.sum(self.votes.counts, axis=-1)

    @property
    def shares(self) -> Array:
        """(..., P, A) shares of all V votes."""
        return self.votes.counts / self.votes.n_votes

    def of(self, name: str) -> Array:
        """Return an observation that the rule needs; a missing one is a ValueError."""
        array = getattr(self, name)
        if array is None:
            raise ValueError(f"{name}: the rule needs it and it was not observed")
        return array

    def hits(self, label: Array) -> Array:
        """(..., P, K) bool; the trained responses whose answer is the label."""
        return (self.trained == label[..., None]) & (self.trained >= 0)

    def drawn(self, n: int) -> Array:
        """(..., P, n) the first n uniform numbers."""
        if self.draws.shape[-1] < n:
            raise ValueError(f"draws: {self.draws.shape[-1]} numbers, the rule takes {n}")
        return self.draws[..., :n]


def per_response(by_answer: Array, answers: Array, unparseable: float = 0.0) -> Array:
    """(..., P, M) values by answer (..., P, A), one per response."""
    last = np.full_like(by_answer[..., :1], unparseable)
    return np.take_along_axis(np.concatenate([by_answer, last], axis=-1), answers, axis=-1)


def at_label(by_answer: Array, label: Array) -> Array:
    """(..., P) entries of (..., P, A) at the label, 0 where there is none."""
    seen = np.where(label < by_answer.shape[-1], label, -1)  # others were remembered
    return per_response(by_answer, seen[..., None])[..., 0]


def masked_mean(values: Array, mask: Array) -> Array:
    """Mean over the last axis of what `mask` keeps, 0 where it keeps nothing."""
    count = np.sum(mask, axis=-1, dtype=values.dtype)
    return np.sum(np.where(mask, values, 0.0), axis=-1) / np.clip(count, min=1.0)


def scaled(values: Array, mask: Array, equal: float, least: float = 0.0) -> Array:
    """Values scaled to [0, 1] over what `mask` keeps of the last axis; others may lie outside.

    Where these differ by no more than `least`, all are `equal`.
    """
    low = np.min(values, axis=-1, keepdims=True, where=mask, initial=np.inf)
    width = np.max(values, axis=-1, keepdims=True, where=mask, initial=-np.inf) - low
    differ = width > least
    return np.where(differ, (values - low) / np.where(differ, width, 1.0), equal)


def filled(values: Array) -> Array:
    """Replace values that are not finite by the mean of the problem's others, 0 without any."""
    finite = np.isfinite(values)
    return np.where(finite, values, masked_mean(values, finite)[..., None]).astype(np.float64)


class Need(StrEnum):
    """Observations of a rule other than the answers; a field of `Observations` each."""

    STEP_LOGPROB = "step_logprob"
    ENTROPY = "entropy"
    CERTAINTY = "certainty"
    SIMILARITY = "similarity"
    PARAPHRASE = "paraphrase"
    """`Observations.second` holds the answers to a rewording of the same problem."""
    TEACHER = "teacher"
    """`Observations.second` holds the answers of a slowly moving average of the model."""
    VERDICTS = "verdicts"
    TOOL = "tool"


SECOND_VOTES = frozenset({Need.PARAPHRASE, Need.TEACHER})
"""Needs that are met by as many further votes, `Observations.second`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Base of all rules; every number of a rule is a field, checked where it is made.

    Raises:
        ConfigError: a field has the wrong type, or lies outside its bounds.
    """

    name: ClassVar[str]
    """As `--rule` takes it."""
    title: ClassVar[str]
    """As readers see it."""
    needs: ClassVar[frozenset[Need]] = frozenset()
    has_label: ClassVar[bool] = True
    """Rewards follow from one label per problem, so guard, memory and frozen labels apply."""
    follows_label: ClassVar[bool] = True
    """Rewards change with the label that is given; a rule that makes several labels of its own from
    the visit's votes cannot be paid by frozen ones."""
    trains_second: ClassVar[bool] = False
    """The responses of the second vote set are trained on as well, with the label of the first."""
    loss: ClassVar[Literal["rewards", "entropy", "none"]] = "rewards"
    """Objective that is minimised: the policy-gradient loss of the rewards, the mean token entropy
    itself, or nothing, as the baseline without training."""

    def __post_init__(self) -> None:
        name = _named(type(self))
        check_fields(self, prefix=f"{name}.", owner=f"rule {name}")
        self.check()

    def check(self) -> None:
        """Raise ConfigError where settings contradict each other."""

    def n_draws(self, n_votes: int, n_samples: int) -> int:
        """Uniform numbers that a visit of one problem takes, `Observations.draws`."""
        return 0

    def scores(self, obs: Observations) -> Array:
        """(..., P, A) at least 0; the answer with the most becomes the label, 0 never does."""
        return obs.votes.counts

    @classmethod
    def labels_by_votes(cls) -> bool:
        """Return whether the label is the answer with most votes, as in plain TTRL."""
        return cls.scores is Rule.scores

    @classmethod
    def pays_label(cls) -> bool:
        """Return whether 1 for the label and 0 for the rest is standardised, as in plain TTRL."""
        return cls.pay is Rule.pay and cls.is_direct is Rule.is_direct

    def questions(self, obs: Observations, label: Array) -> Array:
        """(..., P, Q) responses to be verified, as places among the V; -1 asks nothing.

        Only rules that need verdicts are asked; `Observations.verdicts` answers in the same order.
        """
        raise NotImplementedError(f"{_named(type(self))} asks no verifier")

    def pay(self, obs: Observations, label: Array) -> Array:
        """(..., P, K) finite rewards of the trained responses, for labels (..., P) or -1."""
        return obs.hits(label).astype(np.float64)

    def weigh(self, obs: Observations, label: Array) -> Array:
        """(..., P) factors on the problems' losses; at 0 a problem leaves the batch."""
        return np.ones(label.shape)

    def is_direct(self, obs: Observations, label: Array) -> Array | None:
        """(..., P) mask of problems whose rewards are used as advantages; None for none."""
        return None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build from settings by name; missing ones take their defaults."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"rule {_named(cls)}: settings must be a table, got {values!r}")
        known = [f.name for f in fields(cls)]
        for key in values:
            if key not in known:
                has = f"it has {', '.join(known)}" if known else "it has none"
                raise ConfigError(f"rule {_named(cls)}: no setting {key!r}; {has}")
        return cls(**values)


def _named(rule: type[Rule]) -> str:
    return getattr(rule, "name", rule.__name__)


def scored(rule: Rule, obs: Observations) -> Array:
    """(..., P, A) what labels are chosen by; a ConfigError for scores of no use."""
    if rule.labels_by_votes():
        return obs.votes.counts
    return _checked(rule, "scores", rule.scores(obs), obs.votes.counts.shape, 0.0)


def _checked(rule: Rule, method: str, made: Array, shape: tuple[int, ...], least: float) -> Array:
    """Return what a rule's method made; what would train something else in silence is refused."""
    if np.shape(made) != shape or not np.all(np.isfinite(made) & (np.asarray(made) >= least)):
        bound = "" if least < 0 else ", at least 0"
        raise ConfigError(
            f"rule {_named(type(rule))}: {method} returned an array of shape {np.shape(made)}; it "
            f"must be finite{bound} and of shape {shape}"
        )
    return made


def response_streams(
    rule: Rule, obs: Observations, decision: Decision, config: GuardConfig
) -> tuple[Array, Array]:
    """(..., P, K) advantages of both streams, as of `group_advantages`.

    The rule pays the majority stream; the minority stream is the guard's.
    """
    votes, majority = obs.votes, rule_advantages(rule, obs, decision, config)
    if rule.pays_label():
        majority = np.take_along_axis(majority, obs.trained, axis=-1)
    minority = advantages.minority_advantages(votes.samples, votes.n_samples, decision, config)
    return majority, np.take_along_axis(minority, obs.trained, axis=-1)


def rule_advantages(
    rule: Rule, obs: Observations, decision: Decision, config: GuardConfig
) -> Array:
    """(..., P, K) majority stream before `beta`; (..., P, A + 1) of a rule that pays the label."""
    votes = obs.votes
    if rule.pays_label():
        return advantages.majority_advantages(votes.samples, votes.n_samples, decision, config)
    shape = (*decision.label.shape, votes.n_samples)
    rewards = _checked(rule, "pay", rule.pay(obs, decision.label), shape, -np.inf)
    s = settings(config, votes.n_votes, votes.n_samples)
    if s.weight_on_reward:
        rewards = rewards * decision.weight[..., None]
    kept = ~decision.skip if s.skip_by_drop else None
    majority = advantages.standardise(rewards, config.advantages.advantage_scale, kept=kept)
    direct = rule.is_direct(obs, decision.label)
    if direct is not None:
        majority = np.where(direct[..., None], rewards, majority)
    if s.mix_bonus:
        # On candidates, in units of the mean |advantage|.
        size = decision.beta * np.mean(np.abs(majority), axis=-1)
        shares = np.take_along_axis(advantages.bonus_shares(decision), obs.trained, axis=-1)
        majority = majority + size[..., None] * shares
    return majority * advantages.kept_factor(decision, config)[..., None]


def weighed(rule: Rule, obs: Observations, label: Array, streams: PolicyStreams) -> PolicyStreams:
    """The streams with the rule's weights; a problem of weight 0 leaves the batch."""
    weight = _checked(rule, "weigh", rule.weigh(obs, label), label.shape, 0.0)
    return streams._replace(weight=streams.weight * weight, drop=streams.drop | (weight == 0))
