"""The trained model as the judge of its own responses.

Every question, which asks for a reasoned verdict in a box, is a sample of its own, also about the
same response. A verdict that it is wrong is followed by a request to solve the problem again. Both
are trained on.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np

from guard_core import PolicyStreams
from guard_core.advantages import kept_factor, negatives_scaled, standardise
from guard_core.rules.evidence import CoVerRL
from lab.base.columns import Bools, Floats, Ints
from real.answers.boxes import last_box
from real.problems.problem import Problem, Turn
from real.settings.seeds import Stream
from real.tiny import judging
from real.update.packing import Group
from real.vote.decide import Decided, Fields
from real.vote.extra_rollouts import ExtraRollouts, encode
from real.vote.sample import Parts, Responses

QUESTION = r"""A problem and an attempt at it follow. Judge whether the attempt's answer is right.

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
        """Return the question about a response; the problem's earlier messages stay in front."""
        text = QUESTION.strip().format(problem=problem.prompt.strip(), attempt=response.strip())
        return Problem(f"{problem.id}/verify", text, None, problem.before)

    def verdict(self, text: str) -> int:
        r"""Return 1 for `\boxed{correct}`, 0 for wrong or incorrect, -1 for anything else."""
        box = last_box(text) or ""
        return _VERDICTS.get(_STYLE.sub(r"\1", box).strip(" \n\t.").lower(), -1)

    def request(self, problem: Problem, response: str, verification: str) -> Problem:
        """Return the request for a new response, after question and verification."""
        question = self.question(problem, response)
        judged = Turn("user", question.prompt), Turn("assistant", verification)
        return Problem(f"{problem.id}/again", _REQUEST.strip(), None, (*question.before, *judged))


class TinyWording(Wording):
    """The wording in the tiny task's own tokens; see `real.tiny.judging`."""

    max_tokens = judging.VERIFICATION_TOKENS

    def question(self, problem: Problem, response: str) -> Problem:
        return Problem(f"{problem.id}/verify", judging.question(problem.prompt, response), None)

    def verdict(self, text: str) -> int:
        """Plus is right, minus wrong."""
        return judging.read_verdict(text)

    def request(self, problem: Problem, response: str, verification: str) -> Problem:
        text = judging.request(problem.prompt, response, verification)
        return Problem(f"{problem.id}/again", text, None)


_AGAIN = 1
"""Last position of the random numbers of new solutions, in the verifier's stream."""


Request = tuple[int, list[int]]
"""Index of the batch's problem that it is about, and its tokens."""
Solutions = tuple[list[int], Responses, Floats]
"""After each of M verdicts that a response is wrong N new solutions: (M,) index of the batch's
problem, (M, N) responses, (M, N) advantages."""


