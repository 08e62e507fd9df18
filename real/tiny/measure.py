"""Measure the answers of a tiny checkpoint before any reinforcement learning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from transformers import PreTrainedModel

from real.tiny import judging
from real.tiny.arithmetic import ARITHMETIC
from real.tiny.task import PROBLEM_SEED, Task
from real.tiny.vocabulary import build_tokenizer, encode


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Measurements of a checkpoint on the problem set before any reinforcement learning."""

    pass_at_1: float
    """Mean over problems and samples."""
    maj_accuracy: float
    """Share of problems whose majority answer is right; a tie counts as its part."""
    parseable: float
    """Share of responses that end in a box with a number."""
    strong_rivals: float
    """Share of problems in which one wrong answer holds at least a quarter of the votes."""
    n_problems: int
    n_votes: int
    temperature: float


def measure(
    model: PreTrainedModel,
    n_problems: int = 64,
    n_votes: int = 64,
    temperature: float = 0.6,
    seed: int = 0,
    task: Task[Any] = ARITHMETIC,
    problem_seed: int = PROBLEM_SEED,
) -> Accuracy:
    """Sample a problem set of the task and count; ``seed`` is that of the samples."""
    records = task.problems(n_problems, problem_seed)
    prompts = [p.prompt for p in records]
    answers_NV = sample_answers(model, prompts, n_votes, temperature, seed, task.response_tokens)
    truths = [int(p.answer) for p in records]
    counted = [_count(row, truth) for row, truth in zip(answers_NV.tolist(), truths, strict=True)]
    right_N, majority_N, rival_N = np.array(counted).T
    return Accuracy(
        pass_at_1=float(right_N.mean() / n_votes),
        maj_accuracy=float(majority_N.mean()),
        parseable=float((answers_NV >= 0).mean()),
        strong_rivals=float((rival_N >= n_votes / 4).mean()),
        n_problems=n_problems,
        n_votes=n_votes,
        temperature=temperature,
    )


def _count(answers: Sequence[int], truth: int) -> tuple[int, float, int]:
    """Votes for the truth, its part in the majority, and most votes for a wrong number."""
    counts = Counter(answer for answer in answers if answer >= 0)
    most = max(counts.values(), default=0)
    leading = [answer for answer, n in counts.items() if n == most]
    rival = max((n for answer, n in counts.items() if answer != truth), default=0)
    return counts[truth], (truth in leading) / max(len(leading), 1), rival


def sample_answers(
    model: PreTrainedModel,
    prompts: list[str],
    n_votes: int,
    temperature: float = 0.6,
    seed: int = 0,
    max_tokens: int = ARITHMETIC.response_tokens,
) -> np.ndarray:
    """(N, V) boxed numbers of ``n_votes`` sampled responses to each prompt, -1 without a box."""
    rows = [prompt for prompt in prompts for _ in range(n_votes)]
    texts = sample_texts(model, rows, max_tokens, temperature, seed)
    return np.array([boxed_number(text) for text in texts]).reshape(len(prompts), n_votes)


@torch.no_grad()
def sample_texts(
    model: PreTrainedModel, prompts: list[str], max_tokens: int, temperature: float, seed: int
) -> list[str]:
    """One response to each prompt; prompts of one length are sampled together."""
    responses = [""] * len(prompts)
    ids = [encode(prompt) for prompt in prompts]
    tokenizer = build_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for length in sorted(set(map(len, ids))):
            rows = [row for row, prompt in enumerate(ids) if len(prompt) == length]
            read = torch.tensor([ids[row] for row in rows])
            tokens = cast(Any, model).generate(
                read,
                attention_mask=torch.ones_like(read),
                do_sample=True,
                temperature=temperature,
                top_k=0,
                max_new_tokens=max_tokens,
            )
            texts = tokenizer.batch_decode(tokens[:, length:], skip_special_tokens=True)
            for row, text in zip(rows, texts, strict=True):
                responses[row] = text
    return responses


def boxed_number(response: str) -> int:
    """The number in the box that ends ``response``, -1 where there is none."""
    _, box, tail = response.rpartition("\\boxed{")
    number = tail.removesuffix("}")
    is_number = box and tail != number and number.isascii() and number.isdigit()
    return int(number) if is_number else -1


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdicts of a checkpoint about its own responses to the problem set, one each."""

    true_positive_rate: float
    """Share of right responses that are judged right; NaN without any."""
    false_positive_rate: float
    """Share of wrong responses that are judged right; NaN without any."""
    readable: float
    """Share of verdicts that can be read; the others are in neither rate's numerator."""
    right: float
    """Share of the judged responses that are right."""
    own_agrees: float
    """Share of verdicts that follow from comparing the attempt with the judge's own answer."""
    n_problems: int
    n_votes: int
    temperature: float


def measure_judging(
    model: PreTrainedModel,
    n_problems: int = 64,
    n_votes: int = 16,
    temperature: float = 0.6,
    seed: int = 0,
) -> Judgement:
    """Sample responses and a verdict on each; those without a box are not asked about."""
    rows = [problem for problem in ARITHMETIC.problems(n_problems) for _ in range(n_votes)]
    first = sample_texts(
        model, [p.prompt for p in rows], ARITHMETIC.response_tokens, temperature, seed
    )
    kept = [row for row, text in enumerate(first) if boxed_number(text) >= 0]
    answers = [boxed_number(first[row]) for row in kept]
    right = np.array([str(a) == rows[p].answer for a, p in zip(answers, kept, strict=True)])
    asked = [judging.question(rows[row].prompt, first[row]) for row in kept]
    said = sample_texts(model, asked, judging.VERIFICATION_TOKENS, temperature, seed + 1)
    verdicts = np.array([judging.read_verdict(text) for text in said])
    own_answers = np.array([_own_digit(text) for text in said])
    return Judgement(
        true_positive_rate=_share(verdicts[right] == 1),
        false_positive_rate=_share(verdicts[~right] == 1),
        readable=float((verdicts >= 0).mean()),
        right=float(right.mean()),
        own_agrees=float(((own_answers == np.array(answers)) == (verdicts == 1)).mean()),
        n_problems=n_problems,
        n_votes=n_votes,
        temperature=temperature,
    )


def _share(values: np.ndarray) -> float:
    """Share of True; NaN where there is nothing."""
    return float(values.mean()) if values.size else float("nan")


def _own_digit(verification: str) -> int:
    """The answer in front of the box; -1 without one."""
    work = verification.rpartition("\\boxed{")[0]
    return int(work[-1]) if work[-1:].isdigit() else -1
