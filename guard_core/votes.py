"""Votes of a visit, the random numbers that go with them, and the label that they give."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from array_api_compat import device

from guard_core.arrays import Array, counter_dtype, namespace, on_cpu
from guard_core.config import GuardConfig


@dataclass(frozen=True, slots=True)
class Votes:
    """The answers of one batch, counted.

    Raises:
        ValueError: the shapes differ, or the sizes are impossible.
    """

    counts: Array
    """(..., P, A) integers; responses per answer id among all V votes."""
    samples: Array
    """(..., P, A) integers; the same among the first K responses, those that are trained on."""
    n_votes: int
    """V, responses per problem, unparseable ones included."""
    n_samples: int
    """K, responses per problem that are trained on, unparseable ones included."""

    def __post_init__(self) -> None:
        """Check the shapes and sizes, which costs nothing; `check` looks at the values."""
        if tuple(self.counts.shape) != tuple(self.samples.shape) or self.counts.ndim < 2:
            raise ValueError(
                f"votes: counts {tuple(self.counts.shape)} and samples "
                f"{tuple(self.samples.shape)} must have one shape (..., P, A)"
            )
        if not 1 <= self.n_samples <= self.n_votes:
            raise ValueError(
                f"votes: n_samples = {self.n_samples} must lie in 1..n_votes = {self.n_votes}"
            )

    @classmethod
    def from_answers(
        cls, answers: Array, *, n_samples: int, n_answers: int, check: bool | None = None
    ) -> Votes:
        """Count responses; the first `n_samples` of each problem are the trained ones.

        Args:
            answers: (..., P, V) integer answer ids, -1 for unparseable.
            n_answers: A, larger than every id.
            check: look at the ids; if None on a CPU alone, since a look waits for a GPU.

        Raises:
            ValueError: the ids are no integers, or one that is looked at lies outside -1..A-1.
        """
        _check_ids(answers, n_answers, on_cpu(answers) if check is None else check)
        return cls(
            counts=count_answers(answers, n_answers),
            samples=count_answers(answers[..., :n_samples], n_answers),
            n_votes=answers.shape[-1],
            n_samples=n_samples,
        )

    def check(self) -> None:
        """Look at the values, which waits for a GPU.

        Raises:
            ValueError: a count is negative, the samples exceed the votes, or a row exceeds V.
        """
        xp = namespace(self.counts)
        if self.counts.shape[-1] == 0:
            return
        if bool(xp.any(self.samples < 0)) or bool(xp.any(self.samples > self.counts)):
            raise ValueError("votes: every count must hold 0 <= samples <= counts")
        if bool(xp.any(xp.sum(self.counts, axis=-1) > self.n_votes)):
            raise ValueError(f"votes: a problem has more than n_votes = {self.n_votes} votes")
        if bool(xp.any(xp.sum(self.samples, axis=-1) > self.n_samples)):
            raise ValueError(f"votes: a problem has more than n_samples = {self.n_samples} samples")


def _check_ids(answers: Array, n_answers: int, check: bool) -> None:
    xp = namespace(answers)
    if not xp.isdtype(answers.dtype, "integral"):
        raise ValueError(f"votes: answer ids must be integers, not {answers.dtype}")
    if check and (bool(xp.any(answers >= n_answers)) or bool(xp.any(answers < -1))):
        raise ValueError(
            f"votes: answer ids must lie in -1..{n_answers - 1}; raise n_answers = {n_answers}, "
            "or use -1 for what is unparseable"
        )


@dataclass(frozen=True, slots=True)
class Draws:
    """Uniform random numbers in [0, 1), one per problem; the caller owns randomness.

    Raises:
        ValueError: a number is NaN or outside of 0 to 1. Numbers on a GPU are not looked at, which
            would wait for it.
    """

    tie: Array
    """(..., P); breaks tied votes."""
    skip: Array
    """(..., P); a high-risk problem is a skip candidate where it is below `p_skip`."""
    pick: Array
    """(..., P); the candidates with the smallest values fill the cap."""

    def __post_init__(self) -> None:
        """Check the numbers; 1 is allowed, which single precision makes of doubles just below."""
        for name in ("tie", "skip", "pick"):
            draws = getattr(self, name)
            if 0 in draws.shape or not on_cpu(draws):
                continue
            xp = namespace(draws)
            # A NaN makes both NaN.
            low, high = float(xp.min(draws)), float(xp.max(draws))
            if not (low >= 0 and high <= 1):
                raise ValueError(f"draws: {name} must lie in [0, 1), not in [{low:g}, {high:g}]")


def count_answers(answers: Array, n_answers: int) -> Array:
    """Count responses per answer id.

    Args:
        answers: (..., P, V) integer answer ids; -1 is unparseable and counts nowhere.
        n_answers: A, larger than every id.

    Returns:
        (..., P, A) integers of the dtype of `answers`.
    """
    xp = namespace(answers)
    ids = xp.arange(n_answers, dtype=answers.dtype, device=device(answers))
    hits = answers[..., None] == ids
    return xp.sum(xp.astype(hits, answers.dtype), axis=-2, dtype=answers.dtype)


class Label(NamedTuple):
    """The pseudo-label of every problem in the batch."""

    label: Array
    """(..., P) answer id, -1 while no response could ever be parsed."""
    tied: Array
    """(..., P) bool; several answers shared the first place."""
    is_label: Array
    """(..., P, A) bool; the label's place."""
    got: Array
    """(..., P) votes of this visit that the label got."""


