r"""The trained model as the judge of its own responses, which solves again what it finds wrong.

A question shows problem and response and asks for a reasoned verdict in a box. Every question is a
sample of its own, also where the same response is asked about several times. A verdict that a
response is wrong is followed, in the same conversation, by a request to solve the problem again.
Verifications and new solutions are trained on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from guard_core import PolicyStreams
from guard_core.advantages import standardise
from guard_core.rules import Observations
from real.answers.canonical import last_box
from real.problems.problem import Problem, Turn
from real.problems.prompts import longest_prompt, prompt_tokens
from real.settings.seeds import Stream
from real.tiny import judging
from real.update.packing import Group
from real.vote.decide import Decided
from real.vote.sample import Responses
from real.vote.second import ExtraRollouts, Ints, Parts

_QUESTION = r"""A problem and an attempt at it follow. Judge whether the attempt's answer is right.

<problem>
{problem}
</problem>

<attempt>
{attempt}
</attempt>

Go through the attempt step by step and check every step, or solve the problem yourself and compare.
Then end with your verdict: \boxed{{correct}} if the answer is right, \boxed{{wrong}} if it is not.
"""
_REQUEST = r"""You found the attempt wrong. Solve the problem once more, thinking step by step,
and end with your new answer in \boxed{}.
"""
_VERDICTS = {"correct": 1, "wrong": 0, "incorrect": 0}
_STYLE = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")


class Wording:
    """The wording for language models that follow instructions."""

    max_tokens: int | None = None
    """Longest verification; that of responses if None."""

    def question(self, problem: Problem, response: str) -> Problem:
        """Return the question about a response, to be encoded as problems are.

        Args:
            problem: its earlier messages stay in front of the question.
        """
        asked = _QUESTION.strip().format(problem=problem.prompt.strip(), attempt=response.strip())
        return Problem(f"{problem.id}/verify", asked, None, problem.before)

    def verdict(self, text: str) -> int:
        r"""Return 1 for `\boxed{correct}`, 0 for `\boxed{wrong}`, -1 for anything else.

        The last box counts. Case, spaces, a full stop and `\text{}` do not matter; `incorrect` is
        read as `wrong`.
        """
        box = last_box(text)
        if box is None:
            return -1
        return _VERDICTS.get(_STYLE.sub(r"\1", box).strip(" \n\t.").lower(), -1)

    def request(self, problem: Problem, response: str, verification: str) -> Problem:
        """Return the request for a new response, after question and verification."""
        asked = self.question(problem, response)
        before = (*asked.before, Turn("user", asked.prompt), Turn("assistant", verification))
        return Problem(f"{problem.id}/again", _REQUEST.strip(), None, before)


class TinyWording(Wording):
    """The wording in the tiny task's own tokens; see `real.tiny.judging`."""

    max_tokens = judging.VERIFICATION_TOKENS

    def question(self, problem: Problem, response: str) -> Problem:
        """Implement `Wording`."""
        asked = judging.question(problem.prompt, response)
        return Problem(f"{problem.id}/verify", asked, None)

    def verdict(self, text: str) -> int:
        """Implement `Wording`: plus is right, minus wrong."""
        return judging.read_verdict(text)

    def request(self, problem: Problem, response: str, verification: str) -> Problem:
        """Implement `Wording`."""
        asked = judging.request(problem.prompt, response, verification)
        return Problem(f"{problem.id}/again", asked, None)


Floats = NDArray[np.float64]
_AGAIN = 1
"""Last position of the random numbers of new solutions, in the verifier's stream."""


@runtime_checkable
class Judged(Protocol):
    """A rule with verdicts, such as `guard_core.rules.evidence.CoVerRL`, which documents these."""

    @property
    def verifications(self) -> int: ...  # noqa: D102
    @property
    def regenerations(self) -> int: ...  # noqa: D102
    def questions(self, obs: Observations, label: Any) -> Any: ...  # noqa: D102
    def trusts(self, verdicts: Any) -> Any: ...  # noqa: D102
    def verifier_rewards(self, obs: Observations) -> Any: ...  # noqa: D102
    def regeneration_rewards(self, answers: Any, label: Any) -> Any: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Asked:
    """M questions about the responses to P problems, with their answers."""

    verdicts_PQ: Ints
    """1 judged right, 0 judged wrong, -1 not asked or not readable."""
    questions_PQ: Ints
    """Index of each question among the M; -1 not asked."""
    responses: Responses | None
    """(M, 1) verifications; None where nothing was asked."""


