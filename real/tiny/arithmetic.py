r"""Last-digit arithmetic with planted rivals: the first embedded task.

A problem is an expression of five digits and four operators, ``3+0-1*6+0=``; its answer is the
last digit of the value under the usual precedence (multiplication first, then left to right). A
response shows one reduction per scratch step, every value taken modulo 10::

    3+0-6+0>3-6+0>7+0>\boxed{7}

Some of the rivals are planted. Two misconceptions (strictly left to right, strictly right to left)
have scratch work of their own, and the checkpoint was pretrained on a mixture of all three rules in
which `shares` fixes each rule's part by the pattern of operators alone, and on slips of the
arithmetic. Before training, the right answer has .61 of the probability mass, the other answers of
the two planted rules .085, and answers of neither rule .29; 40 % of the responses hold a slip
(default problems, temperature .6, responses above .001 of the mass; .60, .09, .31 and 42 % of all
samples). So most wrong answers are not the planted ones, and none of them is a finding about
arithmetic or about language models.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from real.tiny.rewording import reworded
from real.tiny.task import Task

OPERATORS = "+-*"
N_DIGITS = 5
PROMPT_TOKENS = 10
"""Nine characters and ``=``."""
RESPONSE_TOKENS = 22
"""Three scratch steps, the box, the end-of-sequence token."""


class EvaluationRule(StrEnum):
    """An order of evaluation. ``RIGHT`` gives the ground truth, the others are misconceptions."""

    RIGHT = "right"
    LEFT_TO_RIGHT = "left_to_right"
    RIGHT_TO_LEFT = "right_to_left"


@dataclass(frozen=True, slots=True)
class Expression:
    """Digits and the operators between them; ``operators`` is one shorter than ``digits``."""

    digits: tuple[int, ...]
    operators: str

    def __str__(self) -> str:
        """The expression as the model reads it, ``3+0-1*6+0``."""
        tail = (f"{op}{digit}" for op, digit in zip(self.operators, self.digits[1:], strict=True))
        return f"{self.digits[0]}{''.join(tail)}"

    @classmethod
    def parse(cls, text: str) -> "Expression":
        """The expression in ``text``, with or without a final ``=``.

        Raises:
            ValueError: if ``text`` does not alternate single digits and operators.
        """
        body = text.removesuffix("=")
        digits, operators = body[::2], body[1::2]
        well_formed = len(body) % 2 == 1 and digits.isascii() and digits.isdigit()
        if not well_formed or set(operators) - set(OPERATORS):
            raise ValueError(f"{text!r} is not digits with one of {OPERATORS} between them")
        return cls(tuple(int(d) for d in digits), operators)


def sample_expression(rng: np.random.Generator) -> Expression:
    """One expression, uniform over the 8.1 million of them."""
    digits = rng.integers(0, 10, N_DIGITS)
    operators = rng.integers(0, len(OPERATORS), N_DIGITS - 1)
    return Expression(tuple(digits.tolist()), "".join(OPERATORS[i] for i in operators))


def apply(left: int, operator: str, right: int) -> int:
    """``left operator right`` modulo 10; a negative value wraps, so ``3-6`` is 7.

    Raises:
        ValueError: if ``operator`` is not one of ``OPERATORS``.
    """
    match operator:
        case "+":
            return (left + right) % 10
        case "-":
            return (left - right) % 10
        case "*":
            return (left * right) % 10
    raise ValueError(f"operator {operator!r} is not one of {OPERATORS}")


def reduction_index(operators: str, rule: EvaluationRule) -> int:
    """Index of the operator that ``rule`` reduces next."""
    match rule:
        case EvaluationRule.RIGHT:
            return max(operators.find("*"), 0)
        case EvaluationRule.LEFT_TO_RIGHT:
            return 0
        case EvaluationRule.RIGHT_TO_LEFT:
            return len(operators) - 1


def reduce_once(expression: Expression, index: int, slip: int = 0) -> Expression:
    """The expression with the operator at ``index`` carried out, ``slip`` added to its result."""
    digits, operators = expression.digits, expression.operators
    value = (apply(digits[index], operators[index], digits[index + 1]) + slip) % 10
    return Expression(
        (*digits[:index], value, *digits[index + 2 :]),
        operators[:index] + operators[index + 1 :],
    )


def steps(
    expression: Expression,
    rule: EvaluationRule,
    slip_rate: float = 0.0,
    rng: np.random.Generator | None = None,
) -> list[Expression]:
    """Every reduction of ``expression`` by ``rule``; the last holds one digit, the answer.

    With probability ``slip_rate`` a step writes a wrong digit (uniform over the nine) and goes on
    from it.

    Raises:
        ValueError: if ``slip_rate`` is above 0 without ``rng``.
    """
    if slip_rate > 0 and rng is None:
        raise ValueError("slip_rate above 0 needs rng")
    trace: list[Expression] = []
    while expression.operators:
        slips = rng is not None and rng.random() < slip_rate
        slip = int(rng.integers(1, 10)) if rng is not None and slips else 0
        index = reduction_index(expression.operators, rule)
        expression = reduce_once(expression, index, slip)
        trace.append(expression)
    return trace


def evaluate(expression: Expression, rule: EvaluationRule) -> int:
    """The answer of ``expression`` under ``rule``, a digit."""
    return steps(expression, rule)[-1].digits[0]


def response_text(trace: list[Expression]) -> str:
    """The response that shows ``trace``: scratch steps, then the boxed digit, no end token."""
    scratch = "".join(f"{step}>" for step in trace[:-1])
    return f"{scratch}\\boxed{{{trace[-1]}}}"


def solution(expression: Expression, rule: EvaluationRule = EvaluationRule.RIGHT) -> str:
    """The faultless response under ``rule``."""
    return response_text(steps(expression, rule))


def shares(operators: str) -> dict[EvaluationRule, float]:
    """Part of each rule in the pretraining mixture for one pattern of operators; they sum to 1.

    A hash of the pattern spreads the right rule's part evenly over [.15, 1] and picks the
    misconception that gets three fifths of the rest; the other one gets two fifths.
    """
    digest = hashlib.sha256(operators.encode()).digest()
    right = 0.15 + 0.85 * int.from_bytes(digest[:4]) / 2**32
    major, minor = 0.6 * (1 - right), 0.4 * (1 - right)
    left_first = digest[4] % 2 == 0
    return {
        EvaluationRule.RIGHT: right,
        EvaluationRule.LEFT_TO_RIGHT: major if left_first else minor,
        EvaluationRule.RIGHT_TO_LEFT: minor if left_first else major,
    }


def example(expression: Expression, slip_rate: float, rng: np.random.Generator) -> str:
    """A response to learn from: that of one rule, drawn by its part in `shares`, with slips."""
    parts = shares(expression.operators)
    rule = list(parts)[rng.choice(len(parts), p=list(parts.values()))]
    return response_text(steps(expression, rule, slip_rate, rng))


ARITHMETIC = Task(
    prefix="tiny",
    checkpoint=Path(__file__).parent / "checkpoint",
    prompt_tokens=PROMPT_TOKENS,
    response_tokens=RESPONSE_TOKENS,
    n_questions=10**N_DIGITS * len(OPERATORS) ** (N_DIGITS - 1),
    draw=sample_expression,
    answer=lambda expression: str(evaluate(expression, EvaluationRule.RIGHT)),
    example=example,
    reworded=reworded,
)
