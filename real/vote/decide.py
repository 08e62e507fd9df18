"""From the answers of a visit to labels, the guard's decisions and advantages, on every rank.

Columns of the trace that need the true answers are computed for it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guard_core import Decision, Draws, Guard, GuardConfig, PolicyStreams, Votes, policy_streams
from guard_core.decision import Treatment
from guard_core.rules import Observations, Rule, response_streams, scored, weighed
from guard_core.schedule import brake_factor, signal
from guard_core.votes import widen
from lab.arm_settings import Treatments
from lab.base.arms import OWN
from lab.base.columns import Bools, Floats, Ints
from lab.trace.schema import visit_columns
from real.answers import UNPARSEABLE, AnswerIds, Equality
from real.ranks.distributed import ALONE, Ranks
from real.settings.config import TrainConfig, rule_of
from real.settings.seeds import Stream, generator
from real.vote.sample import Responses

MOST_GIVEN_UP = 1000
"""Answers that `run.json` names; it could not be read with those of a long run that went wrong."""

Rows = dict[str, Any]
Fields = Mapping[str, NDArray[Any]]
"""Observations by their names in `guard_core.rules.Observations`."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The guard's decision on a batch, with the columns of the trace that follow from it."""

    obs: Observations
    decision: Decision
    """Its label is the one to train on."""
    tie_P: Floats
    """(P,) uniform draws that break tied votes."""
    rows: Rows
    """Columns of the trace's visits, (P,) each, without step and epoch."""
    step_columns: Rows
    """Columns of the trace's steps: problems of the batch, and how right labels and rewards are."""


