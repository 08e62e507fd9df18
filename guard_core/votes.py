"""Votes of a visit, the random numbers that go with them, and sums over the responses."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Votes:
    """The answers of one batch, counted.

    Raises:
        ValueError: the shapes differ, or sizes or counts are impossible.
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
        as_numpy(self, "counts", "samples")
        if self.counts.shape != self.samples.shape or self.counts.ndim < 2:
            raise ValueError(
                f"votes: counts {self.counts.shape} and samples {self.samples.shape} must have "
                "one shape (..., P, A)"
            )
        if not 1 <= self.n_samples <= self.n_votes or self.n_samples % 1 or self.n_votes % 1:
            told = f"n_samples = {self.n_samples} must lie in 1..n_votes = {self.n_votes}"
            raise ValueError(f"votes: {told}, and both must be whole")
        for name, most in (("counts", self.n_votes), ("samples", self.n_samples)):
            array = getattr(self, name)
            if array.dtype.kind != "f":  # expected numbers need not be whole
                array = as_ids(array, f"votes: {name}")
                object.__setattr__(self, name, array)
            # Expected numbers exceed the sum by rounding, and never by half a response.
            if array.size and (not array.min() >= 0 or array.sum(axis=-1).max() >= most + 0.5):
                raise ValueError(
                    f"votes: {name} of a problem must be at least 0 and add up to {most} at most"
                )

    @classmethod
    def from_answers(cls, answers: Array, *, n_samples: int, n_answers: int) -> Votes:
        """Count responses; the first `n_samples` of each problem are the trained ones.

        Args:
            answers: (..., P, V) integer answer ids, -1 for unparseable.
            n_answers: A, larger than every id.

        Raises:
            ValueError: an id lies outside -1..A-1.
        """
        answers = as_ids(answers, "answers")
        check_ids(answers, n_answers, "votes")
        return cls(
            counts=count_answers(answers, n_answers),
            samples=count_answers(answers[..., :n_samples], n_answers),
            n_votes=answers.shape[-1],
            n_samples=n_samples,
        )

    def wide(self, n_answers: int) -> Votes:
        """Pad to at least `n_answers` answers."""
        counts, samples = widen(self.counts, n_answers), widen(self.samples, n_answers)
        return self if counts is self.counts else replace(self, counts=counts, samples=samples)


@dataclass(frozen=True, slots=True)
class Draws:
    """Uniform random numbers in [0, 1), one per problem; the caller owns randomness.

    Raises:
        ValueError: a number is NaN or outside of 0 to 1.
    """

    tie: Array
    """(..., P); breaks tied votes."""
    skip: Array
    """(..., P); a high-risk problem is a skip candidate where it is below `p_skip`."""
    pick: Array
    """(..., P); the candidates with the smallest values fill the cap."""

    def __post_init__(self) -> None:
        """Check the numbers; 1 is allowed, which single precision makes of doubles just below."""
        as_numpy(self, *Draws.__slots__)
        for name in Draws.__slots__:
            draws = getattr(self, name)
            low, high = (draws.min(), draws.max()) if draws.size else (0, 0)  # both NaN by a NaN
            if not (low >= 0 and high <= 1):
                raise ValueError(f"draws: {name} must lie in [0, 1), not in [{low:g}, {high:g}]")


def as_array(values: Any, name: str = "array") -> Array:
    """Return numbers of any array library as a NumPy array.

    Tensors are detached and copied to the CPU; floats below single precision become float32.

    Raises:
        TypeError: the values are no array of numbers, or cannot be read, such as a meta tensor.
    """
    try:
        if hasattr(values, "detach"):  # a PyTorch tensor
            values = values.detach().cpu()
            if values.is_floating_point() and values.element_size() < 4:
                values = values.float()
        array = np.asarray(values)
        if array.dtype.kind == "V":  # bfloat16 of other libraries
            array = array.astype(np.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        kind, reason = type(values).__name__, str(error).split("\n")[0]
        raise TypeError(f"{name}: no NumPy array can be made of this {kind} ({reason})") from error
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: must be an array of numbers, not of {array.dtype}")
    return array


def as_numpy(record: object, *names: str) -> None:
    """Make arrays of another library in a frozen record NumPy's; None stays."""
    for name in names:
        array = getattr(record, name)
        if type(array) is np.ndarray and array.dtype.kind in "biuf":
            continue
        if array is not None:
            object.__setattr__(record, name, as_array(array, name))


def as_ids(values: Any, name: str) -> Array:
    """Return signed integers of any array library, of at least 32 bits against wrapping around.

    Raises:
        ValueError: they are no integers.
    """
    ids = as_array(values, name)
    if ids.size and ids.dtype.kind not in "iu":
        raise ValueError(f"{name}: must be integers, not {ids.dtype}")
    return ids.astype(ids.dtype if ids.dtype in (np.int32, np.int64) else np.int64, copy=False)


def check_ids(ids: Array, n_answers: int, name: str) -> None:
    """Refuse integer answer ids outside -1..n_answers-1 with a ValueError."""
    if ids.size and not -1 <= ids.min() <= ids.max() < n_answers:
        raise ValueError(
            f"{name}: answer ids must lie in -1..{n_answers - 1}; raise n_answers = {n_answers}, "
            "or use -1 for what is unparseable"
        )


def count_answers(answers: Array, n_answers: int) -> Array:
    """(..., P, A) responses per answer id among (..., P, V) integer ids; -1 counts nowhere."""
    answers = as_ids(answers, "answers")
    hits = answers[..., None] == np.arange(n_answers, dtype=answers.dtype)
    return hits.sum(axis=-2, dtype=answers.dtype)


def sum_by_id(ids: Array, n: int, weights: Array) -> Array:
    """(..., n) sums of the weights of (..., M) entries by id below n; negative ids are left out."""
    rows = np.arange(math.prod(ids.shape[:-1])).reshape((*ids.shape[:-1], 1))
    slots = rows * (n + 1) + np.where(ids < 0, n, ids)
    sums = np.bincount(slots.reshape(-1), weights.reshape(-1), rows.size * (n + 1))
    return sums.reshape((*ids.shape[:-1], n + 1))[..., :n].astype(weights.dtype)


def widen(array: Array, width: int) -> Array:
    """Pad the last axis with zeros up to `width`; longer ones are returned as they are."""
    missing = width - array.shape[-1]
    if missing <= 0:
        return array
    zeros = np.zeros((*array.shape[:-1], missing), array.dtype)
    return np.concatenate([array, zeros], axis=-1)
