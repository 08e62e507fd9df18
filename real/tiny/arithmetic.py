r"""Last-digit arithmetic with planted rivals: the first embedded task.

A problem is an expression of five digits and four operators, ``3+0-1*6+0=``; its answer is the
last digit of the value under the usual precedence (multiplication first, then left to right). A
response shows one reduction per scratch step, every value taken modulo 10::

    3+0-6+0>3-6+0>7+0>\boxed{7}

Two misconceptions (strictly left to right, strictly right to left) have scratch work of their own,
and the checkpoint was pretrained on a mixture of all three rules, by `shares`, and on slips. Before
training 40 % of the responses hold a slip, so most wrong answers are not the planted ones.
"""

import hashlib
import operator
import re
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.random import Generator

from real.tiny.tasks import Task, response_text

OPERATORS = "+-*"
N_DIGITS = 5
_CARRY_OUT = {"+": operator.add, "-": operator.sub, "*": operator.mul}


class EvaluationRule(StrEnum):
    """An order of evaluation. ``RIGHT`` gives the ground truth, the others are misconceptions."""

    RIGHT = "right"
    LEFT_TO_RIGHT = "left_to_right"
    RIGHT_TO_LEFT = "right_to_left"


def is_expression(text: str) -> bool:
    """Return whether a text is digits with operators between them, perhaps with a final ``=``."""
    return re.fullmatch(r"\d(?:[+\-*]\d)*=?", text, re.ASCII) is not None


def sample_expression(rng: Generator) -> str:
    """One expression, uniform over the 8.1 million of them."""
    digits = rng.integers(0, 10, N_DIGITS)
    operators = rng.integers(0, len(OPERATORS), N_DIGITS - 1)
    tail = (f"{OPERATORS[i]}{digit}" for i, digit in zip(operators, digits[1:], strict=True))
    return f"{digits[0]}{''.join(tail)}"


def reduce_once(expression: str, index: int, slip: int = 0) -> str:
    """The expression with one operator carried out, ``slip`` added, all modulo 10."""
    start = 2 * index
    left, sign, right = expression[start : start + 3]
    value = (_CARRY_OUT[sign](int(left), int(right)) + slip) % 10
    return f"{expression[:start]}{value}{expression[start + 3 :]}"


def steps(
    expression: str, rule: EvaluationRule, slip_rate: float = 0.0, rng: Generator | None = None
) -> list[str]:
    """Every reduction by ``rule``, the answer last; a slip writes one of the nine wrong digits."""
    trace: list[str] = []
    while len(expression) > 1:
        slip = int(rng.integers(1, 10)) if rng is not None and rng.random() < slip_rate else 0
        index = 0 if rule is EvaluationRule.LEFT_TO_RIGHT else len(expression) // 2 - 1
        if rule is EvaluationRule.RIGHT:
            index = max(expression.find("*"), 0) // 2
        expression = reduce_once(expression, index, slip)
        trace.append(expression)
    return trace


def evaluate(expression: str, rule: EvaluationRule = EvaluationRule.RIGHT) -> str:
    """The answer of ``expression`` under ``rule``, a digit."""
    return steps(expression, rule)[-1]


def shares(expression: str) -> dict[EvaluationRule, float]:
    """Part of each rule in the pretraining mixture for one pattern of operators; they sum to 1.

    A hash of the pattern spreads the right rule's part evenly over [.15, 1] and picks the
    misconception that gets three fifths of the rest; the other one gets two fifths.
    """
    digest = hashlib.sha256(expression[1::2].encode()).digest()
    right = 0.15 + 0.85 * int.from_bytes(digest[:4]) / 2**32
    major, minor = 0.6 * (1 - right), 0.4 * (1 - right)
    left_first = digest[4] % 2 == 0
    return {
        EvaluationRule.RIGHT: right,
        EvaluationRule.LEFT_TO_RIGHT: major if left_first else minor,
        EvaluationRule.RIGHT_TO_LEFT: minor if left_first else major,
    }


def drawn_steps(
    expression: str, parts: dict[EvaluationRule, float], slip_rate: float, rng: Generator
) -> list[str]:
    """The steps of one rule, drawn by its part, with slips."""
    chances = np.array(list(parts.values()))
    rule = list(parts)[rng.choice(len(parts), p=chances / chances.sum())]
    return steps(expression, rule, slip_rate, rng)


def reworded(prompt: str) -> str | None:
    """Expression rewritten with swapped operands; None where nothing can be swapped.

    The digits of the first product whose two differ change places; without one, the first term and
    the first other that is added. Value and length stay as they are.
    """
    for match in re.finditer(r"(?=(\d)\*(\d))", prompt):
        left, right = match.groups()
        if left != right:
            return f"{prompt[: match.start()]}{right}*{left}{prompt[match.start() + 3 :]}"
    first, *others = re.findall(r"[+-]?[^+\-=]+", prompt)
    for i, term in enumerate(others):
        if term[0] == "+" and term[1:] != first:
            others[i] = f"+{first}"
            return term[1:] + "".join(others) + "=" * prompt.endswith("=")
    return None


MOST_OPERATORS = 40
_SCRATCH = re.compile(r"((?:\d(?:[+\-*]\d)*>)*)\\boxed\{(\d)\}", re.ASCII)


def scratch_holds(text: str, problem: str | None) -> bool | None:
    """Return whether each step follows from the last by one operation, right modulo 10.

    None if a text is not scratch work alone, steps such as `3-6+0>` and then the box. The first
    step follows from `problem` if that is given. Any operator may be carried out first, so the
    check is no oracle of the answer: the planted rivals pass as the truth does, without slips.
    False also where there is nothing to check.
    """
    match = _SCRATCH.fullmatch(text) if text.endswith("}") else None
    if match is None:
        return None
    shown = [*match[1].split(">")[:-1], match[2]]
    if problem is not None:
        shown.insert(0, problem.strip().removesuffix("="))
    if len(shown) < 2 or len(shown[0]) > 2 * MOST_OPERATORS + 1:
        return False
    return all(
        len(after) + 2 == len(before)
        and any(reduce_once(before, index) == after for index in range(len(before) // 2))
        for before, after in pairwise(shown)
    )


ARITHMETIC = Task(
    prefix="tiny",
    checkpoint=Path(__file__).parent / "checkpoint",
    prompt_tokens=10,  # nine characters and `=`
    response_tokens=22,  # three scratch steps, the box, the end-of-sequence token
    n_questions=10**N_DIGITS * len(OPERATORS) ** (N_DIGITS - 1),
    draw=sample_expression,
    answer=evaluate,
    example=lambda expression, slip_rate, rng: response_text(
        drawn_steps(expression, shares(expression), slip_rate, rng)
    ),
    reworded=reworded,
)
