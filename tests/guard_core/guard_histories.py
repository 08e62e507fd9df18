"""Random vote histories and settings, and the walk of one history through a guard."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from guard_core import (
    Decision,
    Draws,
    Guard,
    GuardConfig,
    GuardState,
    Votes,
    answer_advantages,
    count_answers,
    group_advantages,
    policy_streams,
)
from guard_core.config import KINDS


def checked(examples: int) -> settings:
    """Hypothesis settings for a test that walks through whole histories."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=examples, deadline=None, suppress_health_check=slow)


@dataclass
class Batch:
    """One visit: (P,) or (..., P) problems, (..., P, V) answers and (..., P) draws."""

    problems: np.ndarray
    answers: np.ndarray
    n_answers: int
    tie: np.ndarray
    skip: np.ndarray
    pick: np.ndarray


@dataclass
class History:
    """Visit 0 if there is one, then the batches."""

    n_problems: int
    leading: tuple[int, ...]
    n_samples: int
    prime: Batch | None
    batches: list[Batch]


@st.composite
def vote_histories(draw: st.DrawFn, max_visits: int = 14, min_problems: int = 1) -> History:
    """Histories that lock in, flip, tie, fall silent and meet new answers."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1), label="seed"))
    leading = draw(st.sampled_from([(), (), (2,), (1, 2), (3, 1)]), label="leading")
    n_problems = draw(st.integers(min_problems, 9), label="N")
    n_votes = draw(st.sampled_from([1, 4, 8, 16, 32]), label="V")
    n_samples = draw(st.integers(1, n_votes), label="K")
    n_answers = draw(st.integers(1, 6), label="A")
    grows = draw(st.booleans(), label="grows")
    shared = draw(st.booleans(), label="shared problems")
    n_visits = draw(st.integers(1, max_visits), label="visits")
    world = _World(rng, leading, n_problems, n_votes)
    prime = None
    if draw(st.booleans(), label="primed"):
        prime = world.batch(np.arange(n_problems), n_answers)
    batches = []
    for visit in range(n_visits):
        size = n_problems if rng.random() < 0.5 else int(rng.integers(1, n_problems + 1))
        width = min(n_answers, 1 + visit // 2) if grows else n_answers
        batches.append(world.batch(world.problems(size, shared), width))
    return History(n_problems, leading, n_samples, prime, batches)


class _World:
    """Problems with a favourite answer each, more or less volatile."""

    def __init__(self, rng, leading, n_problems, n_votes):
        self.rng, self.shape, self.n_votes = rng, (*leading, n_problems), n_votes
        self.volatility = rng.choice([0.0, 0.1, 0.4, 0.9], size=self.shape)
        self.favourite = rng.integers(0, 6, size=self.shape)

    def problems(self, size: int, shared: bool) -> np.ndarray:
        if shared:
            return self.rng.permutation(self.shape[-1])[:size]
        return np.argsort(self.rng.random(self.shape), axis=-1)[..., :size]

    def batch(self, problems: np.ndarray, n_answers: int) -> Batch:
        own = np.broadcast_to(problems, (*self.shape[:-1], problems.shape[-1]))
        answers = np.take_along_axis(self.votes(n_answers), own[..., None], axis=-2)
        # Multiples of 1/256: every float type holds them and their products with small numbers.
        tie, skip, pick = self.rng.integers(0, 256, size=(3, *own.shape)) / 256
        return Batch(problems, answers, n_answers, tie, skip, pick)

    def votes(self, n_answers: int) -> np.ndarray:
        """Of every problem none, at random, tied, or mostly for its favourite."""
        rng, shape = self.rng, (*self.shape, self.n_votes)
        moved = rng.random(self.shape) < self.volatility
        self.favourite = np.where(moved, rng.integers(0, 6, self.shape), self.favourite)
        favourite = np.broadcast_to(self.favourite[..., None] % n_answers, shape)
        anything, mood = rng.integers(-1, n_answers, shape), rng.random((*self.shape, 1))
        half = np.arange(self.n_votes) < self.n_votes // 2
        tied = rng.permuted((favourite + half) % n_answers, axis=-1)
        noisy = np.where(rng.random(shape) < 0.3, anything, favourite)
        return np.select([mood < 0.05, mood < 0.2, mood < 0.35], [-1, anything, tied], noisy)


SHARES = st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1])
NUMBERS: dict[str, list[Any]] = {
    "discount": [1.0, 1, 0.75, 0.7, 0.5],
    "hysteresis": [0.0, 0.0, 0.25, 0.6],
    "negative_scale": [1.0, 1.0, 0.3, 0.0],
    "margin_power": [0, 0, 1, 2, 3, 8],
    "min_share": [0.0, 0.0, 0.3, 0.6],
    "W": [1, 2, 3, 4, 5, 6, 20],
    "T_steady": [1, 2, 3, 4, 20],
    "minority_reward": [0.1, 0.01, 1.0],
    "tau_FR": [0.0, 0.1, 0.2, 0.3, 0.3, 0.4, 0.5, 1.0],
    "beta_max": [0.3, 0.3, 0.7, 1.0, 0.0],
    "label_from": ["current", "current", "frozen", "memory"],
    **{part: [True, True, True, False] for part in ("frs", "mps", "rcsu")},
}


def configs() -> st.SearchStrategy[GuardConfig]:
    """Settings over all options, with round and extreme numbers."""
    choices = {}
    for name, kind in KINDS.items():
        words = NUMBERS.get(name) or (get_args(kind) if get_origin(kind) is Literal else None)
        choices[name] = st.sampled_from(words) if words else SHARES
    return st.fixed_dictionaries(choices).map(GuardConfig.from_dict)


def walk(history, config, asarray=np.array):
    """The decisions and streams of a history's batches, and the guard's last state."""
    guard = Guard(config)
    state = guard.init(history.n_problems, leading=history.leading)
    if history.prime is not None:
        votes, _ = observe(history.prime, history.n_samples, asarray)
        state = guard.prime(state, votes, draws(history.prime, asarray))
    walked = []
    for batch in history.batches:
        problems = asarray(batch.problems)
        votes, kept = observe(batch, history.n_samples, asarray)
        rows, decision = guard.step(state.take(problems), votes, draws(batch, asarray))
        state = state.put(problems, rows)
        walked.append((arrays(decision), streams(kept, votes, decision, config)))
    return walked, state


def observe(batch, n_samples, asarray=np.array):
    """The batch's votes, and the answers of the trained samples."""
    answers, kept = asarray(batch.answers), asarray(batch.answers[..., :n_samples])
    counts, samples = (count_answers(ids, batch.n_answers) for ids in (answers, kept))
    return Votes(counts, samples, batch.answers.shape[-1], n_samples), kept


