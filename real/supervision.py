"""From the votes of a visit to what the trainer needs: two advantage streams, weights, drops.

This is the trainer's only contact with the guard. It also writes down what was seen, as rows of
the trace; what needs the true answers is computed here for the trace alone.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guard_core import (
    Decision,
    Draws,
    Guard,
    GuardState,
    PolicyStreams,
    Votes,
    count_answers,
    group_advantages,
    policy_streams,
)
from real.answers import AnswerBook, Equality
from real.config import TrainConfig
from real.seeds import Stream, generator

Ints = NDArray[np.int64]
Rows = dict[str, Any]

COMPETITIVE_SHARE = 0.25
"""The true answer is competitive while it holds this share of the votes (SPEC section 11)."""


@dataclass(frozen=True, slots=True)
class Supervision:
    """What one batch is trained on."""

    streams: PolicyStreams
    """`majority` and `minority` (P, K), `weight` and `drop` (P,), as NumPy arrays."""
    rows: Rows
    """Columns of the trace's visits, (P,) each, without step and epoch."""
    n_skipped: int
    """Problems of the batch that sit out."""
    quality: Rows
    """Columns of the trace's steps: how right the batch's labels and rewards are."""


class Supervisor:
    """Keeps the guard's state and the answer ids of all problems."""

    def __init__(self, config: TrainConfig, truths: list[str | None]) -> None:
        """Start before any vote.

        Args:
            config: of the run.
            truths: (N,) reference answers; None where there is none.
        """
        self.config = config
        by_math = config.settled().answer_check == "math"
        self.equality = Equality(config.answer_timeout) if by_math else None
        self.book = AnswerBook(truths, self.equality)
        self.guard = Guard(config.guard)
        self.state = self.guard.init(len(truths), like=np.zeros(0))

    def prime(self, answers_NV: Ints) -> Rows:
        """Take in the votes of all problems before training, visit 0.

        Args:
            answers_NV: answer ids of all problems in order, -1 unparseable.

        Returns:
            Columns of the trace's visits; the guard decides nothing yet.
        """
        problems = np.arange(len(answers_NV))
        votes, draws = self._votes(answers_NV), self._draws(problems, 0)
        # A step from the empty state has the label of `prime`, and its tie and match rate besides.
        _, decision = self.guard.step(self.state, votes, draws)
        self.state = self.guard.prime(self.state, votes, draws)
        neutral = {
            "flipped": False,
            "flip_rate": 0.0,
            "mean_match_rate": np.nan,
            "had_competition": False,
            "route": 0,
            "weight": 1.0,
            "beta": 0.0,
            "n_minority": 0,
            "skipped": False,
        }
        rows = self._rows(problems, answers_NV, decision)
        return {**rows, **neutral, "visit": 0}

    def visit(self, problems_P: Ints, answers_PV: Ints, visit: int) -> Supervision:
        """Record one visit of a batch's problems and decide what to train on.

        Args:
            problems_P: (P,) problem indices.
            answers_PV: (P, V) answer ids, -1 unparseable; the first K are trained on.
            visit: number of this visit, from 1.
        """
        votes, draws = self._votes(answers_PV), self._draws(problems_P, visit)
        state, decision = self.guard.step(self.state.take(problems_P), votes, draws)
        self.state = self.state.put(problems_P, state)
        # The trace always tells of the votes, also where the truth is trained on instead.
        rows = {**self._rows(problems_P, answers_PV, decision), "visit": visit}
        if self.config.labels == "truth":
            decision = replace(decision, label=self._truth_ids(problems_P))
        answers_PK = answers_PV[:, : self.config.n_samples]
        quality = self._quality(problems_P, answers_PK, rows, decision.label)
        advantages = group_advantages(answers_PK, decision, self.config.guard)
        streams = policy_streams(*advantages, decision, self.config.guard)
        return Supervision(streams, rows, int(decision.skip.sum()), quality)

    @property
    def answer_timeouts(self) -> int:
        """Comparisons of answers that were given up at a limit, evaluations included."""
        return 0 if self.equality is None else self.equality.n_given_up

    def close(self) -> None:
        """End the process that compares answers."""
        if self.equality is not None:
            self.equality.close()

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """What the guard remembers, for checkpoints; (N, ...) each."""
        return {f.name: getattr(self.state, f.name) for f in fields(self.state)}

    def restore(self, arrays: dict[str, Any], answers: dict[str, object]) -> None:
        """Go back to where `arrays` and the book's values were saved.

        Raises:
            UserError: the values are not a book's.
        """
        self.state = GuardState(**arrays)
        self.book = AnswerBook.from_values(answers, self.equality)

    def _votes(self, answers_PV: Ints) -> Votes:
        n_answers, n_samples = max(1, self.book.n_answers), self.config.n_samples
        return Votes(
            counts=count_answers(answers_PV, n_answers),
            samples=count_answers(answers_PV[:, :n_samples], n_answers),
            n_votes=answers_PV.shape[1],
            n_samples=n_samples,
        )

    def _draws(self, problems_P: Ints, visit: int) -> Draws:
        """One generator per problem and visit, so the order of rows cannot matter."""
        draws_P3 = np.array(
            [
                generator(self.config.seed, Stream.GUARD, int(problem), visit).random(3)
                for problem in problems_P
            ]
        )
        return Draws(tie=draws_P3[:, 0], skip=draws_P3[:, 1], pick=draws_P3[:, 2])

    def _truth_ids(self, problems_P: Ints) -> Ints:
        """(P,) ids of the true answers; negative where unknown or not seen yet, equal to none."""
        return np.array([self.book.truth_id(int(problem)) for problem in problems_P], np.int64)

    def _rows(self, problems_P: Ints, answers_PV: Ints, decision: Decision) -> Rows:
        return {
            "replicate": 0,
            "problem": problems_P,
            "n_votes": answers_PV.shape[1],
            "n_unparseable": (answers_PV < 0).sum(axis=1),
            "label": decision.label,
            "flipped": decision.flipped,
            "tie": decision.tied,
            "match_rate": decision.match_rate,
            "flip_rate": decision.flip_rate,
            "mean_match_rate": decision.mean_match_rate,
            "had_competition": decision.had_competition,
            "route": decision.route,
            "weight": decision.weight,
            "beta": decision.beta,
            "n_minority": decision.minority.sum(axis=1),
            "skipped": decision.skip,
            **self._truth_columns(problems_P, answers_PV, decision.label),
        }

    def _quality(
        self, problems_P: Ints, answers_PK: Ints, rows: Rows, trained_P: NDArray[np.integer]
    ) -> Rows:
        """Of the whole batch, skipped problems included; NaN where no true answer is known."""
        known_P = np.array([self.book.has_truth(int(problem)) for problem in problems_P])
        parsed_PK = answers_PK >= 0
        rewarded_PK = parsed_PK & (answers_PK == trained_P[:, None])
        deserved_PK = parsed_PK & (answers_PK == self._truth_ids(problems_P)[:, None])
        agree_PK = rewarded_PK == deserved_PK
        some = known_P.any()
        return {
            "majority_ratio": float(np.mean(rows["match_rate"])),
            "label_correct": float(rows["label_correct"][known_P].mean()) if some else np.nan,
            "reward_correct": float(agree_PK[known_P].mean()) if some else np.nan,
        }

    def _truth_columns(self, problems_P: Ints, answers_PV: Ints, labels_P: Ints) -> Rows:
        """NaN and False where no true answer is known."""
        truth_P = self._truth_ids(problems_P)
        known_P = np.array([self.book.has_truth(int(problem)) for problem in problems_P])
        # A true answer that nobody gave yet has id -2, which no response and no label has.
        share_P = (answers_PV == truth_P[:, None]).mean(axis=1)
        right_P = known_P & (labels_P == truth_P)
        return {
            "label_accuracy": np.where(known_P, share_P, np.nan),
            "label_correct": right_P,
            "correct_competitive": known_P & (share_P >= COMPETITIVE_SHARE),
        }
