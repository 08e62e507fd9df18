"""Votes of a visit, and the random numbers that go with them."""

from __future__ import annotations

from dataclasses import dataclass

from array_api_compat import device

from guard_core.arrays import Array, namespace, on_cpu


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
            n_samples: K.
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
