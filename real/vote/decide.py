"""From the votes of a visit to the label that is trained on: the trainer's contact with the guard.

The rows of the trace are made here too. The columns that need the true answers are computed for
the trace alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guard_core import Decision, Draws, Guard, GuardState, Votes, count_answers
from guard_core.arrays import widen
from guard_core.brake import brake_factor, signal
from guard_core.rules import Observations
from lab.trace.rows import visit_columns
from real.answers import UNPARSEABLE, AnswerIds, Equality
from real.ranks.distributed import ALONE, Ranks
from real.settings.config import TrainConfig, rule_of
from real.settings.seeds import Stream
from real.settings.uniforms import uniforms
from real.vote.read import Responses

Ints = NDArray[np.int64]
Rows = dict[str, Any]
Fields = Mapping[str, NDArray[Any]]
"""Observations by their names in `guard_core.rules.Observations`."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The guard's decision on a batch, with the columns of the trace that follow from it."""

    obs: Observations
    """Votes and observations."""
    decision: Decision
    """Its label is the one to train on."""
    tie_P: NDArray[np.float64]
    """(P,) uniform draws that break tied votes."""
    rows: Rows
    """Columns of the trace's visits, (P,) each, without step and epoch."""
    step_columns: Rows
    """Columns of the trace's steps: problems of the batch, and how right labels and rewards are."""