def choose_label(votes: Votes, scores: Array, old: Array, tie: Array, config: GuardConfig) -> Label:
    """Pick each problem's label by largest score (docs/method.md, section 2, paper equation 1).

    Args:
        scores: (..., P, A); the votes' own `counts`, a rule's scores, or sums over visits.
        old: (..., P) label before this visit, -1 for none.
        tie: (..., P) uniform draws.
        config: `tie_break`, `label_from` and `hysteresis` are read.
    """
    xp = namespace(scores)
    ids = xp.arange(scores.shape[-1], dtype=old.dtype, device=device(old))
    top = xp.max(scores, axis=-1)
    tied_PA = scores == top[..., None]
    # Running count of tied answers in id order; its last entry is how many there are.
    small = counter_dtype(xp, scores.shape[-1])
    order = xp.cumulative_sum(xp.astype(tied_PA, small), axis=-1, dtype=small)
    n_tied = order[..., -1]
    before = order <= _tie_rank(xp, tie, n_tied, config)[..., None]
    winner = xp.astype(xp.sum(xp.astype(before, small), axis=-1, dtype=small), old.dtype)
    if config.tie_break == "incumbent":
        stays = xp.any(tied_PA & (ids == old[..., None]), axis=-1)
        winner = xp.where(stays, old, winner)
    if config.hysteresis > 0:
        winner = _kept(xp, scores, top, old, winner, config.hysteresis)
    voted = _voted(xp, votes, top, config)
    label = xp.where(voted, winner, old)
    if config.label_from == "frozen":
        label = xp.where(old >= 0, old, label)
    is_label = ids == label[..., None]
    # The winner of the votes themselves has the most of them: nothing needs to be looked up.
    current = config.label_from == "current" and scores is votes.counts
    current &= config.hysteresis == 0
    got = top if current else _of_label(xp, votes.counts, label)
    return Label(label, voted & (n_tied > 1), is_label, got)


def choose_majority(votes: Votes, old: Array, tie: Array, config: GuardConfig) -> Label:
    """Pick the answer with most of this visit's votes, whatever the guard's labels are taken from.

    Args:
        old: (..., P) label where nobody voted, and of equals the one that
            `tie_break = "incumbent"` keeps; -1 for none.
        tie: (..., P) uniform draws.
    """
    return choose_label(
        votes, votes.counts, old, tie, replace(config, label_from="current", hysteresis=0.0)
    )


def _kept(xp: Any, scores: Array, top: Array, old: Array, winner: Array, share: float) -> Array:
    """The winner, or the old label where its score is above 0 and close to the highest."""
    score = _of_label(xp, scores, old)
    real = xp.float64 if xp.isdtype(scores.dtype, "integral") else scores.dtype
    close = xp.astype(score, real) >= (1 - share) * xp.astype(top, real)
    return xp.where((score > 0) & close, old, winner)


def _tie_rank(xp: Any, tie: Array, n_tied: Array, config: GuardConfig) -> Array:
    if config.tie_break == "first":
        return xp.zeros_like(n_tied)
    # A double just below 1 becomes 1 when it is turned into single precision.
    tie_rank = xp.astype(xp.floor(tie * xp.astype(n_tied, tie.dtype)), n_tied.dtype)
    return xp.where(tie_rank < n_tied, tie_rank, n_tied - 1)


def _voted(xp: Any, votes: Votes, top: Array, config: GuardConfig) -> Array:
    if config.label_from != "memory":
        return top > 0
    # Remembered sums stay positive for ever: ask this visit's votes whether anybody voted.
    return xp.any(votes.counts > 0, axis=-1) & (top > 0)


def _of_label(xp: Any, scores: Array, label: Array) -> Array:
    # An old label can lie beyond the answers that this batch knows of: nobody voted for it.
    known = (label >= 0) & (label < scores.shape[-1])
    index = xp.astype(xp.where(known, label, 0), xp.int64)
    score = xp.take_along_axis(scores, index[..., None], axis=-1)[..., 0]
    return xp.where(known, score, 0)
