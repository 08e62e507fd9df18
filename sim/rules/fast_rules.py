"""Which rules have compiled code, and how they are computed by it.

Everything else, rules of one's own among it, is computed by guard_core itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guard_core import GuardConfig
from guard_core.rules import RULES, Rule
from guard_core.rules.coverrl import CoVerRL
from guard_core.rules.empo import EMPO
from guard_core.rules.scope import Scope
from guard_core.rules.second_votes import CoRewarding1, CoRewarding2, SelfHarmony
from guard_core.rules.srt import SRT
from guard_core.rules.t3rl import T3RL
from guard_core.rules.ttcs import TTCS
from sim.rules import scores as compiled
from sim.rules.fast_pay import PAID, SUMS
from sim.rules.subsets import fits
from sim.rules.told import Floats, Told
from sim.world.observe import Observer, Visit

Ints = NDArray[np.int64]

_USUAL = {"confidence": "logprob", "positive_from": "zero"}
"""Choices of SCOPE and SCRL; the others are left to guard_core."""


def is_fast(rule: Rule, guard: GuardConfig, n_votes: int) -> bool:
    """Whether compiled code computes the rule under these settings of the guard and V votes."""
    plain = guard.mix == "loss" and guard.advantage_scale == "group" and guard.weight_on != "reward"
    ours = RULES.get(rule.name) is type(rule) and type(rule).__module__.startswith("guard_core.")
    known = (
        rule.pays == "label" or type(rule) in PAID or type(rule) in SUMS or rule.loss != "rewards"
    )
    if isinstance(rule, EMPO) and rule.unparseable != "zero":
        return False
    if isinstance(rule, Scope) and not fits(n_votes):
        return False
    usual = all(getattr(rule, name, word) == word for name, word in _USUAL.items())
    return ours and known and usual and plain


def fast_scores(rule: Rule, observer: Observer, visit: Visit) -> Floats | None:
    """(R, P, A) scores at visit 0; None where guard_core has to compute them."""
    scored = SCORES.get(type(rule))
    return None if scored is None else scored(rule, Told(observer, visit))


def _scope(rule: Any, told: Told) -> Floats:
    out_RPA = np.empty_like(told.visit.p_RPA)
    compiled.weighted_votes(told.answers_RPV, told.weights_RPV, out_RPA)
    return out_RPA


def _t3rl(rule: Any, told: Told) -> Floats:
    out_RPA, weight = np.empty_like(told.visit.p_RPA), float(rule.verified_weight)
    votes, visit, strength = told.votes, told.visit, told.observer.strength
    if not weight.is_integer():
        # Sums of fractions depend on the order of the terms: take that of guard_core.
        tool_RPV = told.observer.tool(visit, told.answers_RPV)
        compiled.confirmed_votes(told.answers_RPV, tool_RPV, weight, out_RPA)
        return out_RPA
    compiled.confirmed_counts(
        *told.observer.seeds,
        visit.epoch,
        visit.problems_RP,
        visit.truth_RP,
        votes.counts,
        votes.samples,
        votes.n_samples,
        votes.n_votes,
        strength.tool_tpr,
        strength.tool_fpr,
        weight,
        out_RPA,
    )
    return out_RPA


def _second(rule: Any, told: Told) -> Floats:
    return told.observer.second(told.visit).astype(np.float64)


def _harmony(rule: Any, told: Told) -> Floats:
    out_RPA = np.empty_like(told.visit.p_RPA)
    second_RPA = told.observer.second(told.visit)
    votes, n_second = told.votes, told.observer.n_second
    compiled.harmonic_shares(votes.counts, votes.n_votes, second_RPA, n_second, out_RPA)
    return out_RPA


SCORES: dict[type[Rule], Callable[[Any, Told], Floats]] = {
    Scope: _scope,
    T3RL: _t3rl,
    SelfHarmony: _harmony,
    CoRewarding1: _second,
    CoRewarding2: _second,
}
"""Rules whose labels are not simply the votes'."""


def _srt(rule: Any, told: Told, label_RP: Ints) -> Floats:
    if rule.keep < 1:
        return rule.weigh(told.counted, label_RP)
    share_RP = np.empty(told.shape)
    compiled.label_shares(told.votes.counts, label_RP, 0, share_RP)
    return (share_RP >= rule.threshold).astype(np.float64)


def _ttcs(rule: Any, told: Told, label_RP: Ints) -> Floats:
    mean_RP = np.empty(told.shape)
    compiled.label_shares(told.votes.samples, label_RP, told.votes.n_samples, mean_RP)
    passes_RP = (mean_RP >= rule.least) & (mean_RP <= rule.most)
    return (passes_RP | (told.votes.n_samples == 1)).astype(np.float64)


def _coverrl(rule: Any, told: Told, label_RP: Ints) -> Floats:
    asked_RPQ = np.empty((*told.shape, rule.verifications), np.int64)
    compiled.ask_majority(told.votes.counts, told.votes.n_votes, label_RP, asked_RPQ)
    weight_RP = np.empty(told.shape)
    compiled.count_verdicts(told.observer.verdicts(told.visit, asked_RPQ), weight_RP)
    return weight_RP


WEIGHTS: dict[type[Rule], Callable[[Any, Told, Ints], Floats]] = {
    SRT: _srt,
    TTCS: _ttcs,
    CoVerRL: _coverrl,
}
"""Rules with weights."""
