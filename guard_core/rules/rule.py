"""Interface of the rules: from observations of a batch to rewards, a label and a weight.

A rule is a frozen record of its settings with pure methods. It owns no randomness and no state,
and never sees a true answer. The label is chosen between `scores` and the rest, so that the guard,
frozen labels and vote memory stand in the same place for every rule:

    scores = rule.scores(obs)                             # who wins the label
    rows, decision = guard.step(rows, obs.votes, draws, scores)
    majority, minority = response_streams(rule, obs, decision, config)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Literal, Self

from guard_core.arrays import Array, namespace
from guard_core.checks import ConfigError, check_fields
from guard_core.rules.observations import Observations

Pays = Literal["label", "answer", "response"]
"""Dependence of a reward: 1 where the answer is the label; on the answer; on the response."""


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
    pays: ClassVar[Pays] = "label"
    trains_second: ClassVar[bool] = False
    """The responses of the second vote set are trained on as well, with the label of the first."""
    loss: ClassVar[Literal["rewards", "entropy", "none"]] = "rewards"
    """Objective that is minimised: the policy-gradient loss of the rewards, the mean token entropy
    itself, or nothing, as the baseline without training."""

    def __post_init__(self) -> None:
        """Check the fields' types and bounds."""
        name = _named(type(self))
        check_fields(self, prefix=f"{name}.", owner=f"rule {name}")
        self.check()

    def check(self) -> None:
        """Check what the types and bounds of single fields do not say.

        Raises:
            ConfigError: settings contradict each other.
        """

    def n_draws(self, n_votes: int, n_samples: int) -> int:
        """Uniform numbers that a visit of one problem takes, `Observations.draws`.

        Args:
            n_votes: V.
            n_samples: K.
        """
        return 0

    def scores(self, obs: Observations) -> Array:
        """(..., P, A) at least 0; the answer with the most becomes the label, 0 never does."""
        return obs.votes.counts

    @classmethod
    def labels_by_votes(cls) -> bool:
        """Return whether the label is the answer with most votes, as in plain TTRL."""
        return cls.scores is Rule.scores

    def questions(self, obs: Observations, label: Array) -> Array:
        """(..., P, Q) responses to be verified, as places among the V; -1 asks nothing.

        Only rules that need verdicts are asked; `Observations.verdicts` answers in the same order.

        Raises:
            NotImplementedError: the rule needs no verdicts.
        """
        raise NotImplementedError(f"{_named(type(self))} asks no verifier")

    def pay(self, obs: Observations, label: Array) -> Array:
        """The rewards.

        Args:
            obs: of the batch.
            label: (..., P) answer ids, -1 for none.

        Returns:
            (..., P, A + 1) by answer, the unparseable one last, or (..., P, K) by response where
            `pays` is `response`. Finite; entries of answers that no response gave mean nothing.
        """
        xp = namespace(label)
        return xp.astype(obs.columns == label[..., None], obs.real)

    def weigh(self, obs: Observations, label: Array) -> Array:
        """(..., P) factors on the problems' losses; at 0 a problem leaves the batch."""
        return namespace(label).astype(label == label, obs.real)

    def is_direct(self, obs: Observations, label: Array) -> Array | None:
        """(..., P) bool, problems whose rewards are advantages as they stand; None for none."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build from settings by name; missing ones take their defaults.

        Raises:
            ConfigError: a key is no setting of this rule, or a value is wrong.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"rule {_named(cls)}: settings must be a table, got {values!r}")
        known = [f.name for f in fields(cls)]
        for key in values:
            if key not in known:
                has = f"it has {', '.join(known)}" if known else "it has none"
                raise ConfigError(f"rule {_named(cls)}: no setting {key!r}; {has}")
        return cls(**values)


def _named(rule: type[Rule]) -> str:
    """The rule's name in messages; that of the class where somebody forgot to give one."""
    return getattr(rule, "name", rule.__name__)
