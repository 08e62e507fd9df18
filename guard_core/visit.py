"""The guard's law for one visit of one problem, on plain numbers.

`Guard.step`, `answer_advantages` and `policy_streams` state the same law for arrays, with the same
operations in the same order, so both agree to the last bit. These functions take numbers,
one-dimensional sequences and records with attributes, and nothing else: they run on Python's own
lists, and `sim.engine.kernel` compiles them.

A visit is `choose_label`, `decide` and `weigh_support`. When all problems of a batch are decided,
`choose_skips` leaves some of them out; `answer_advantages` gives what the others are trained on.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from math import sqrt
from typing import Any, NamedTuple

from guard_core.advantages import STD_FLOOR
from guard_core.arrays import floor_share
from guard_core.config import GuardConfig
from guard_core.decision import Route

Numbers = MutableSequence[Any]
STABLE, AT_RISK, HIGH_RISK, SKIPPED = (int(route) for route in Route)
NO_CANDIDATE = 2.0
"""Key of a problem that is no candidate for skipping; those of candidates lie below 1."""


class Settings(NamedTuple):
    """`GuardConfig` as numbers and flags, with the sizes of a visit."""

    n_votes: int
    n_samples: int
    least: int
    """Responses that make an answer a minority candidate."""
    frs: bool
    mps: bool
    rcsu: bool
    W: int
    T_steady: int
    discount: float
    hysteresis: float
    negative_scale: float
    margin_power: int
    min_share: float
    tau_FR: float
    tau_MR: float
    l1: float
    l2: float
    w_min: float
    beta_max: float
    minority_reward: float
    theta_MR: float
    p_skip: float
    tie_first: bool
    tie_incumbent: bool
    current: bool
    frozen: bool
    memory: bool
    instant: bool
    weigh_advantage: bool
    weigh_reward: bool
    weigh_loss: bool
    saturating: bool
    plain: bool
    bonus: bool
    skip_first: bool
    drop: bool
    scale_group: bool
    scale_batch: bool


_FLAGS = {
    "tie_first": ("tie_break", "first"),
    "tie_incumbent": ("tie_break", "incumbent"),
    "current": ("label_from", "current"),
    "frozen": ("label_from", "frozen"),
    "memory": ("label_from", "memory"),
    "instant": ("flip_rate", "instant"),
    "weigh_advantage": ("weight_on", "advantage"),
    "weigh_reward": ("weight_on", "reward"),
    "weigh_loss": ("weight_on", "loss"),
    "saturating": ("beta_schedule", "saturating"),
    "plain": ("empty_minority", "plain"),
    "bonus": ("mix", "bonus"),
    "skip_first": ("skip_order", "first"),
    "drop": ("skip_by", "drop"),
    "scale_group": ("advantage_scale", "group"),
    "scale_batch": ("advantage_scale", "batch"),
}
"""Flag to the setting and the word for which it is True."""


def settings(config: GuardConfig, n_votes: int, n_samples: int) -> Settings:
    """Return the settings of visits with V votes and K samples."""
    least = max(1, floor_share(config.minority_share, n_samples))
    flags = {flag: getattr(config, name) == word for flag, (name, word) in _FLAGS.items()}
    numbers = {name: getattr(config, name) for name in Settings._fields[3:] if name not in flags}
    return Settings(n_votes, n_samples, least, **numbers, **flags)


def remember(memory: Numbers, scores: Sequence[Any], discount: float) -> None:
    """Add a visit's scores to the discounted memory of the visits before, in place."""
    for a in range(len(scores)):
        memory[a] = discount * memory[a] + scores[a]


def choose_label(
    s: Settings, scores: Sequence[Any], counts: Sequence[Any], old: int, tie: float
) -> tuple[int, bool]:
    """Return the label (paper equation 1), and whether several answers shared the first place.

    Args:
        scores: per answer; the votes, a rule's scores, or the memory with this visit in it.
        old: label before this visit, -1 for none.
        tie: uniform number that decides between equal answers.
    """
    top, n_tied, label = winner(scores, old, tie, s.tie_first, s.tie_incumbent)
    if s.hysteresis > 0 and 0 <= old < len(scores):
        close = scores[old] >= (1 - s.hysteresis) * top
        label = old if scores[old] > 0 and close else label
    voted = top > 0
    if s.memory and voted:
        # Remembered sums stay positive for ever: look whether anybody voted now.
        voted = False
        for a in range(len(counts)):
            voted |= counts[a] > 0
    if not voted or (s.frozen and old >= 0):
        label = old
    return label, voted and n_tied > 1


