"""Advantages of the rules that pay something else than the label, by compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guard_core.arrays import floor_share
from guard_core.rules import Rule
from guard_core.rules.confidence import Intuitor, Rent
from guard_core.rules.controls import FormatReward, RandomReward
from guard_core.rules.coverrl import CoVerRL
from guard_core.rules.disctt import DiSCTT
from guard_core.rules.empo import EMPO
from guard_core.rules.evol_rl import EvolRL
from guard_core.rules.scope import Scope, subgroup_sizes
from guard_core.rules.scrl import SCRL, SCRLContinuous
from guard_core.rules.srt import SRTSoft
from guard_core.rules.ttrl import MMUPT
from sim.rules import answer_pay
from sim.rules.confident import confident_sums, excess_confidence
from sim.rules.novelty import novelty_sums
from sim.rules.paid import answer_sums
from sim.rules.random_pay import random_sums
from sim.rules.scope import subgroup_sums
from sim.rules.subsets import room_for
from sim.rules.told import Floats, Told
from sim.world.observe.confidence import CERTAINTY, ENTROPY, Scale

Ints = NDArray[np.int64]
Pay = Callable[[Any, Told, Ints, Floats], NDArray[np.bool_] | None]
"""Writes rewards; what is returned are the problems whose rewards are advantages."""


def paid_sums(rule: Rule, told: Told, label_RP: Ints) -> Floats:
    """(R, P, A) advantages of the majority stream, summed over every answer's trained responses."""
    votes, sums_RPA = told.votes, np.empty_like(told.visit.p_RPA)
    if type(rule) in SUMS:
        SUMS[type(rule)](rule, told, label_RP, sums_RPA)
        return sums_RPA
    R, P, A = sums_RPA.shape
    rewards_RPA = np.empty((R, P, A + 1))
    direct_RP = PAID[type(rule)](rule, told, label_RP, rewards_RPA)
    if direct_RP is None:
        direct_RP = np.zeros((R, P), np.bool_)
    answer_sums(votes.samples, votes.n_samples, rewards_RPA, direct_RP, sums_RPA)
    return sums_RPA


def _srt_soft(rule: Any, told: Told, label_RP: Ints, out: Floats) -> None:
    answer_pay.soft_shares(told.votes.counts, out)


def _empo(rule: Any, told: Told, label_RP: Ints, out: Floats) -> None:
    answer_pay.agreeing_shares(told.votes.counts, told.votes.n_votes, out)


def _mm_upt(rule: Any, told: Told, label_RP: Ints, out: Floats) -> None:
    answer_pay.winner_or_none(told.votes.counts, told.votes.n_votes, label_RP, out)


def _format(rule: Any, told: Told, label_RP: Ints, out: Floats) -> None:
    answer_pay.format_and_match(label_RP, 1.0, 0.0, out)


def _coverrl(rule: Any, told: Told, label_RP: Ints, out: Floats) -> None:
    answer_pay.format_and_match(label_RP, float(rule.format_reward), 1.0, out)


def _disctt(rule: Any, told: Told, label_RP: Ints, out: Floats) -> NDArray[np.bool_]:
    direct_RP = np.empty(told.shape, np.bool_)
    numbers = (float(rule.agreement), float(rule.diversity))
    of = (told.votes.counts, told.votes.n_votes, label_RP)
    answer_pay.explored(*of, *numbers, direct_RP, out)
    return direct_RP


def _scrl(rule: Any, told: Told, label_RP: Ints, out: Floats) -> None:
    weight = float(getattr(rule, "entropy_weight", -1.0))
    bounds = (float(rule.t_pos), float(rule.t_margin), float(rule.t_low))
    votes, excess_RPA = told.votes, np.empty_like(told.visit.p_RPA)
    excess_confidence(
        *told.place,
        told.visit.truth_RP,
        told.visit.p_RPA,
        votes.counts,
        votes.samples,
        votes.n_votes,
        votes.n_samples,
        *told.confidence,
        ENTROPY[1],
        excess_RPA,
    )
    answer_pay.three_kinds(votes.counts, votes.n_votes, excess_RPA, label_RP, *bounds, weight, out)


PAID: dict[type[Rule], Pay] = {
    SRTSoft: _srt_soft,
    EMPO: _empo,
    MMUPT: _mm_upt,
    FormatReward: _format,
    CoVerRL: _coverrl,
    DiSCTT: _disctt,
    SCRL: _scrl,
    SCRLContinuous: _scrl,
}
"""Rules that pay answers."""


def _random(rule: Any, told: Told, label_RP: Ints, out: Floats) -> None:
    votes = told.votes
    random_sums(*told.place, votes.samples, votes.n_samples, float(rule.chance), out)


def _intuitor(rule: Any, told: Told, label_RP: Ints, out: Floats) -> None:
    _confident(told, CERTAINTY, float("nan"), out)


def _rent(rule: Any, told: Told, label_RP: Ints, out: Floats) -> None:
    _confident(told, (-ENTROPY[0], -ENTROPY[1]), float(rule.unparseable), out)


def _confident(told: Told, scale: Scale, unparseable: float, out: Floats) -> None:
    visit, votes = told.visit, told.votes
    of = (visit.truth_RP, visit.p_RPA, votes.samples, votes.n_samples)
    confident_sums(*told.place, *of, *told.confidence, scale, unparseable, out)


def _evol_rl(rule: Any, told: Told, label_RP: Ints, out: Floats) -> None:
    strength, votes = told.observer.strength.similarity_answer, told.votes
    novelty_sums(*told.place, votes.samples, votes.n_samples, label_RP, strength, out)


def _scope(rule: Any, told: Told, label_RP: Ints, out: Floats) -> None:
    votes = told.votes
    V = votes.n_votes
    n_drawn = max(1, floor_share(rule.subset, V))
    prior_RPA = np.zeros_like(told.visit.p_RPA)
    if told.prior_RPA is not None:
        prior_RPA = (n_drawn / V) * told.prior_RPA
    sizes_S = np.array(subgroup_sizes(V), np.int64)
    subgroup_sums(
        *told.place,
        told.answers_RPV,
        told.weights_RPV,
        prior_RPA,
        sizes_S,
        n_drawn,
        room_for(int((V // sizes_S).sum()), V),
        float(rule.balance),
        votes.n_samples,
        votes.samples,
        out,
    )


SUMS: dict[type[Rule], Callable[[Any, Told, Ints, Floats], None]] = {
    RandomReward: _random,
    Intuitor: _intuitor,
    Rent: _rent,
    EvolRL: _evol_rl,
    Scope: _scope,
}
"""Rules that pay responses; what is written are advantages, summed over every answer's."""
