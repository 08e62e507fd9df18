r"""The model as a judge of its own responses.

A question shows problem and response and asks for a reasoned verdict in a box. Every question is a
sample of its own, also where the same response is asked about several times; what is answered can
be trained on, with rewards from `guard_core.rules.CoVerRL.verifier_rewards`. Responses judged wrong
are given anew by `real.vote.observations.regeneration`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from real.answers.boxes import last_box
from real.engines.rollouts import Engine, Rollouts, Sampling
from real.model.policy import Policy
from real.problems import Problem
from real.problems.problem import Turn
from real.problems.prompts import as_tensor
from real.update.group import Group

Ints = NDArray[np.int64]

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


@dataclass(frozen=True, slots=True)
class Asked:
    """M questions about the responses to P problems, and what was answered."""

    verdicts_PQ: Ints
    """1 judged right, 0 judged wrong, -1 not asked or not readable."""
    places_PQ: Ints
    """Which of the M questions it was; -1 not asked."""
    prompts: list[list[int]]
    """(M,) questions as token ids."""
    rollouts: Rollouts | None
    """(M, 1) verifications; None where nothing was asked."""
    texts: list[str] = field(default_factory=list)
    """(M,) what was answered."""
    again_P: list[list[Group]] | None = None
    """Groups of the responses that were given anew, by problem; None where none were."""

    def groups(self, advantages_PQ: NDArray[np.floating]) -> list[list[Group]]:
        """What every problem has for the loss: verifications, a group of one each, and `again_P`.

        Args:
            advantages_PQ: of the verifications; those of questions not asked are not looked at.
        """
        again_P = self.again_P or [[] for _ in self.places_PQ]
        return [
            [
                self._group(int(place), float(advantage))
                for place, advantage in zip(places, advantages, strict=True)
                if place >= 0
            ]
            + again
            for places, advantages, again in zip(
                self.places_PQ, advantages_PQ, again_P, strict=True
            )
        ]

    def _group(self, place: int, advantage: float) -> Group:
        assert self.rollouts is not None
        tokens_1T, device = self.rollouts.tokens_PNT[place], self.rollouts.tokens_PNT.device
        return Group(
            prompt_L=as_tensor(self.prompts[place], device),
            tokens_KT=tokens_1T,
            old_KT=self.rollouts.logprobs_PNT[place],
            lengths_K=self.rollouts.lengths_PN[place],
            majority_K=torch.tensor([advantage], device=device),
            minority_K=torch.zeros(1, device=device),
        )


class Wording:
    """How a judge is asked, understood, and asked to solve the problem itself."""

    max_tokens: int | None = None
    """Longest verification; that of responses if None."""

    def question(self, problem: Problem, response: str) -> Problem:
        """What to ask about a response, to be encoded as problems are."""
        return verifier_prompt(problem, response)

    def verdict(self, text: str) -> int:
        """1 right, 0 wrong, -1 not readable."""
        return read_verdict(text)

    def request(self, problem: Problem, response: str, verification: str) -> Problem:
        """What asks for a new response, behind question and verification."""
        asked = self.question(problem, response)
        before = (*asked.before, Turn("user", asked.prompt), Turn("assistant", verification))
        return Problem(f"{problem.id}/again", _REQUEST.strip(), None, before)


def verifier_prompt(problem: Problem, response: str) -> Problem:
    """The question about a response, to be encoded as problems are.

    Args:
        problem: its earlier messages stay in front of the question.
        response: text of the response.
    """
    question = _QUESTION.strip().format(problem=problem.prompt.strip(), attempt=response.strip())
    return Problem(f"{problem.id}/verify", question, None, problem.before)


def read_verdict(text: str) -> int:
    r"""1 for `\boxed{correct}`, 0 for `\boxed{wrong}`, -1 for anything else; the last box counts.

    Case, spaces, a full stop and `\text{}` do not matter; `incorrect` is read as `wrong`.
    """
    box = last_box(text)
    if box is None:
        return -1
    return _VERDICTS.get(_STYLE.sub(r"\1", box).strip(" \n\t.").lower(), -1)


def ask(
    engine: Engine,
    policy: Policy,
    problems_P: Sequence[Problem],
    texts_PV: Sequence[Sequence[str]],
    questions_PQ: Ints,
    encode: Callable[[Problem], list[int]],
    longest: int,
    sampling: Sampling,
    generator: torch.Generator,
    version: int,
    wording: Wording,
) -> Asked:
    """Let the model judge responses.

    Args:
        engine: samples the verifications, one a question.
        policy: whose tokenizer reads them.
        problems_P: the problems.
        texts_PV: texts of their responses.
        questions_PQ: places among the V that are asked about; -1 costs nothing. Equal ones are
            separate samples.
        encode: token ids of a question.
        longest: questions of more tokens are not asked: neither the engine's nor the model's limit
            may be exceeded.
        sampling: of the verifications.
        generator: decides all of them.
        version: of the weights; other ones are refused.
        wording: of questions and verdicts.
    """
    prompts: list[list[int]] = []
    places_PQ = np.full_like(questions_PQ, -1)
    encoded: dict[tuple[int, int], list[int]] = {}
    for row, column in np.argwhere(questions_PQ >= 0).tolist():
        key = (row, int(questions_PQ[row, column]))
        if key not in encoded:
            encoded[key] = encode(wording.question(problems_P[row], texts_PV[row][key[1]]))
        if len(encoded[key]) <= longest:
            places_PQ[row, column] = len(prompts)
            prompts.append(encoded[key])
    if not prompts:
        return Asked(places_PQ.copy(), places_PQ, prompts, None)
    rollouts = engine.sample(prompts, 1, sampling, generator).of_version(version)
    texts = policy.texts(rollouts.tokens_PNT[:, 0], rollouts.lengths_PN[:, 0])
    read_M = np.array([wording.verdict(text) for text in texts], dtype=np.int64)
    verdicts_PQ = np.where(places_PQ >= 0, read_M[places_PQ], -1)
    return Asked(verdicts_PQ, places_PQ, prompts, rollouts, texts)