class Supervisor:
    """The guard's state and the answer ids of all problems.

    Comparisons of answers have a time limit, so two ranks that read the same answers could find
    different ones equal. Hence the first rank alone reads answers and asks the guard; on the other
    ranks `read` gives no answers and `decide` returns None.
    """

    def __init__(self, config: TrainConfig, truths: list[str | None], ranks: Ranks = ALONE) -> None:
        """Start before any vote.

        Args:
            config: of the run.
            truths: (N,) reference answers; None where there is none.
            ranks: the processes of the run.
        """
        self.config = config
        self.reads = ranks.first
        """This rank reads answers."""
        by_math = self.reads and config.settled().answer_check == "math"
        self.equality = Equality(config.answer_timeout) if by_math else None
        self.answer_ids = AnswerIds(truths, self.equality)
        self.rule = rule_of(config)
        self.guard = Guard(config.guard)
        self.state = self.guard.init(len(truths), like=np.zeros(0))

    def read(self, responses: Responses) -> Ints:
        """Return (P, V) answer ids, -1 for unparseable ones; all -1 on ranks that do not read."""
        if not self.reads:
            return np.full(tuple(responses.rollouts.lengths_PN.shape), UNPARSEABLE, np.int64)
        pairs = zip(responses.problems, responses.texts, strict=True)
        return np.stack([self.answer_ids.ids(int(problem), texts) for problem, texts in pairs])

    def prime(self, answers_NV: Ints, observed: Fields) -> Rows:
        """Take in the votes of all problems before training, visit 0.

        Args:
            answers_NV: answer ids of all problems in order, -1 unparseable.
            observed: observations that the rule's scores depend on.

        Returns:
            Columns of the trace's visits; the guard decides nothing yet.
        """
        if not self.reads:
            return {}
        problems = np.arange(len(answers_NV))
        votes, draws = self._votes(answers_NV), self._draws(problems, 0)
        scores = self._scores(self._observations(problems, answers_NV, votes, 0, observed))
        # A step from the empty state has the label of `prime`, and its tie and match rate.
        _, decision = self.guard.step(self.state, votes, draws, scores)
        self.state = self.guard.prime(self.state, votes, draws, scores)
        return {**self._rows(problems, votes, decision, before_training=True), "visit": 0}

    def decide(
        self, problems_P: Ints, answers_PV: Ints, visit: int | Ints, observed: Fields
    ) -> Decided | None:
        """Record one visit of a batch's problems and decide what to train on.

        Args:
            problems_P: (P,) problem indices.
            answers_PV: (P, V) answer ids, -1 unparseable; the first K are trained on.
            visit: number of this visit, from 1; (P,) where it differs between the problems.
            observed: observations that the rule reads.

        Returns:
            None on ranks that read no answers.
        """
        if not self.reads:
            return None
        votes, draws = self._votes(answers_PV), self._draws(problems_P, visit)
        obs = self._observations(problems_P, answers_PV, votes, visit, observed)
        state, decision = self.guard.step(
            self.state.take(problems_P), votes, draws, self._scores(obs)
        )
        self.state = self.state.put(problems_P, state)
        # The trace's rows are those of the votes, also where the truth is trained on instead.
        rows = {**self._rows(problems_P, votes, decision), "visit": visit}
        if self.config.labels == "truth":
            decision = decision.trained_on(self._truth_ids(problems_P))
        answers_PK = answers_PV[:, : self.config.n_samples]
        step_columns = self._step_columns(problems_P, answers_PK, rows, decision)
        return Decided(obs, decision, draws.tie, rows, step_columns)

    def brake(self) -> float:
        """Return the guard's factor on the learning rate from the last decision on."""
        s, guard = self.state, self.config.guard
        value = signal(s.flips[:, -1], s.match_rates[:, -1], s.visits > 0, guard)
        return float(brake_factor(value, guard))

    @property
    def answer_timeouts(self) -> int:
        """Comparisons of answers that were given up at a limit, evaluations included."""
        return 0 if self.equality is None else self.equality.n_given_up

    def close(self) -> None:
        """End the process that compares answers."""
        if self.equality is not None:
            self.equality.close()

    def tensors(self) -> dict[str, Tensor]:
        """Return the guard's memory for checkpoints; (N, ...) each."""
        arrays = {f.name: getattr(self.state, f.name) for f in fields(self.state)}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def restore(self, tensors: Mapping[str, Tensor], answers: dict[str, object]) -> None:
        """Go back to where `tensors` and the answer ids were saved.

        Raises:
            UserError: the values are no answer ids.
        """
        if self.reads:
            self.state = GuardState(**{n: t.numpy().copy() for n, t in tensors.items()})
            self.answer_ids = AnswerIds.from_values(answers, self.equality)

    def _votes(self, answers_PV: Ints) -> Votes:
        n_answers, n_samples = max(1, self.answer_ids.n_answers), self.config.n_samples
        samples = count_answers(answers_PV[:, :n_samples], n_answers)
        return Votes(
            counts=samples + count_answers(answers_PV[:, n_samples:], n_answers),
            samples=samples,
            n_votes=answers_PV.shape[1],
            n_samples=n_samples,
        )

    def _observations(
        self,
        problems_P: Ints,
        answers_PV: Ints,
        votes: Votes,
        visit: int | Ints,
        observed: Fields,
    ) -> Observations:
        """Return the rule's view of a batch. To be called before the guard's step."""
        n_draws = self.rule.n_draws(answers_PV.shape[1], self.config.n_samples)
        draws_PD = self._uniforms(Stream.RULE, problems_P, visit, n_draws)
        prior_PA = self.guard.remembered(self.state.take(problems_P))
        if prior_PA is not None:
            prior_PA = widen(prior_PA, votes.counts.shape[-1])
        return Observations(votes, draws_PD, answers_PV, prior=prior_PA, **observed)

    def _scores(self, obs: Observations) -> NDArray[Any] | None:
        """Return what the guard picks labels by; None for the votes themselves."""
        return None if self.rule.labels_by_votes() else self.rule.scores(obs)

    def _draws(self, problems_P: Ints, visit: int | Ints) -> Draws:
        draws_P3 = self._uniforms(Stream.GUARD, problems_P, visit, 3)
        return Draws(tie=draws_P3[:, 0], skip=draws_P3[:, 1], pick=draws_P3[:, 2])

    def _uniforms(
        self, stream: Stream, problems_P: Ints, visit: int | Ints, n: int
    ) -> NDArray[np.float64]:
        """(P, n); one generator per problem and visit, so the order of rows cannot matter."""
        visit_P = np.broadcast_to(visit, problems_P.shape)
        return uniforms(self.config.seed, stream, problems_P, visit_P, n)

    def _truth_ids(self, problems_P: Ints) -> Ints:
        """(P,) ids of the true answers; negative where unknown or not seen yet, equal to none."""
        return np.array(
            [self.answer_ids.truth_id(int(problem)) for problem in problems_P], np.int64
        )

    def _known(self, problems_P: Ints) -> NDArray[np.bool_]:
        """(P,) whether a true answer is known."""
        return np.array([self.answer_ids.has_truth(int(problem)) for problem in problems_P])

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

    def _step_columns(
        self, problems_P: Ints, answers_PK: Ints, rows: Rows, decision: Decision
    ) -> Rows:
        """Return columns of the steps over the whole batch, skipped problems included.

        NaN where no true answer is known, and for rewards that are no question of right or wrong:
        those of rules that pay otherwise than 1 to the label.
        """
        known_P = self._known(problems_P)
        parsed_PK = answers_PK >= 0
        rewarded_PK = parsed_PK & (answers_PK == decision.label[:, None])
        deserved_PK = parsed_PK & (answers_PK == self._truth_ids(problems_P)[:, None])
        agree_PK = rewarded_PK == deserved_PK
        some = known_P.any()
        by_label = some and self.rule.pays == "label"
        return {
            "n_problems": len(problems_P),
            "n_skipped": int(decision.skip.sum()),
            "majority_ratio": float(np.mean(rows["match_rate"])),
            "label_correct": float(rows["label_correct"][known_P].mean()) if some else np.nan,
            "reward_correct": float(agree_PK[known_P].mean()) if by_label else np.nan,
        }