class Supervisor:
    """The guard's state and the answer ids of all problems.

    The first rank alone reads answers and asks the guard; on the others `read` gives no answers and
    `decide` returns None.
    """

    def __init__(self, config: TrainConfig, truths: list[str | None], ranks: Ranks = ALONE) -> None:
        """Start before any vote, with (N,) reference answers, None where there is none."""
        self.config = config
        self._ranks, self.reads = ranks, ranks.first
        by_math = self.reads and config.settled().answer_check == "math"
        self.equality = Equality() if by_math else None
        self.answer_ids = AnswerIds(truths, self.equality)
        self.rule = rule_of(config)
        self.guard = Guard(config.guard)
        self.state = self.guard.init(len(truths))
        treatment = config.treatment if self.reads else OWN
        self._treat = Treatments(treatment, config.seed, [0], (config.epochs, len(truths)))

    def read(self, responses: Responses) -> Ints:
        """Return (P, V) answer ids, -1 for unparseable ones; all -1 on ranks that do not read."""
        if not self.reads:
            return np.full(tuple(responses.rollouts.lengths_PN.shape), UNPARSEABLE, np.int64)
        pairs = zip(responses.problems, responses.texts, strict=True)
        extract = self.config.extract
        return np.stack([self.answer_ids.ids(int(p), texts, extract) for p, texts in pairs])

    def prime(self, answers_NV: Ints, observed: Fields) -> Rows:
        """Take in the votes before training, visit 0; returns columns of the trace's visits."""
        if not self.reads:
            return {}
        problems = np.arange(len(answers_NV))
        obs, draws, scores = self._seen(problems, answers_NV, 0, observed)
        # A step from the empty state has the label of `prime`, and its tie and match rate.
        _, decision = self.guard.step(self.state, obs.votes, draws, scores)
        self.state = self.guard.prime(self.state, obs.votes, draws, scores)
        return {**self._rows(problems, obs.votes, decision, before_training=True), "visit": 0}

    def decide(
        self, problems_P: Ints, answers_PV: Ints, visit: int | Ints, observed: Fields
    ) -> Decided | None:
        """Record visits, counted from 1, and decide what to train on; None if no answers are read.

        `answers_PV` are answer ids, -1 unparseable, of which the first K are trained on.
        """
        if not self.reads:
            return None
        obs, draws, scores = self._seen(problems_P, answers_PV, visit, observed)
        state, decision = self.guard.step(self.state.take(problems_P), obs.votes, draws, scores)
        self.state = self.state.put(problems_P, state)
        deal_P = self._uniforms(Stream.DEAL, problems_P, visit, 1)[:, 0]
        treatment = self._treat(Treatment.of(decision), problems_P, visit, deal_P)
        decision = decision.treated(*treatment, self.config.guard.rates.tau_FR)
        # The trace's rows are those of the votes, also where the truth is trained on instead.
        rows = {**self._rows(problems_P, obs.votes, decision), "visit": visit}
        if self.config.labels == "truth":
            decision = decision.trained_on(self._truths(problems_P)[0])
        answers_PK = answers_PV[:, : self.config.n_samples]
        step_columns = self._step_columns(answers_PK, rows, decision)
        return Decided(obs, decision, draws.tie, rows, step_columns)

    def brake(self) -> float:
        """Return the factor on the learning rate from this batch on; all ranks must call this."""
        s, guard = self.state, self.config.guard
        if guard.brake.brake == 1:
            return 1.0
        value = signal(s.flips[:, -1], s.match_rates[:, -1], s.visits > 0, guard)
        factor = np.array([[float(brake_factor(value, guard))]])
        return float(self._ranks.from_first(factor)[0, 0])

    @property
    def answers_given_up(self) -> list[str]:
        """The first answers beyond the limits of the equality, those of evaluations included."""
        return [] if self.equality is None else self.equality.given_up[:MOST_GIVEN_UP]

    def tensors(self) -> dict[str, Tensor]:
        """Return the guard's memory for checkpoints; (N, ...) each."""
        arrays = {f.name: getattr(self.state, f.name) for f in fields(self.state)}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def restore(self, tensors: Mapping[str, Tensor], answers: dict[str, object]) -> None:
        """Go back to where `tensors` and the answer ids were saved."""
        if self.reads:
            self.state = type(self.state)(**{n: t.numpy().copy() for n, t in tensors.items()})
            self.answer_ids = AnswerIds.from_values(answers, self.equality)

    def _seen(
        self, problems_P: Ints, answers_PV: Ints, visit: int | Ints, observed: Fields
    ) -> tuple[Observations, Draws, Any]:
        """Return the rule's view of a batch, the guard's draws, and scores, for the next step."""
        n_answers, n_samples = max(1, self.answer_ids.n_answers), self.config.n_samples
        votes = Votes.from_answers(answers_PV, n_samples=n_samples, n_answers=n_answers)
        n_draws = self.rule.n_draws(answers_PV.shape[1], n_samples)
        draws_PD = self._uniforms(Stream.RULE, problems_P, visit, n_draws)
        prior_PA = self.guard.remembered(self.state.take(problems_P))
        if prior_PA is not None:
            prior_PA = widen(prior_PA, n_answers)
        obs = Observations(votes, draws_PD, answers_PV, prior=prior_PA, **observed)
        return obs, self.draws(problems_P, visit), scored(self.rule, obs)

    def draws(self, problems_P: Ints, visit: int | Ints) -> Draws:
        """Return the guard's uniform draws at a visit of problems, one number or (P,)."""
        draws_P3 = self._uniforms(Stream.GUARD, problems_P, visit, 3)
        return Draws(tie=draws_P3[:, 0], skip=draws_P3[:, 1], pick=draws_P3[:, 2])

    def _uniforms(self, stream: Stream, problems_P: Ints, visit: int | Ints, n: int) -> Floats:
        """(P, n); one generator per problem and visit, so the order of rows cannot matter."""
        visit_P = np.broadcast_to(visit, problems_P.shape)
        places = zip(problems_P.tolist(), visit_P.tolist(), strict=True)
        drawn = [generator(self.config.seed, stream, *place).random(n) for place in places]
        return np.array(drawn).reshape(len(problems_P), n)

    def _truths(self, problems_P: Ints) -> tuple[Ints, Bools]:
        """(P,) ids of the true answers, negative where none equals one, and which are known."""
        ids, problems = self.answer_ids, problems_P.tolist()
        known_P = np.array([ids.has_truth(problem) for problem in problems])
        return np.array([ids.truth_id(problem) for problem in problems], np.int64), known_P

    def n_labels(self) -> int:
        """Return the number of different labels over all problems, by their texts."""
        labels, text = enumerate(self.state.label.tolist()), self.answer_ids.text
        return len({text(problem, label) for problem, label in labels if label >= 0})

    def _rows(
        self, problems_P: Ints, votes: Votes, decision: Decision, *, before_training: bool = False
    ) -> Rows:
        truths = self._truths(problems_P)
        columns = visit_columns(decision, votes, *truths, before_training=before_training)
        return {"replicate": 0, "problem": problems_P, **columns}

    def _step_columns(self, answers_PK: Ints, rows: Rows, decision: Decision) -> Rows:
        """Return columns of the steps over the whole batch; NaN without truths or such rewards."""
        (truths_P, known_P), parsed_PK = self._truths(rows["problem"]), answers_PK >= 0
        rewarded_PK = parsed_PK & (answers_PK == decision.label[:, None])
        deserved_PK = parsed_PK & (answers_PK == truths_P[:, None])
        agree_PK = rewarded_PK == deserved_PK
        some, by_label = known_P.any(), self.rule.pays_label()
        return {
            "n_problems": len(answers_PK),
            "n_skipped": int(decision.skip.sum()),
            "n_unread": int(np.sum(rows["n_unparseable"] == rows["n_votes"])),
            "majority_ratio": float(np.mean(rows["match_rate"])),
            "n_labels": self.n_labels(),
            "reward": float(rewarded_PK.mean()) if by_label else np.nan,
            "label_correct": float(rows["label_correct"][known_P].mean()) if some else np.nan,
            "reward_correct": float(agree_PK[known_P].mean()) if some and by_label else np.nan,
        }


def pay(rule: Rule, decided: Decided, config: GuardConfig) -> PolicyStreams:
    """Return the streams of the K trained responses, as NumPy arrays."""
    obs, decision = decided.obs, decided.decision
    streams = policy_streams(*response_streams(rule, obs, decision, config), decision, config)
    return weighed(rule, obs, decision.label, streams)


def shared_streams(ranks: Ranks, streams: PolicyStreams | None) -> PolicyStreams:
    """Return the first rank's streams on every rank; all ranks must call this."""
    # (P, 2K + 2): both advantages, weight, drop
    values_PC = ranks.from_first(None if streams is None else np.column_stack(streams))
    n_samples = values_PC.shape[1] // 2 - 1
    majority, minority, others = np.split(values_PC, [n_samples, 2 * n_samples], axis=1)
    weight, drop = others.T
    return PolicyStreams(majority, minority, weight, drop > 0)