class Judge(ExtraRollouts):
    """Asks about responses of a batch, and keeps the answers to be trained on."""

    def __init__(self, rule: CoVerRL, parts: Parts) -> None:
        self._rule, self._parts = rule, parts
        self.wording = TinyWording() if parts.config.tiny_verifies else Wording()
        self._step = 0
        self.verified: Responses | None = None
        """(M, 1) verifications of the responses to P problems; None where nothing was asked."""
        self.questions_PQ = self._verdicts_PQ = np.zeros((0, 0), np.int64)
        """Index among the M, -1 not asked; 1 judged right, 0 wrong, -1 not asked or readable."""
        self._again: Solutions | None = None

    def before(self, problems_P: Ints, step: int) -> Fields:
        self._step, self.n_sampled, self.verified, self._again = step, 0, None, None
        return {}

    def ask(self, decided: Decided | None, responses: Responses) -> Decided | None:
        """Let the model judge, first a response with the label, and solve again what is wrong."""
        chosen = self._rule.questions(decided.obs, decided.decision.label) if decided else None
        chosen_PQ = self._parts.ranks.from_first(chosen).astype(np.int64)
        self._verify(chosen_PQ, responses)
        if self._rule.regenerations:
            self._again = self._solve_again(chosen_PQ, responses, decided)
        if decided is None:
            return None
        return replace(decided, obs=replace(decided.obs, verdicts=self._verdicts_PQ))

    def groups(self, decided: Decided | None, streams: PolicyStreams) -> list[list[Group]]:
        """Return a group of one per verification, of N per wrong verdict, as far as they stay."""
        solutions, asked_PQ = [self._again] if self._again else [], self.questions_PQ >= 0
        paid_PQ = self._advantages(decided, asked_PQ) if decided else None
        advantages_PQ = self._parts.ranks.from_first(paid_PQ)
        if self.verified is not None:
            rows_M, columns_M = np.nonzero(asked_PQ)
            advantages_M1 = advantages_PQ[rows_M, columns_M][:, None]
            solutions.insert(0, (rows_M.tolist(), self.verified, advantages_M1))
        groups: list[list[Group]] = [[] for _ in streams.drop]
        mask = self._parts.config.mask_truncated
        for rows_M, responses, advantages_MN in solutions:
            # A problem's extra groups have the weight of its votes.
            weight_M, drop_M = streams.weight[rows_M], streams.drop[rows_M]
            weighted = PolicyStreams(advantages_MN, np.zeros_like(advantages_MN), weight_M, drop_M)
            for row, group in zip(rows_M, responses.groups(weighted, mask), strict=True):
                groups[row].append(group)
        return groups

    def _advantages(self, decided: Decided, asked_PQ: Bools) -> Floats:
        """(P, Q) rewards of verdicts, standardised within each answer's verifications."""
        rewards_PQ = self._rule.verifier_rewards(decided.obs)
        advantages_PQ = np.full(rewards_PQ.shape, np.nan)
        for half in (slice(self._rule.verifications), slice(self._rule.verifications, None)):
            for row in np.flatnonzero(asked_PQ[:, half].any(axis=1)).tolist():
                asked_H = asked_PQ[row, half]
                rewards_H = rewards_PQ[row, half][asked_H]
                advantages_PQ[row, half][asked_H] = self._standardised(rewards_H, decided, row)
        return advantages_PQ

    def _standardised(self, rewards: Floats, decided: Decided, rows: int | list[int]) -> Floats:
        """(..., N) advantages of N responses to problems `rows`, by the guard's settings."""
        guard = self._parts.config.guard
        factor = kept_factor(decided.decision, guard)[rows]
        scale = "none" if guard.advantages.advantage_scale == "none" else "group"
        return negatives_scaled(standardise(rewards, scale) * factor[..., None], guard)

    def _verify(self, chosen_PQ: Ints, responses: Responses) -> None:
        """Ask about the chosen ones of the V responses, -1 for none, as long as a prompt may be."""

        @cache
        def question(row: int, response: int) -> list[int] | None:
            problem, text = self._problem(responses, row), responses.texts[row][response]
            return encode(self._parts, self.wording.question(problem, text), "")

        questions_PQ, requests = np.full_like(chosen_PQ, -1), list[Request]()
        for row, column in np.argwhere(chosen_PQ >= 0).tolist():
            if prompt := question(row, int(chosen_PQ[row, column])):
                questions_PQ[row, column] = len(requests)
                requests.append((row, prompt))
        self.questions_PQ = self._verdicts_PQ = questions_PQ
        self.verified = self._sample(requests, responses, 1, self.wording.max_tokens)
        if self.verified is not None:
            verdicts_M = np.array([self.wording.verdict(text) for (text,) in self.verified.texts])
            self._verdicts_PQ = np.where(questions_PQ >= 0, verdicts_M[questions_PQ], -1)

    def _solve_again(
        self, chosen_PQ: Ints, responses: Responses, decided: Decided | None
    ) -> Solutions | None:
        """Sample new solutions after the verdicts "wrong" on problems that stay; None for none."""
        if self.verified is None:
            return None
        requests: list[Request] = []
        stays_P = self._rule.trusts(self._verdicts_PQ)
        for row, column in np.argwhere((self._verdicts_PQ == 0) & stays_P[:, None]).tolist():
            (verification,) = self.verified.texts[self.questions_PQ[row, column]]
            response = responses.texts[row][int(chosen_PQ[row, column])]
            asks = self.wording.request(self._problem(responses, row), response, verification)
            if prompt := encode(self._parts, asks, ""):
                requests.append((row, prompt))
        solutions = self._sample(requests, responses, self._rule.regenerations, None, _AGAIN)
        if solutions is None:
            return None
        rows, advantages_MN = [row for row, _ in requests], None
        if decided is not None:
            label_M = decided.decision.label[rows]
            rewards_MN = self._rule.regeneration_rewards(self._parts.read(solutions), label_M)
            advantages_MN = self._standardised(rewards_MN, decided, rows)
        return rows, solutions, self._parts.ranks.from_first(advantages_MN)

    def _sample(
        self, requests: list[Request], votes: Responses, n: int, max_tokens: int | None, *place: int
    ) -> Responses | None:
        """Sample `n` responses to each request, of length as those of votes if None."""
        if not requests:
            return None
        sampler, sampling = self._parts.sampler, self._parts.sampling
        sampling = replace(sampling, max_tokens=max_tokens or sampling.max_tokens)
        rows, prompts = zip(*requests, strict=True)
        problems = [votes.problems[row] for row in rows]
        generator = sampler.generator(Stream.VERIFIER, self._step, *place)
        sampled = sampler.sample(problems, prompts, n, sampling, self._step - 1, generator)
        self.n_sampled += sampled.n_tokens
        return sampled

    def _problem(self, responses: Responses, row: int) -> Problem:
        return self._parts.prompts.problems[responses.problems[row]]
