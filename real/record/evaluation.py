"""Evaluations: responses to all problems, scored by the true answers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from lab.trace.schema import PassAt
from real.answers import UNPARSEABLE, AnswerIds, Equality, Extract
from real.engines.rollouts import Sampling
from real.problems.problem import PromptSet
from real.record.journal import Journal
from real.record.terminal import summary
from real.settings.config import TrainConfig
from real.settings.seeds import Stream
from real.update.optimizer import WeightAverage
from real.vote.sample import Sampler


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
        values = asdict(self)
        ks: dict[int, float] = values.pop("pass_at")
        return values | {f"pass_at_{k}": value for k, value in ks.items()}


def evaluate(
    answers_NV: NDArray[np.int64],
    answer_ids: AnswerIds,
    with_majority: bool,
    ks: Sequence[int] = (),
) -> Evaluation:
    """Judge sampled answers.

    Args:
        answers_NV: (N, V) answer ids by `answer_ids`.
        with_majority: whether V is large enough for a majority vote to be reported.
    """
    n_responses = answers_NV.shape[1]
    places = range(len(answer_ids))
    known = np.array([answer_ids.has_truth(i) for i in places])
    if not known.any():
        return Evaluation(np.nan, np.nan, n_responses, dict.fromkeys(ks, np.nan))
    truth_N = np.array([answer_ids.truth_id(i) for i in places])
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
        right_N: (N,) right responses of each problem, c.

    Returns:
        (N,) chances; NaN where fewer than k responses were drawn.
    """
    if k > n:
        return np.full(len(right_N), np.nan)
    places_k = np.arange(k)
    # A factor of 0 stands for "fewer than k wrong ones"; those after it may be negative.
    wrong_Nk = np.maximum(n - right_N[:, None] - places_k, 0)
    return 1.0 - (wrong_Nk / (n - places_k)).prod(axis=1)


def _completed(
    answer_ids: AnswerIds, problem: int, texts: Sequence[str], strict_N: NDArray[np.int64]
) -> NDArray[np.int64]:
    """(N,) flexible answer ids from the strict ones, which stand wherever there are any."""
    completed_N, unread = strict_N.copy(), np.flatnonzero(strict_N == UNPARSEABLE)
    if len(unread):
        completed_N[unread] = answer_ids.ids(
            problem, [texts[i] for i in unread.tolist()], "flexible"
        )
    return completed_N


def _majority_right(answers_V: NDArray[np.int64], truth: int) -> float:
    """Chance that the majority vote is the truth, ties broken at random."""
    parsed = answers_V[answers_V >= 0]
    if not len(parsed):
        return 0.0
    counts = np.bincount(parsed)
    winners = np.flatnonzero(counts == counts.max())
    return float((winners == truth).any() / len(winners))


PASS_AT: tuple[PassAt, ...] = (4, 16, 64)
"""k of pass@k, as far as there are so many votes."""
WRITTEN_PROBLEMS, PER_PROBLEM = 4, 4
"""Problems of which an evaluation writes down responses, and the first responses of each."""


class Completions:
    """Collects responses of the same few problems in every evaluation."""

    def __init__(self, prompts: PromptSet) -> None:
        """Choose problems evenly spread over the set, which may be sorted by difficulty."""
        self._prompts = prompts
        n = min(WRITTEN_PROBLEMS, len(prompts))
        self._chosen = {int(i) for i in np.linspace(0, len(prompts) - 1, n).round()}
        self._rows: list[dict[str, Any]] = []

    def add(
        self,
        problem: int,
        texts: Sequence[str],
        answers_N: NDArray[np.int64],
        finished_N: Sequence[bool],
        answer_ids: AnswerIds,
    ) -> None:
        """Take in one problem's responses; those of problems not chosen are passed over."""
        if problem not in self._chosen:
            return
        row = self._prompts.problems[problem]
        for sample, text in enumerate(texts[:PER_PROBLEM]):
            answer = int(answers_N[sample])
            self._rows.append(
                {
                    "problem": row.id,
                    "prompt": row.prompt,
                    "sample": sample,
                    "response": text,
                    "answer": None if answer == UNPARSEABLE else answer_ids.text(problem, answer),
                    "truth": row.answer,
                    "right": answer == answer_ids.truth_id(problem)
                    if answer_ids.has_truth(problem)
                    else None,
                    "finish": "end" if finished_N[sample] else "length",
                }
            )

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row per response kept, in the order of the problems."""
        return self._rows


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Evaluates the policy of one run."""

    config: TrainConfig
    sampler: Sampler
    prompts: PromptSet
    equality: Equality | None
    """Of answers; None compares their canonical strings."""
    sampling: Sampling
    max_rows: int
    """Responses that are held at once, on all ranks together."""
    reads: bool = True
    """False on ranks that only sample: their rows are not written."""
    average: WeightAverage | None = None
    """Of the weights, evaluated in their place."""
    held_out: PromptSet | None = None
    """Problems that are not trained on."""

    def log(self, log: Journal, step: int, epoch: int, full: bool) -> None:
        """Evaluate, write the row, and note the summary of the curve of evaluations so far."""
        completions = Completions(self.prompts)
        with log.phase("evaluation"):
            with self._evaluated(step) as version:
                columns = self._columns(step, version, full, completions)
            row = {"step": step, "epoch": epoch, **columns}
        log.write_evals(row)
        log.write_completions(step, completions.rows)
        log.note(evaluation=summary(log.manifest.extra.get("evaluation"), row))

    def _evaluated(self, step: int) -> AbstractContextManager[int]:
        """Give the engine the weights to evaluate; the context's value is their version."""
        if self.average is None:
            return nullcontext(step)
        sampler = self.sampler
        return self.average.answering(sampler.policy.model, sampler.hand_over, step)

    def _columns(
        self, step: int, version: int, with_majority: bool, completions: Completions
    ) -> dict[str, float]:
        config = self.config
        generator = self.sampler.generator(Stream.EVALUATION, step)
        n = config.n_votes if with_majority else config.eval_samples
        chosen = config.eval_extract or config.extract
        ks = [k for k in PASS_AT if k <= config.n_votes]

        def judged(prompts: PromptSet, completions: Completions | None) -> dict[str, Evaluation]:
            answer_ids = AnswerIds(prompts.truths, self.equality)
            nothing_NV = np.full((len(prompts), n), UNPARSEABLE, np.int64)
            read = {extract: nothing_NV.copy() for extract in get_args(Extract)}
            for part in self.sampler.sample_all(
                prompts, n, self.sampling, version, generator, self.max_rows
            ):
                if not self.reads:
                    continue
                finished = part.rollouts.finished_PN.tolist()
                for problem, texts, ended in zip(part.problems, part.texts, finished, strict=True):
                    answers_N = answer_ids.ids(problem, texts)
                    read["strict"][problem] = answers_N
                    read["flexible"][problem] = _completed(answer_ids, problem, texts, answers_N)
                    if completions:
                        completions.add(problem, texts, read[chosen][problem], ended, answer_ids)
            return {
                extract: evaluate(answers_NV, answer_ids, with_majority, ks)
                for extract, answers_NV in read.items()
            }

        found = judged(self.prompts, completions)
        columns = {"replicate": 0, **found[chosen].columns()}
        columns |= {f"{extract}_pass_at_1": one.pass_at_1 for extract, one in found.items()}
        if self.held_out:
            columns["held_out_pass_at_1"] = judged(self.held_out, None)[chosen].pass_at_1
        return columns