def winner(
    scores: Sequence[Any], old: int, tie: float, first: bool, incumbent: bool
) -> tuple[Any, int, int]:
    """Return the highest score, how many answers have it, and which of them wins."""
    top, n_tied, label = scores[0], 0, 0
    for a in range(len(scores)):
        if scores[a] > top:
            top, n_tied, label = scores[a], 0, a
        n_tied += scores[a] == top
    if n_tied == 1 or first:
        return top, n_tied, label
    if incumbent and 0 <= old < len(scores) and scores[old] == top:
        return top, n_tied, old
    # In single precision a number just below 1 can round up to 1.
    n_left = min(int(tie * n_tied), n_tied - 1)
    while n_left > 0:
        label += 1
        n_left -= scores[label] == top
    return top, n_tied, label


def decide(
    s: Settings,
    problem: Any,
    flips: Numbers,
    match_rates: Numbers,
    label: int,
    counts: Sequence[Any],
    candidate_votes: Sequence[Any],
    minority: Numbers,
    visit: Any,
) -> None:
    """Record one visit and decide what to do with the problem, all but the skip.

    Args:
        problem: the fields of `GuardState` that are one number; changed.
        flips: 0 or 1 of the last W visits, newest last; changed.
        match_rates: of the last W visits, newest last; changed.
        candidate_votes: responses per answer that minority candidates are chosen by.
        minority: output; True for minority candidates, per answer.
        visit: output; the columns of a visit (`lab.trace.schema`).
    """
    visit.flipped = label != problem.label and problem.label >= 0
    visit.match_rate = (counts[label] if 0 <= label < len(counts) else 0) / s.n_votes
    visit.label = problem.label = label
    problem.visits += 1
    n_flips, total = push(flips, visit.flipped), push(match_rates, visit.match_rate)
    visit.flip_rate = 1.0 * visit.flipped if s.instant else n_flips / s.W
    visit.mean_match_rate = total / min(problem.visits, s.W)
    contested = visit.flip_rate > s.tau_FR
    problem.had_competition = problem.had_competition or contested
    visit.had_competition = problem.had_competition
    visit.weight = weigh(s, problem, visit) if s.frs else 1.0
    visit.n_minority = find_minority(s.least, label, candidate_votes, minority)
    visit.beta = protect(s, problem, visit) if s.mps else 0.0
    locked = visit.mean_match_rate > s.theta_MR and problem.visits >= s.W
    high_risk = problem.had_competition and locked
    visit.route = HIGH_RISK if high_risk else AT_RISK if contested else STABLE
    visit.skipped = False


def push(history: Numbers, newest: Any) -> Any:
    """Shift the history by one visit; return its sum from left to right, oldest first."""
    last = len(history) - 1
    total = history[0] * 0
    for w in range(last):
        history[w] = history[w + 1]
        total += history[w]
    history[last] = newest
    return total + history[last]


def weigh(s: Settings, problem: Any, visit: Any) -> float:
    """Return the FRS weight (paper equations 6-11); counts the visits at which C2 holds."""
    c1 = visit.flip_rate > s.tau_FR and visit.match_rate > s.tau_MR
    c2 = not problem.had_competition and problem.visits >= s.W
    c2 = c2 and visit.mean_match_rate > s.tau_MR and problem.c2_fired < s.W
    problem.c2_fired += c2
    weight = 1 - s.l1 * visit.flip_rate
    weight = weight * (1 - s.l2) if c1 else weight
    weight = weight * (1 - s.l2 / 2) if c2 else weight
    return s.w_min if weight < s.w_min else weight


def weigh_support(s: Settings, scores: Sequence[Any], visit: Any) -> None:
    """Change weight and skip by the label's support among the scores that it was chosen by."""
    if s.margin_power == 0 and s.min_share == 0:
        return
    total, own, best = 0.0, 0.0, 0.0
    for a in range(len(scores)):
        total += scores[a]
        if a == visit.label:
            own += scores[a]
        elif scores[a] > best:
            best = 1.0 * scores[a]
    total = total if total > 0 else 1.0
    margin = max((own - best) / total, 0.0)
    for _ in range(s.margin_power):
        visit.weight *= margin
    if own / total < s.min_share:
        visit.skipped, visit.route = True, SKIPPED


def find_minority(least: int, label: int, votes: Sequence[Any], minority: Numbers) -> int:
    """Mark answers other than the label with enough votes (paper equation 12); return how many."""
    n_minority = 0
    for a in range(len(votes)):
        minority[a] = votes[a] >= least and a != label
        n_minority += minority[a]
    return n_minority


def protect(s: Settings, problem: Any, visit: Any) -> float:
    """Turn the protection on or off; return beta (paper equation 13), 0 where it is off."""
    strength = visit.flip_rate
    contested = strength > s.tau_FR
    problem.steady = 0 if contested else problem.steady + 1
    problem.mps_active = contested or (problem.mps_active and problem.steady < s.T_steady)
    if s.saturating:
        strength = min(strength / max(s.tau_FR, 1e-6), 1.0)
    off = not problem.mps_active or (s.plain and visit.n_minority == 0)
    return 0.0 if off else s.beta_max * strength


