"""From the votes of a visit to what the trainer needs: two advantage streams, weights, drops.

This is the trainer's only contact with the guard. It also writes down what was seen, as rows of
the trace; what needs the true answers is computed here for the trace alone.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
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
from guard_core.rules import Observations
from lab.trace.rows import visit_columns
from real.answers import AnswerIds, Equality
from real.record.vote_rows import BallotCount, Ballots
from real.settings.config import TrainConfig, rule_of
from real.settings.seeds import Stream, generator
from real.vote.paying import Observed, Paid, pay, scores_of, seen_of

Ints = NDArray[np.int64]
Rows = dict[str, Any]


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
    paid: Paid | None = None
    """All that the rule pays, `streams` included; None under plain TTRL."""


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
        self.answer_ids = AnswerIds(truths, self.equality)
        self.rule = rule_of(config)
        """None: plain TTRL, which this class pays itself."""
        self.guard = Guard(config.guard)
        self.state = self.guard.init(len(truths), like=np.zeros(0))
        self._ballots = BallotCount(self.answer_ids)

    def prime(self, answers_NV: Ints, observed: Observed | None = None) -> Rows:
        """Take in the votes of all problems before training, visit 0.

        Args:
            answers_NV: answer ids of all problems in order, -1 unparseable.
            observed: what else the rule's scores depend on.

        Returns:
            Columns of the trace's visits; the guard decides nothing yet.
        """
        problems = np.arange(len(answers_NV))
        votes, draws = self._votes(answers_NV), self._draws(problems, 0)
        seen = self._seen(problems, answers_NV, votes, 0, observed)
        scores = None if self.rule is None or seen is None else scores_of(self.rule, seen)
        # A step from the empty state has the label of `prime`, and its tie and match rate besides.
        _, decision = self.guard.step(self.state, votes, draws, scores)
        self.state = self.guard.prime(self.state, votes, draws, scores)
        rows = self._rows(problems, votes, decision, before_training=True)
        return {**rows, "visit": 0}

    def visit(
        self, problems_P: Ints, answers_PV: Ints, visit: int, observed: Observed | None = None
    ) -> Supervision:
        """Record one visit of a batch's problems and decide what to train on.

        Args:
            problems_P: (P,) problem indices.
            answers_PV: (P, V) answer ids, -1 unparseable; the first K are trained on.
            visit: number of this visit, from 1.
            observed: what else the rule depends on.
        """
        votes, draws = self._votes(answers_PV), self._draws(problems_P, visit)
        seen = self._seen(problems_P, answers_PV, votes, visit, observed)
        scores = None if self.rule is None or seen is None else scores_of(self.rule, seen)
        state, decision = self.guard.step(self.state.take(problems_P), votes, draws, scores)
        self.state = self.state.put(problems_P, state)
        # The trace always tells of the votes, also where the truth is trained on instead.
        rows = {**self._rows(problems_P, votes, decision), "visit": visit}
        if self.config.labels == "truth":
            decision = decision.trained_on(self._truth_ids(problems_P))
        answers_PK = answers_PV[:, : self.config.n_samples]
        quality = self._quality(problems_P, answers_PK, rows, decision.label)
        if self.rule is not None and seen is not None:
            paid = pay(self.rule, seen, decision, self.config.guard, observed, draws.tie)
            return Supervision(paid.streams, rows, int(decision.skip.sum()), quality, paid)
        advantages = group_advantages(answers_PK, decision, self.config.guard)
        streams = policy_streams(*advantages, decision, self.config.guard)
        return Supervision(streams, rows, int(decision.skip.sum()), quality)

    def ballots(self, problems_P: Ints, answers_PV: Ints, visit: int) -> Ballots | None:
        """The votes of a visit for the trace; None where the run does not keep them.

        Args:
            problems_P: (P,) problem indices.
            answers_PV: (P, V) answer ids, -1 unparseable.
            visit: number of this visit; 0 before training.
        """
        if not self.config.keep_votes:
            return None
        return self._ballots.count(problems_P, answers_PV, visit)

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
        self.answer_ids = AnswerIds.from_values(answers, self.equality)
        # The trace's rows up to there have the texts of all that the book knew.
        self._ballots = BallotCount(self.answer_ids)

    def _votes(self, answers_PV: Ints) -> Votes:
        n_answers, n_samples = max(1, self.answer_ids.n_answers), self.config.n_samples
        return Votes(
            counts=count_answers(answers_PV, n_answers),
            samples=count_answers(answers_PV[:, :n_samples], n_answers),
            n_votes=answers_PV.shape[1],
            n_samples=n_samples,
        )

    def _seen(
        self,
        problems_P: Ints,
        answers_PV: Ints,
        votes: Votes,
        visit: int,
        observed: Observed | None,
    ) -> Observations | None:
        """What the rule sees; None under plain TTRL. To be called before the guard's step."""
        if self.rule is None:
            return None
        n_draws = self.rule.n_draws(answers_PV.shape[1], self.config.n_samples)
        draws_PD = np.array(
            [
                generator(self.config.seed, Stream.RULE, int(problem), visit).random(n_draws)
                for problem in problems_P
            ]
        )
        prior_PA = self.guard.remembered(self.state.take(problems_P))
        return seen_of(votes, answers_PV, draws_PD, observed, prior_PA)

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
        return np.array(
            [self.answer_ids.truth_id(int(problem)) for problem in problems_P], np.int64
        )

    def _rows(
        self, problems_P: Ints, votes: Votes, decision: Decision, *, before_training: bool = False
    ) -> Rows:
        columns = visit_columns(
            decision,
            votes,
            self._truth_ids(problems_P),
            self._known(problems_P),
            before_training=before_training,
        )
        return {"replicate": 0, "problem": problems_P, **columns}

    def _known(self, problems_P: Ints) -> NDArray[np.bool_]:
        """(P,) whether a true answer is known."""
        return np.array([self.answer_ids.has_truth(int(problem)) for problem in problems_P])

    def _quality(
        self, problems_P: Ints, answers_PK: Ints, rows: Rows, trained_P: NDArray[np.integer]
    ) -> Rows:
        """Of the whole batch, skipped problems included; NaN where no true answer is known.

        So are rewards that are no question of right or wrong: those of rules that pay otherwise
        than 1 to the label.
        """
        by_label = self.rule is None or self.rule.pays == "label"
        known_P = self._known(problems_P)
        parsed_PK = answers_PK >= 0
        rewarded_PK = parsed_PK & (answers_PK == trained_P[:, None])
        deserved_PK = parsed_PK & (answers_PK == self._truth_ids(problems_P)[:, None])
        agree_PK = rewarded_PK == deserved_PK
        some = known_P.any()
        return {
            "majority_ratio": float(np.mean(rows["match_rate"])),
            "label_correct": float(rows["label_correct"][known_P].mean()) if some else np.nan,
            "reward_correct": float(agree_PK[known_P].mean()) if some and by_label else np.nan,
        }
