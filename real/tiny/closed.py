r"""Which of two digits: the third embedded task, whose responses are one of ten answers.

A problem is a row of twelve digits, all of them its first or its last, which differ; the answer is
the last, ``733377377333=`` and ``\boxed{3}``. The first is the rival. The model was pretrained to
give either the more often the more copies it has, and any other digit now and then. Only the digit
in the box is free. So what training loses, it loses to an answer that the start gave too: a false
consensus that wins, and no response that is new.

A problem set has a chosen share of problems whose majority is the rival, all by the same lead. In
the others the answer leads by 40 % of the votes.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from real.tiny.task import Task

N_DIGITS = 12
TEMPERATURE = 0.6
"""Sampling temperature at which the shares of the votes hold."""
_REST = 0.08
"""Share of the votes for the eight digits that are not in the question."""
_RIGHT = 40
"""Lead of the answer in problems whose majority is right."""
_IN_SETS = 6600
"""Questions that the limit on problem sets counts: those of the rarest lead decide it."""


def lead(question: str) -> int:
    """Percent of the votes by which the answer leads the rival, at most 80, as pretraining has it.

    The shipped model's leads have a standard deviation of about 18 between questions.
    """
    ahead = 10 * (2 * question.count(question[-1]) - N_DIGITS)
    return min(max(ahead, -80), 80)


def vote_shares(question: str) -> np.ndarray:
    """(10,) shares of the digits among the votes for a question before training."""
    shares_A = np.full(10, _REST / 8)
    for digit, ahead in ((question[0], -lead(question)), (question[-1], lead(question))):
        shares_A[int(digit)] = (1 - _REST + ahead / 100) / 2
    return shares_A


def sample_question(rng: np.random.Generator) -> str:
    """One question, uniform over all, as the model reads it."""
    pair = rng.choice(10, 2, replace=False)
    return "".join(map(str, pair[[0, *rng.integers(2, size=N_DIGITS - 2), 1]]))


def example(question: str, _slip_rate: float, rng: np.random.Generator) -> str:
    """A response to learn from; there is no scratch work to slip in."""
    weights_A = vote_shares(question) ** TEMPERATURE
    return f"\\boxed{{{rng.choice(10, p=weights_A / weights_A.sum())}}}"


CLOSED = Task(
    prefix="closed",
    checkpoint=Path(__file__).parent / "closed_checkpoint",
    prompt_tokens=N_DIGITS + 1,
    response_tokens=4,
    n_questions=90 * 2 ** (N_DIGITS - 2),
    draw=sample_question,
    answer=lambda question: question[-1],
    example=example,
)


def closed(wrong: float, rival_lead: int) -> Task[str]:
    """The task with problem sets of a share of problems whose majority before training is wrong.

    Args:
        wrong: the share, in [0, 1]; of the first n problems of a set it is within 1 / n.
        rival_lead: of the rival in these, in percent of the votes: 20, 40 or 60.
    """

    def stands(place: int, question: str) -> bool:
        is_wrong = int((place + 1) * wrong) > int(place * wrong)
        return lead(question) == (-rival_lead if is_wrong else _RIGHT)

    return replace(CLOSED, n_questions=_IN_SETS, stands=stands)