def skip_key(s: Settings, visit: Any, skip: float, pick: float) -> float:
    """Return the key by which a problem is skipped, the smallest first, or `NO_CANDIDATE`."""
    if visit.route != HIGH_RISK or skip >= s.p_skip:
        return NO_CANDIDATE
    return 0.0 if s.skip_first else pick


def choose_skips(keys: Sequence[float], cap: int, visits: Any) -> None:
    """Skip the candidates with the smallest keys, at most `cap`; equal ones in batch order."""
    for p in range(len(keys)):
        if keys[p] == NO_CANDIDATE:
            continue
        n_before = 0
        for q in range(len(keys)):
            n_before += keys[q] < keys[p] or (keys[q] == keys[p] and q < p)
        if n_before < cap:
            visits[p].skipped = True
            visits[p].route = SKIPPED


def standardised(s: Settings, hits: float, reward: float, std: float) -> tuple[float, float]:
    """Return the advantage of a sample that gets the reward, and of one that gets nothing.

    Args:
        hits: samples that get it.
        reward: at least 0.
        std: standard deviation of the batch's rewards, read for `advantage_scale = "batch"`.
    """
    mean = reward * (hits / s.n_samples)
    if not (s.scale_group or s.scale_batch):
        return reward - mean, -mean
    if s.scale_group:
        pairs = max(s.n_samples * (s.n_samples - 1), 1)
        std = reward * sqrt(hits * (s.n_samples - hits) / pairs)
    std = std + STD_FLOOR
    return (reward - mean) / std, -mean / std


def scale_negatives(s: Settings, advantage: float) -> float:
    """Return the advantage, a negative one times `negative_scale`."""
    return s.negative_scale * advantage if advantage < 0 else advantage


def batch_std(s: Settings, hits: Sequence[float], factor: float, visits: Any) -> float:
    """Return the standard deviation of a batch's rewards, `factor` times the weight or 1 each."""
    n_kept, first, second = 0, 0.0, 0.0
    for p in range(len(hits)):
        if not (s.drop and visits[p].skipped):
            reward = factor * visits[p].weight if s.weigh_reward else factor
            n_kept += 1
            first += reward * hits[p]
            second += reward * reward * hits[p]
    total = n_kept * s.n_samples
    squares = second - first * first / max(total, 1)
    return sqrt(max(squares, 0.0) / max(total - 1, 1))


def answer_advantages(
    s: Settings,
    visit: Any,
    label: int,
    minority: Sequence[Any],
    candidate_votes: Sequence[Any],
    hits: tuple[float, float],
    stds: tuple[float, float],
    advantages: Numbers,
) -> None:
    """Write the advantage of every answer, the sum of the majority and the minority stream.

    Args:
        label: answer that is trained on, -1 for none.
        minority: True for minority candidates; not the label.
        candidate_votes: responses per answer that they were chosen by.
        hits: samples on the label, and on minority candidates.
        stds: of `batch_std`, for the majority and the minority reward.
        advantages: output, per answer.
    """
    kept = 0.0 if visit.skipped else 1.0
    kept = kept * visit.weight if s.weigh_advantage else kept
    reward = visit.weight if s.weigh_reward else 1.0
    won, lost = standardised(s, hits[0], reward, stds[0])
    if s.bonus:
        _with_bonus(s, visit, label, minority, candidate_votes, hits[0], won, lost, advantages)
        for a in range(len(advantages)):
            # The minority stream is 0, which turns -0.0 into 0.0.
            advantages[a] = scale_negatives(s, advantages[a] * kept) + 0.0
        return
    rival_won, rival_lost = standardised(s, hits[1], s.minority_reward * reward, stds[1])
    won, lost = (1 - visit.beta) * (won * kept), (1 - visit.beta) * (lost * kept)
    rival_won, rival_lost = visit.beta * (rival_won * kept), visit.beta * (rival_lost * kept)
    lost, rival_lost = scale_negatives(s, lost), scale_negatives(s, rival_lost)
    rival, other = lost + rival_won, lost + rival_lost
    for a in range(len(advantages)):
        advantages[a] = rival if minority[a] else other
    if label >= 0:
        advantages[label] = won + rival_lost


def _with_bonus(
    s: Settings,
    visit: Any,
    label: int,
    minority: Sequence[Any],
    candidate_votes: Sequence[Any],
    hits: float,
    won: float,
    lost: float,
    advantages: Numbers,
) -> None:
    """Write the advantages of the majority reward, with the release's bonus on candidates."""
    size = visit.beta * ((hits * won - (s.n_samples - hits) * lost) / s.n_samples)
    votes = 0
    for a in range(len(advantages)):
        votes += candidate_votes[a] if minority[a] else 0
    for a in range(len(advantages)):
        share = candidate_votes[a] / max(votes, 1) if minority[a] else 0.0
        advantages[a] = (won if a == label else lost) + size * share
