"""Evaluations: responses to all problems, scored by the true answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import multimode
from typing import Any, get_args

import numpy as np
from torch import Generator

from lab.base.columns import Floats, Ints
from lab.trace.schema import PassAt
from real.answers import UNPARSEABLE, AnswerIds, Equality, Extract
from real.problems.problem import PromptSet
from real.record.journal import Journal
from real.record.terminal import summary
from real.settings.seeds import Stream
from real.update.ema import WeightAverage
from real.vote.sample import Parts

PASS_AT: tuple[PassAt, ...] = (4, 16, 64)
"""k of pass@k, as far as there are so many votes."""
WRITTEN_PROBLEMS, PER_PROBLEM = 4, 4
"""Problems of which an evaluation writes down responses, and the first responses of each."""


def evaluate(
    answers_NV: Ints, answer_ids: AnswerIds, with_majority: bool, ks: Sequence[int] = ()
) -> dict[str, float]:
    """Return columns of the trace's evals, over problems with a known answer; NaN without any."""
    n_responses = answers_NV.shape[1]
    known = [i for i in range(len(answer_ids)) if answer_ids.has_truth(i)]
    truth_M = np.array([answer_ids.truth_id(i) for i in known])
    right_MV = answers_NV[known] == truth_M[:, None] if known else np.full((1, n_responses), np.nan)
    votes = zip(answers_NV[known], truth_M, strict=True) if with_majority else ()
    right_M = right_MV.sum(axis=1)
    return {
        "pass_at_1": float(right_MV.mean(axis=1).mean()),
        "maj_accuracy": float(np.mean([majority_right(*pair) for pair in votes] or [np.nan])),
        "n_responses": n_responses,
        **{f"pass_at_{k}": float(pass_at(k, right_M, n_responses).mean()) for k in ks},
    }


def pass_at(k: int, right_N: Ints, n: int) -> Floats:
    """(N,) unbiased estimate of the chance that one of k responses is right; NaN where k > n.

    `1 - C(n - c, k) / C(n, k)` (Chen et al. 2021, "Evaluating large language models trained on
    code") with c = `right_N`, as a product of k factors, since the binomials overflow.
    """
    if k > n:
        return np.full(len(right_N), np.nan)
    places_k = np.arange(k)
    # A factor of 0 stands for "fewer than k wrong ones"; those after it may be negative.
    wrong_Nk = np.maximum(n - right_N[:, None] - places_k, 0)
    return 1.0 - (wrong_Nk / (n - places_k)).prod(axis=1)


def majority_right(answers_V: Ints, truth: int) -> float:
    """Chance that the majority vote is the truth, ties broken at random."""
    winners = multimode(answer for answer in answers_V.tolist() if answer >= 0)
    return (truth in winners) / max(1, len(winners))


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Evaluates the policy of one run."""

    parts: Parts
    equality: Equality | None
    """Of answers; None compares their canonical strings."""
    average: WeightAverage | None = None
    held_out: PromptSet | None = None

    def log(self, log: Journal, step: int, epoch: int, full: bool) -> None:
        """Evaluate, write the row, and note the summary of the curve of evaluations so far."""
        config, sampler = self.parts.config, self.parts.sampler
        chosen = config.eval_extract or config.extract
        row: dict[str, Any] = {"step": step, "epoch": epoch, "replicate": 0}
        with log.phase("evaluation"), sampler.answering(self.average, step) as version:
            generator = sampler.generator(Stream.EVALUATION, step)
            judged = partial(self._judged, version=version, generator=generator, full=full)
            columns, completions = judged(self.parts.prompts)
            row |= columns[chosen]
            row |= {f"{extract}_pass_at_1": one["pass_at_1"] for extract, one in columns.items()}
            if self.held_out:
                unseen = judged(self.held_out)[0][chosen]
                row |= {f"held_out_{name}": unseen[name] for name in ("pass_at_1", "maj_accuracy")}
        log.write("evals", row)
        log.write_json(f"completions/step-{step:06d}.jsonl", completions)
        log.note(evaluation=summary(log.manifest.extra.get("evaluation"), row))

    def _judged(
        self, prompts: PromptSet, version: int, generator: Generator, full: bool
    ) -> tuple[dict[Extract, dict[str, float]], list[dict[str, Any]]]:
        """Return the columns by way of extraction, and rows of responses to a few problems."""
        parts, answer_ids = self.parts, AnswerIds(prompts.truths, self.equality)
        config = parts.config
        n = config.n_votes if full else config.eval_samples
        nucleus = {"temperature": config.eval_temperature, "top_p": config.eval_top_p}
        sampling = replace(parts.sampling, **nucleus, stats=False, logprobs=False, everywhere=False)
        read: dict[Extract, Ints] = {
            extract: np.full((len(prompts), n), UNPARSEABLE) for extract in get_args(Extract)
        }
        written = {int(i) for i in np.linspace(0, len(prompts) - 1, WRITTEN_PROBLEMS).round()}
        rows: list[dict[str, Any]] = []
        for part in parts.sampler.sample_all(prompts, n, sampling, version, generator):
            if not parts.ranks.first:
                continue
            finished = part.rollouts.finished_PN.tolist()
            for problem, texts, ended in zip(part.problems, part.texts, finished, strict=True):
                found_V = answer_ids.ids(problem, texts)
                read["strict"][problem] = read["flexible"][problem] = found_V
                boxless = np.flatnonzero(found_V == UNPARSEABLE)  # a box need not be read again
                left = [texts[i] for i in boxless]
                read["flexible"][problem, boxless] = answer_ids.ids(problem, left, "flexible")
                if problem in written:
                    chosen = read[config.eval_extract or config.extract][problem].tolist()
                    given = zip(texts, chosen, ended, strict=True)
                    rows += _completions(prompts, answer_ids, problem, list(given)[:PER_PROBLEM])
        ks = [k for k in PASS_AT if k <= config.n_votes]
        return {name: evaluate(a, answer_ids, full, ks) for name, a in read.items()}, rows


def _completions(
    prompts: PromptSet, answer_ids: AnswerIds, problem: int, given: list[tuple[str, int, bool]]
) -> Iterator[dict[str, Any]]:
    row, has_truth = prompts.problems[problem], answer_ids.has_truth(problem)
    for sample, (text, answer, ended) in enumerate(given):
        yield {
            "problem": row.id,
            "prompt": row.prompt,
            "sample": sample,
            "response": text,
            "answer": None if answer == UNPARSEABLE else answer_ids.text(problem, answer),
            "truth": row.answer,
            "right": answer == answer_ids.truth_id(problem) if has_truth else None,
            "finish": "end" if ended else "length",
        }
