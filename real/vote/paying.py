"""A visit under a rule: what was observed to labels and advantage streams. NumPy alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from guard_core import Decision, GuardConfig, PolicyStreams, Votes, group_advantages, policy_streams
from guard_core.advantages import STD_FLOOR
from guard_core.arrays import widen
from guard_core.rules import Observations, Rule, response_streams, weighed
from guard_core.rules.coverrl import CoVerRL
from guard_core.votes import choose_majority

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Verify = Callable[[Ints | None], tuple[Ints, Bools]]
"""(P, Q) responses, as places among the V or -1, to (P, Q) verdicts and what was asked. A rank that
reads no answers gives None: it takes part in what the first one asks."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What the rule asked to be told of a batch beside its answers."""

    fields: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Observations by their names in `Observations`."""
    verify: Verify | None = None
    """Asks the verifier, once labels are known."""


class Paid(NamedTuple):
    """What a rule's batch is trained on."""

    streams: PolicyStreams
    """Of the K trained responses."""
    second: PolicyStreams | None = None
    """Of the first K responses of the second vote set, where these are trained as well."""
    verifier_PQ: Floats | None = None
    """Advantages of the verifications; NaN where nothing was asked."""


def seen_of(
    votes: Votes,
    answers_PV: Ints,
    draws_PD: Floats,
    observed: Observed | None,
    prior_PA: Floats | None,
) -> Observations:
    """What the rule sees of a batch.

    Args:
        votes: the answers, counted.
        answers_PV: (P, V) answer ids.
        draws_PD: (P, D) the rule's random numbers.
        observed: whatever could be observed.
        prior_PA: discounted scores of earlier visits; None where labels do not remember.
    """
    prior = None if prior_PA is None else widen(prior_PA, votes.counts.shape[-1])
    fields = {} if observed is None else observed.fields
    return Observations(votes, draws_PD, answers_PV, prior=prior, **fields)


def scores_of(rule: Rule, seen: Observations) -> NDArray[Any] | None:
    """What the guard picks labels by; None for the votes themselves."""
    return None if rule.labels_by_votes() else rule.scores(seen)


def pay(
    rule: Rule,
    seen: Observations,
    decision: Decision,
    config: GuardConfig,
    observed: Observed | None,
    tie_P: Floats,
) -> Paid:
    """The batch's streams, once its labels are settled.

    Args:
        rule: of the run.
        seen: of the batch.
        decision: of the guard; its label is the one to train on.
        config: of the guard.
        observed: asks the verifier, where the rule wants one.
        tie_P: uniform draws that break tied votes.
    """
    asked_PQ = None
    if observed is not None and observed.verify is not None:
        verdicts_PQ, asked_PQ = observed.verify(rule.questions(seen, decision.label))
        seen = replace(seen, verdicts=verdicts_PQ)
    streams = policy_streams(*response_streams(rule, seen, decision, config), decision, config)
    streams = weighed(rule, seen, decision.label, streams)
    if isinstance(rule, CoVerRL) and asked_PQ is not None:
        return Paid(streams, verifier_PQ=_verifier(rule, seen, asked_PQ))
    if rule.name == "co_rewarding_1":
        return Paid(streams, _other_way_round(seen, decision, config, tie_P))
    return Paid(streams)


def _other_way_round(
    seen: Observations, decision: Decision, config: GuardConfig, tie_P: Floats
) -> PolicyStreams:
    """Streams of the responses to the paraphrase, on the label of the original's votes.

    Equal votes are decided as the guard decides them. Remembered and frozen labels are one for
    both views of the problem. The guard's weights and skips hold for both; its minority stream
    belongs to the original's votes.
    """
    label = decision.label
    if config.label_from == "current":
        majority = choose_majority(seen.votes, label, tie_P, config)
        label = np.where(seen.n_parsed > 0, majority.label, -1)
    twin = replace(decision, label=label, beta=np.zeros_like(decision.beta))
    second_PK = seen.of("second")[:, : seen.votes.n_samples]
    return policy_streams(*group_advantages(second_PK, twin, config), twin, config)


def standardised(rewards_MN: Floats) -> Floats:
    """(M, N) advantages of samples among the N of their row; 0 where rewards are equal."""
    if rewards_MN.shape[1] < 2:
        return np.zeros_like(rewards_MN)
    centred_MN = rewards_MN - rewards_MN.mean(axis=1, keepdims=True)
    return centred_MN / (rewards_MN.std(axis=1, ddof=1, keepdims=True) + STD_FLOOR)


def _verifier(rule: CoVerRL, seen: Observations, asked_PQ: Bools) -> Floats:
    """(P, Q) the verifier's rewards, standardised within each answer's verifications."""
    rewards_PQ = rule.verifier_rewards(seen)
    found = np.full(rewards_PQ.shape, np.nan)
    for half in (slice(None, rule.verifications), slice(rule.verifications, None)):
        for rewards_H, found_H, asked_H in zip(
            rewards_PQ[:, half], found[:, half], asked_PQ[:, half], strict=True
        ):
            found_H[asked_H] = standardised(rewards_H[None, asked_H])[0]
    return found
