"""Observations of rules, by hand or at random."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from guard_core import Votes
from guard_core.rules import Observations

BY_RESPONSE = ("answers", "step_logprob", "entropy", "certainty", "tool")
"""Observations (..., P, V) that belong to single responses."""


@dataclass(frozen=True)
class Sight:
    """NumPy arrays of one visit of a batch; fields are those of `Observations`."""

    answers: np.ndarray
    n_samples: int
    n_answers: int
    draws: np.ndarray
    step_logprob: np.ndarray | None = None
    entropy: np.ndarray | None = None
    certainty: np.ndarray | None = None
    similarity: np.ndarray | None = None
    second: np.ndarray | None = None
    verdicts: np.ndarray | None = None
    tool: np.ndarray | None = None
    prior: np.ndarray | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: held[name] for name in held if isinstance(held[name], np.ndarray)}

    def seen(self) -> Observations:
        given = {name: a == 1 if name == "tool" else a for name, a in self.arrays().items()}
        sizes = {"n_samples": self.n_samples, "n_answers": self.n_answers}
        votes = Votes.from_answers(given["answers"], **sizes)
        return Observations(votes=votes, **given)

    def rows(self, index, axis=-1):
        """Take other rows; `axis` counts from the problems backwards."""
        first = self.answers.ndim - 1 + axis
        kept = {n: np.take(a, index, axis=first) for n, a in self.arrays().items()}
        return replace(self, **kept)


def by_hand(answers: list[list[int]], n_samples: int, n_answers: int, **given: Any) -> Observations:
    """Observations from lists; `draws` are none unless they are given."""
    arrays = {name: np.array(values) for name, values in given.items()}
    arrays.setdefault("draws", np.zeros((len(answers), 0)))
    return Sight(np.array(answers), n_samples, n_answers, **arrays).seen()


def labels(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int64)


def top(scores: Any) -> np.ndarray:
    """(..., P) the first answer with most scores, -1 for none."""
    scores = np.asarray(scores)
    return np.where(scores.max(-1) > 0, scores.argmax(-1), -1)


def sight(rng, leading=(), n_problems=4, n_votes=8, n_samples=5, n_answers=4):
    """A random one with all that any rule asks for."""
    shape = (*leading, n_problems, n_votes)
    favourite = rng.integers(0, n_answers, (*leading, n_problems, 1))
    answers = np.where(rng.random(shape) < 0.5, favourite, rng.integers(-1, n_answers, shape))
    similarity = rng.uniform(-0.2, 1, (*leading, n_problems, n_samples, n_samples))
    return Sight(
        answers=answers,
        n_samples=n_samples,
        n_answers=n_answers,
        draws=rng.random((*leading, n_problems, n_votes * 2 * n_votes)),
        step_logprob=-rng.exponential(1, shape),
        entropy=rng.exponential(1, shape),
        certainty=rng.exponential(5, shape),
        similarity=(similarity + np.swapaxes(similarity, -1, -2)) / 2,
        second=rng.integers(-1, n_answers, shape),
        verdicts=rng.integers(-1, 2, (*leading, n_problems, 16)),
        tool=rng.integers(0, 2, shape),
    )


@st.composite
def sights(draw: st.DrawFn, leading: tuple[int, ...] = (), n_problems: int | None = None) -> Sight:
    """Random ones of all sizes, with one vote or one answer, and without any parsed response."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1), label="seed"))
    n_votes = draw(st.sampled_from([1, 2, 3, 8, 16]), label="V")
    made = sight(
        rng,
        leading,
        n_problems or draw(st.integers(1, 5), label="P"),
        n_votes,
        draw(st.integers(1, n_votes), label="K"),
        draw(st.integers(1, 5), label="A"),
    )
    if draw(st.booleans(), label="a silent problem"):
        made.answers[..., 0, :] = -1
    if draw(st.booleans(), label="remembered"):
        made = replace(made, prior=rng.exponential(2, (*made.answers.shape[:-1], made.n_answers)))
    return made
