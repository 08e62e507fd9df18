"""Sampling answers, and what they say about the policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from real.answers import AnswerBook
from real.policy import Policy
from real.prompts import PromptSet
from real.rollouts import Engine


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Accuracy of the policy over the problems whose true answer is known; NaN if none is."""

    pass_at_1: float
    """Mean over problems and responses of being right."""
    maj_accuracy: float
    """Share of problems whose majority answer is right; NaN where it was not measured."""


def sample_answers(
    engine: Engine,
    policy: Policy,
    prompts: PromptSet,
    book: AnswerBook,
    n: int,
    max_rows: int,
    generator: torch.Generator,
) -> NDArray[np.int64]:
    """Answer ids of `n` responses to every problem.

    Args:
        engine: samples them.
        policy: whose tokenizer reads them.
        prompts: N problems.
        book: gives the ids; new answers are added to it.
        n: responses per problem, V.
        max_rows: about so many responses are held at once.
        generator: of the engine's device.

    Returns:
        (N, V) ids, -1 unparseable. Only answers are kept, so memory does not grow with N.
    """
    at_once = max(1, max_rows // n)
    answers_NV = np.empty((len(prompts), n), np.int64)
    for start in range(0, len(prompts), at_once):
        problems = range(start, min(start + at_once, len(prompts)))
        rollouts = engine.sample([prompts.tokens[i] for i in problems], n, generator)
        for place, problem in enumerate(problems):
            texts = policy.texts(rollouts.tokens_PNT[place], rollouts.lengths_PN[place])
            answers_NV[problem] = book.ids(problem, texts)
    return answers_NV


def evaluate(answers_NV: NDArray[np.int64], book: AnswerBook, with_majority: bool) -> Evaluation:
    """Judge sampled answers.

    Args:
        answers_NV: (N, V) answer ids by `book`.
        book: knows the true answers.
        with_majority: whether V is large enough for a majority vote to be reported.
    """
    known = np.array([book.has_truth(i) for i in range(len(book))])
    if not known.any():
        return Evaluation(np.nan, np.nan)
    truth_N = np.array([book.truth_id(i) for i in range(len(book))])
    right = (answers_NV == truth_N[:, None]).mean(axis=1)
    majority = np.nan
    if with_majority:
        pairs = zip(answers_NV[known], truth_N[known], strict=True)
        majority = float(np.mean([_majority_right(*pair) for pair in pairs]))
    return Evaluation(float(right[known].mean()), majority)


def _majority_right(answers_V: NDArray[np.int64], truth: int) -> float:
    """Chance that the majority vote is the truth, ties broken at random."""
    parsed = answers_V[answers_V >= 0]
    if not len(parsed):
        return 0.0
    counts = np.bincount(parsed)
    winners = np.flatnonzero(counts == counts.max())
    return float((winners == truth).any() / len(winners))