def draws(batch: Batch, asarray: Callable[[Any], Any] = np.array) -> Draws:
    return Draws(*(asarray(values) for values in (batch.tie, batch.skip, batch.pick)))


def streams(answers, votes, decision, config):
    """Both advantage streams, by response and by answer, and what a trainer gets."""
    majority, minority = group_advantages(answers, decision, config)
    by_answer = answer_advantages(votes.samples, votes.n_samples, decision, config)
    named = policy_streams(majority, minority, decision, config)._asdict()
    named = {f"policy_{name}": value for name, value in named.items()}
    named |= {"A1": majority, "A2": minority, "A1_answer": by_answer[0], "A2_answer": by_answer[1]}
    return named


def same_walks(one, two):
    """All decisions, streams and the last state have the same bits."""
    for (decision, made), (other, others) in zip(one[0], two[0], strict=True):
        same(decision, other)
        same(made, others)
    same(arrays(one[1]), arrays(two[1]))


def same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert isinstance(two[name], np.ndarray), name
        assert (value.dtype, value.shape) == (two[name].dtype, two[name].shape), name
        assert value.tobytes() == two[name].tobytes(), f"{name}: also signs of zero count"


def arrays(record: Decision | GuardState) -> dict[str, np.ndarray]:
    """A record's fields as copies in NumPy."""
    return {f.name: np.asarray(getattr(record, f.name)).copy() for f in fields(record)}
