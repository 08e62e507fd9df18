"""Sampling answers, and what they say about the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from real.answers import AnswerBook
from real.engines.rollouts import Engine, Rollouts, Sampling
from real.model.memory import memory_limit
from real.model.policy import Policy
from real.problems.prompts import PromptSet
from real.record.completions import Completions


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Accuracy of the policy over the problems whose true answer is known; NaN if none is."""

    pass_at_1: float
    """Mean over problems and responses of being right."""
    maj_accuracy: float
    """Share of problems whose majority answer is right; NaN where it was not measured."""
    n_responses: int
    """Responses drawn per problem."""
    pass_at: dict[int, float] = field(default_factory=dict)
    """k to pass@k, the chance that one of k responses is right; NaN where fewer were drawn."""

    def columns(self) -> dict[str, float]:
        """Columns of the trace's evals."""
        return {
            "pass_at_1": self.pass_at_1,
            "maj_accuracy": self.maj_accuracy,
            "n_responses": self.n_responses,
            **{f"pass_at_{k}": value for k, value in self.pass_at.items()},
        }


def sample_answers(
    engine: Engine,
    policy: Policy,
    prompts: PromptSet,
    book: AnswerBook,
    n: int,
    sampling: Sampling,
    max_rows: int,
    generator: torch.Generator,
    version: int,
    seen: Completions | None = None,
    watch: Callable[[Sequence[int], Rollouts], None] | None = None,
) -> NDArray[np.int64]:
    """Answer ids of `n` responses to every problem.

    Args:
        engine: samples them.
        policy: whose tokenizer reads them.
        prompts: N problems.
        book: gives the ids; new answers are added to it.
        n: responses per problem, V.
        sampling: how they are drawn.
        max_rows: about so many responses are held at once.
        generator: of the engine's device.
        version: of the weights; other ones are refused.
        seen: takes in the responses' texts, for people to read.
        watch: is shown problems and their responses as they come, in order.

    Returns:
        (N, V) ids, -1 unparseable. Only answers are kept, so memory does not grow with N.
    """
    at_once = max(1, max_rows // n)
    answers_NV = np.empty((len(prompts), n), np.int64)
    for start in range(0, len(prompts), at_once):
        problems = range(start, min(start + at_once, len(prompts)))
        tokens = [prompts.tokens[i] for i in problems]
        with memory_limit("rollout"):
            rollouts = engine.sample(tokens, n, sampling, generator).of_version(version)
        if watch is not None:
            watch(problems, rollouts)
        for place, problem in enumerate(problems):
            texts = policy.texts(rollouts.tokens_PNT[place], rollouts.lengths_PN[place])
            answers_NV[problem] = book.ids(problem, texts)
            if seen is not None:
                finished_N = rollouts.finished_PN[place].tolist()
                seen.see(problem, texts, answers_NV[problem], finished_N, book)
    return answers_NV


def evaluate(
    answers_NV: NDArray[np.int64], book: AnswerBook, with_majority: bool, ks: Sequence[int] = ()
) -> Evaluation:
    """Judge sampled answers.

    Args:
        answers_NV: (N, V) answer ids by `book`.
        book: knows the true answers.
        with_majority: whether V is large enough for a majority vote to be reported.
        ks: k of pass@k.
    """
    n_responses = answers_NV.shape[1]
    known = np.array([book.has_truth(i) for i in range(len(book))])
    if not known.any():
        return Evaluation(np.nan, np.nan, n_responses, dict.fromkeys(ks, np.nan))
    truth_N = np.array([book.truth_id(i) for i in range(len(book))])
    right_NV = answers_NV == truth_N[:, None]
    majority = np.nan
    if with_majority:
        pairs = zip(answers_NV[known], truth_N[known], strict=True)
        majority = float(np.mean([_majority_right(*pair) for pair in pairs]))
    right_M = right_NV.sum(axis=1)[known]
    return Evaluation(
        float(right_NV.mean(axis=1)[known].mean()),
        majority,
        n_responses,
        {k: float(pass_at(k, right_M, n_responses).mean()) for k in ks},
    )


def pass_at(k: int, right_N: NDArray[np.int64], n: int) -> NDArray[np.float64]:
    """Unbiased estimate of the chance that one of k responses is right.

    `1 - C(n - c, k) / C(n, k)` (Chen et al. 2021, "Evaluating large language models trained on
    code"), as a product of k factors, since the binomials overflow.

    Args:
        k: responses that count as one try.
        right_N: (N,) right responses of each problem, c.
        n: responses drawn for each problem.

    Returns:
        (N,) chances; NaN where fewer than k responses were drawn.
    """
    if k > n:
        return np.full(len(right_N), np.nan)
    places_k = np.arange(k)
    # A factor of 0 stands for "fewer than k wrong ones"; those after it may be negative.
    wrong_Nk = np.maximum(n - right_N[:, None] - places_k, 0)
    return 1.0 - (wrong_Nk / (n - places_k)).prod(axis=1)


def _majority_right(answers_V: NDArray[np.int64], truth: int) -> float:
    """Chance that the majority vote is the truth, ties broken at random."""
    parsed = answers_V[answers_V >= 0]
    if not len(parsed):
        return 0.0
    counts = np.bincount(parsed)
    winners = np.flatnonzero(counts == counts.max())
    return float((winners == truth).any() / len(winners))
