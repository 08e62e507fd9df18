"""The parts that the embedded tasks share: problem sets, and the problems kept from pretraining."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from lab.base.errors import UserError

PROBLEM_SEED = 0
"""Seed of a task's problem set unless the settings name another."""

_HELD_OUT = 8
"""One question in this many is kept from pretraining; problem sets are drawn from those only."""
_MOST = 0.9
"""Share of a part's questions that can be asked for: the last ones would take long to find."""

Question = TypeVar("Question")


@dataclass(frozen=True, slots=True)
class Problem:
    """One prompt with its ground truth, which no trainer on votes may see."""

    id: str
    prompt: str
    """The question and ``=``."""
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[Question]):
    """Questions whose answers a program knows. Their texts and responses have fixed lengths."""

    prefix: str
    """Beginning of the ids of problems."""
    checkpoint: Path
    """Folder of the model before training."""
    prompt_tokens: int
    """Tokens of a question and ``=``."""
    response_tokens: int
    """Tokens of a well-formed response, with the end token."""
    n_questions: int
    """All that there are."""
    draw: Callable[[np.random.Generator], Question]
    """Return one question, uniform over all; `str` gives its text."""
    answer: Callable[[Question], str]
    example: Callable[[Question, float, np.random.Generator], str]
    """Return a response to learn from, given a question and the chance of a slip in each step."""
    reworded: Callable[[str], str | None] = lambda _: None
    """Return other words of a prompt; None where there are none."""
    stands: Callable[[int, Question], bool] = lambda _place, _question: True
    """Return whether a question may stand at a place of a problem set."""

    def sample_distinct(self, n: int, rng: np.random.Generator, held_out: bool) -> list[Question]:
        """Return ``n`` distinct questions, all from the held-out part or all from the other.

        The first ``m`` of them are what ``sample_distinct(m, ...)`` gives for the same seed.

        Raises:
            UserError: there are not many more than ``n``.
        """
        part = self.n_questions * (1 if held_out else _HELD_OUT - 1) / _HELD_OUT
        if n > _MOST * part:
            raise UserError(
                f"{n} different questions: the task {self.prefix} has {_MOST * part:.0f} at most; "
                "ask for fewer"
            )
        distinct: dict[Question, None] = {}
        while len(distinct) < n:
            question = self.draw(rng)
            stands = not held_out or self.stands(len(distinct), question)
            if stands and is_held_out(question) == held_out:
                distinct.setdefault(question)
        return list(distinct)

    def problems(self, n: int = 64, seed: int = PROBLEM_SEED) -> list[Problem]:
        """Return the problem set: ``n`` distinct problems, uniform over those held out.

        Not chosen by difficulty. A shorter set of the same seed is the beginning of a longer one.
        """
        questions = self.sample_distinct(n, np.random.default_rng(seed), held_out=True)
        return [
            Problem(id=f"{self.prefix}-{seed}-{i:03d}", prompt=f"{q}=", answer=self.answer(q))
            for i, q in enumerate(questions)
        ]


def is_held_out(question: object) -> bool:
    """Return whether pretraining never uses a question: one in eight, by a checksum of its text."""
    return zlib.crc32(str(question).encode()) % _HELD_OUT == 0
