"""The rules whose rewards compiled code computes; all others run on arrays alone.

A rule is here only if it costs more than three times plain TTRL's visit on arrays, at 64
replicates. Its law stays in `guard_core.rules`: compiled code gives the one quantity that is
expensive, and the rule makes rewards of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from guard_core.arrays import floor_share
from guard_core.rules import Need, Observations, Rule
from guard_core.rules.evol_rl import EvolRL
from guard_core.rules.scope import Scope, subgroup_sizes
from sim.rules.novelty import novelties
from sim.rules.subgroups import fills_words, subgroup_labels
from sim.world.observe.observer import Observer, Visit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class FastRule(NamedTuple):
    """The compiled part of a rule."""

    rewards: Callable[[Any, Observer, Visit, Observations, Ints], Floats]
    """(R, P, K) rewards of a rule's trained responses, from a batch and its labels."""
    spares: frozenset[Need]
    """Observations that are not drawn."""
    supports: Callable[[Any, int], bool]
    """Return whether it computes a rule with these settings and this number of votes."""


def fast_rule(rule: Rule, n_votes: int) -> FastRule | None:
    """Return the compiled part of a rule; None where the rule runs on arrays alone."""
    fast = FAST.get(type(rule))
    return fast if fast is not None and fast.supports(rule, n_votes) else None


def _evol_rl(
    rule: EvolRL, observer: Observer, visit: Visit, obs: Observations, label_RP: Ints
) -> Floats:
    answers_RPK = obs.of("answers")[..., : obs.votes.n_samples]
    novelty_RPK = np.empty(answers_RPK.shape)
    ordinary_RPK = observer.ordinary(visit)
    strength = observer.strength.signal
    novelties(answers_RPK, label_RP, ordinary_RPK, strength, novelty_RPK)
    return rule.rewards(obs, label_RP, novelty_RPK)


def _scope(
    rule: Scope, observer: Observer, visit: Visit, obs: Observations, label_RP: Ints
) -> Floats:
    V, p_RPA = obs.votes.n_votes, visit.p_RPA
    n_drawn = max(1, floor_share(rule.subset, V))
    prior_RPA = np.zeros_like(p_RPA) if obs.prior is None else n_drawn / V * obs.prior
    n_subgroups = sum(V // size for size in subgroup_sizes(V))
    labels_RPG = np.empty((*p_RPA.shape[:2], n_subgroups), np.int64)
    of = (visit.epoch, visit.problems_RP, obs.of("answers"), rule.weights(obs), prior_RPA)
    subgroup_labels(*observer.seeds, *of, n_drawn, labels_RPG)
    return rule.rewards(obs, labels_RPG)


FAST: dict[type[Rule], FastRule] = {
    EvolRL: FastRule(_evol_rl, frozenset({Need.SIMILARITY}), lambda rule, n_votes: True),
    Scope: FastRule(
        _scope,
        frozenset(),
        lambda rule, n_votes: rule.confidence == "logprob" and fills_words(n_votes),
    ),
}
"""By class; a subclass of one's own runs on arrays."""
