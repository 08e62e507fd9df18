"""How well a tiny checkpoint judges responses of its own."""

from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedModel

from real.tiny import judging, task
from real.tiny.measure import boxed_digit, sample_texts


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a checkpoint says of its own responses to the problem set; one verdict each."""

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
    rows = [problem for problem in task.problems(n_problems) for _ in range(n_votes)]
    first = sample_texts(model, [p.prompt for p in rows], task.RESPONSE_TOKENS, temperature, seed)
    kept = [place for place, text in enumerate(first) if boxed_digit(text) >= 0]
    answers = [boxed_digit(first[place]) for place in kept]
    right = np.array([str(a) == rows[p].answer for a, p in zip(answers, kept, strict=True)])
    asked = [judging.question(rows[place].prompt, first[place]) for place in kept]
    said = sample_texts(model, asked, judging.VERIFICATION_TOKENS, temperature, seed + 1)
    verdicts = np.array([judging.read_verdict(text) for text in said])
    own = np.array([_own_digit(text) for text in said])
    return Judgement(
        true_positive_rate=_share(verdicts[right] == 1),
        false_positive_rate=_share(verdicts[~right] == 1),
        readable=float((verdicts >= 0).mean()),
        right=float(right.mean()),
        own_agrees=float(((own == np.array(answers)) == (verdicts == 1)).mean()),
        n_problems=n_problems,
        n_votes=n_votes,
        temperature=temperature,
    )


def _share(found: np.ndarray) -> float:
    """Share of True; NaN where there is nothing."""
    return float(found.mean()) if found.size else float("nan")


def _own_digit(verification: str) -> int:
    """The answer in front of the box; -1 without one."""
    work = verification.rpartition("\\boxed{")[0]
    return int(work[-1]) if work[-1:].isdigit() else -1
