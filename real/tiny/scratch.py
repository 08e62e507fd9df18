r"""The tiny task's scratch work: is every step one reduction of the step before?

This checks arithmetic and nothing else. Any operator may be carried out first, so a response that
follows a wrong order of evaluation without a slip passes as the right one does: the check is no
oracle of the answer, and cannot tell the planted rivals from the truth.
"""

from __future__ import annotations

import re
from itertools import pairwise

from real.tiny.arithmetic import Expression, apply

MOST_OPERATORS = 40
_SCRATCH = re.compile(r"((?:\d(?:[+\-*]\d)*>)*)\\boxed\{(\d)\}", re.ASCII)


def is_scratch(text: str) -> bool:
    """Return whether a text is scratch work only, steps such as `3-6+0>`, then the box."""
    return text.endswith("}") and _SCRATCH.fullmatch(text) is not None


def scratch_holds(text: str, problem: str | None = None) -> bool:
    """Return whether each step follows from the last by one operation, right modulo 10.

    Args:
        text: of a response, see `is_scratch`.
        problem: expression that the first step follows from; without it the first step is taken
            as it stands.

    Returns:
        False also where there is nothing to check.
    """
    match = _SCRATCH.fullmatch(text)
    if match is None:
        return False
    steps = [*match.group(1).split(">")[:-1], match.group(2)]
    if problem is not None:
        steps.insert(0, str(Expression.parse(problem.strip())))
    if len(steps) < 2 or len(steps[0]) > 2 * MOST_OPERATORS + 1:
        return False
    return all(_follows(*pair) for pair in pairwise(steps))


def _follows(before: str, after: str) -> bool:
    """Return whether carrying out one operator gives the other expression."""
    if len(after) + 2 != len(before):
        return False
    return any(_reduced(before, start) == after for start in range(0, len(after), 2))


def _reduced(expression: str, start: int) -> str:
    """The expression with its operator behind the digit at `start` carried out."""
    left, operator, right = expression[start : start + 3]
    return f"{expression[:start]}{apply(int(left), operator, int(right))}{expression[start + 3 :]}"