@dataclass(frozen=True, slots=True)
class Again:
    """N new solutions after each of M verdicts that a response is wrong."""

    rows_M: list[int]
    """Index of the batch's problem that each verdict belongs to."""
    responses: Responses
    """(M, N) new solutions."""
    advantages_MN: Floats


class Judge(ExtraRollouts):
    """Asks about responses of a batch, and keeps the answers to be trained on."""

    def __init__(self, rule: Judged, parts: Parts) -> None:
        """Ask nothing yet.

        Args:
            rule: chooses the questions and rewards the answers.
        """
        self._rule, self._parts = rule, parts
        self.wording = TinyWording() if parts.config.tiny_verifies else Wording()
        self._step = 0
        self.asked: Asked | None = None
        """Of the current batch."""
        self._again: Again | None = None

    def before(self, problems_P: Ints, step: int) -> dict[str, NDArray[Any]]:
        """Implement `ExtraRollouts`: forget the batch before."""
        self._step, self.n_sampled, self.asked, self._again = step, 0, None, None
        return {}

    def ask(self, decided: Decided | None, responses: Responses) -> Decided | None:
        """Implement `ExtraRollouts`: let the model judge, and solve again what it finds wrong.

        The first question about a problem is about a response that gives the label.
        """
        chosen = decided and self._rule.questions(decided.obs, decided.decision.label)
        chosen_PQ = self._parts.ranks.from_first(chosen).astype(np.int64)
        self.asked = self._verify(chosen_PQ, responses)
        if self._rule.regenerations:
            self._again = self._solve_again(self.asked, chosen_PQ, responses, decided)
        if decided is None:
            return None
        return replace(decided, obs=replace(decided.obs, verdicts=self.asked.verdicts_PQ))

    def groups(self, decided: Decided | None, streams: PolicyStreams) -> list[list[Group]]:
        """Return a group of one per verification, then one of N per wrong verdict.

        A doubted majority is no measure for the verifier either: its problem leaves as a whole.
        """
        groups: list[list[Group]] = [[] for _ in streams.drop]
        asked, again = self.asked, self._again
        assert asked is not None
        advantages_PQ = self._parts.ranks.from_first(
            decided and self._advantages(decided.obs, asked.questions_PQ >= 0)
        )
        if asked.responses is not None:
            rows_M, columns_M = np.nonzero(asked.questions_PQ >= 0)
            advantages_M1 = advantages_PQ[rows_M, columns_M][:, None]
            _add(groups, rows_M.tolist(), asked.responses, advantages_M1, streams)
        if again is not None:
            _add(groups, again.rows_M, again.responses, again.advantages_MN, streams)
        return groups

    def _advantages(self, obs: Observations, asked_PQ: NDArray[np.bool_]) -> Floats:
        """(P, Q) rewards of verdicts, standardised within each answer's verifications."""
        rewards_PQ = self._rule.verifier_rewards(obs)
        advantages_PQ = np.full(rewards_PQ.shape, np.nan)
        for half in (slice(self._rule.verifications), slice(self._rule.verifications, None)):
            for row in np.flatnonzero(asked_PQ[:, half].any(axis=1)):
                asked_H = asked_PQ[row, half]
                advantages_PQ[row, half][asked_H] = standardise(rewards_PQ[row, half][asked_H])
        return advantages_PQ

    def _verify(self, chosen_PQ: Ints, responses: Responses) -> Asked:
        """Ask the questions that are not longer than a prompt may be.

        Args:
            chosen_PQ: (P, Q) index among the V of the response to ask about; -1 asks nothing.
            responses: (P, V) votes.
        """
        prompts: list[list[int]] = []
        rows: list[int] = []
        questions_PQ = np.full_like(chosen_PQ, -1)
        encoded: dict[tuple[int, int], list[int]] = {}
        for row, column in np.argwhere(chosen_PQ >= 0).tolist():
            key = (row, int(chosen_PQ[row, column]))
            if key not in encoded:
                problem = self._problem(responses, row)
                text = responses.texts[row][key[1]]
                encoded[key] = self._encode(self.wording.question(problem, text))
            if len(encoded[key]) <= self._limit:
                questions_PQ[row, column] = len(prompts)
                prompts.append(encoded[key])
                rows.append(row)
        if not prompts:
            return Asked(questions_PQ.copy(), questions_PQ, None)
        verifications = self._sample(responses, rows, prompts, 1, self.wording.max_tokens)
        verdicts_M = np.array([self.wording.verdict(text) for (text,) in verifications.texts])
        verdicts_PQ = np.where(questions_PQ >= 0, verdicts_M[questions_PQ], -1)
        return Asked(verdicts_PQ, questions_PQ, verifications)

    def _solve_again(
        self, asked: Asked, chosen_PQ: Ints, responses: Responses, decided: Decided | None
    ) -> Again | None:
        """Sample new solutions after the verdicts "wrong" on problems that stay; None for none."""
        if asked.responses is None:
            return None
        rows: list[int] = []
        prompts: list[list[int]] = []
        stays_P = self._rule.trusts(asked.verdicts_PQ)
        for row, column in np.argwhere((asked.verdicts_PQ == 0) & stays_P[:, None]).tolist():
            (verification,) = asked.responses.texts[asked.questions_PQ[row, column]]
            response = responses.texts[row][int(chosen_PQ[row, column])]
            problem = self._problem(responses, row)
            prompt = self._encode(self.wording.request(problem, response, verification))
            if len(prompt) <= self._limit:
                rows.append(row)
                prompts.append(prompt)
        if not prompts:
            return None
        solutions = self._sample(responses, rows, prompts, self._rule.regenerations, None, _AGAIN)
        advantages_MN = None
        if decided is not None:
            answers_MN = self._parts.read(solutions)
            label_M = decided.decision.label[rows]
            advantages_MN = standardise(self._rule.regeneration_rewards(answers_MN, label_M))
        return Again(rows, solutions, self._parts.ranks.from_first(advantages_MN))

    def _sample(
        self,
        responses: Responses,
        rows: Sequence[int],
        prompts: list[list[int]],
        n: int,
        max_tokens: int | None,
        *position: int,
    ) -> Responses:
        """Sample `n` continuations of each conversation about some of the batch's problems."""
        sampler, sampling = self._parts.sampler, self._parts.sampling
        sampling = replace(sampling, max_tokens=max_tokens or sampling.max_tokens)
        problems = [responses.problems[row] for row in rows]
        generator = sampler.generator(Stream.VERIFIER, self._step, *position)
        sampled = sampler.sample(problems, prompts, n, sampling, self._step - 1, generator)
        self.n_sampled += sampled.n_tokens
        return sampled

    def _problem(self, responses: Responses, row: int) -> Problem:
        return self._parts.prompts.problems[responses.problems[row]]

    @property
    def _limit(self) -> int:
        """Most tokens of a conversation, which neither the engine nor the model may exceed."""
        return longest_prompt(self._parts.config, self._parts.sampler.policy)

    def _encode(self, question: Problem) -> list[int]:
        return prompt_tokens(question, self._parts.config, self._parts.sampler.policy, suffix="")


def _add(
    groups: list[list[Group]],
    rows_M: Sequence[int],
    responses: Responses,
    advantages_MN: Floats,
    streams: PolicyStreams,
) -> None:
    """Add a group per prompt to its problem's, with the weight of the problem's votes."""
    weighted = PolicyStreams(
        majority=advantages_MN,
        minority=np.zeros_like(advantages_MN),
        weight=streams.weight[list(rows_M)],
        drop=streams.drop[list(rows_M)],
    )
    for row, group in zip(rows_M, responses.groups(weighted), strict=True):
        groups[row].append(group)
