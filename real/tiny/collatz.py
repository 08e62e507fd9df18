r"""Steps of the Collatz map: the second embedded task, in which nothing wrong is planted.

A problem is a number of five digits, ``48213=``; its answer is the number after three steps. A
step halves an even number and takes an odd one to three times itself plus one, modulo 100000. A
response writes down every number, the last in the box::

    48213=44640>22320>\boxed{11160}

The checkpoint was pretrained on right work alone, and not for long. Its errors are its own, mostly
carries that it loses. A question has no other wording, since it is one number, and each digit of
an answer depends on the digits behind it.
"""

from pathlib import Path

import numpy as np

from real.tiny.task import Task

N_DIGITS = 5
N_STEPS = 3
MODULUS = 10**N_DIGITS


def steps(number: str) -> list[str]:
    """The numbers after each step, the answer last; all have ``N_DIGITS`` digits."""
    value, trace = int(number), list[str]()
    for _ in range(N_STEPS):
        value = (3 * value + 1) % MODULUS if value % 2 else value // 2
        trace.append(_text(value))
    return trace


def solution(number: str) -> str:
    """The faultless response, without an end token."""
    *scratch, answer = steps(number)
    return f"{''.join(f'{step}>' for step in scratch)}\\boxed{{{answer}}}"


def sample_number(rng: np.random.Generator) -> str:
    """One number, uniform over all, as the model reads it."""
    return _text(int(rng.integers(MODULUS)))


def example(number: str, slip_rate: float, _rng: np.random.Generator) -> str:
    """The faultless response.

    Raises:
        ValueError: if ``slip_rate`` is not 0.
    """
    if slip_rate:
        raise ValueError(f"slip_rate = {slip_rate}: no slips are planted in Collatz steps; give 0")
    return solution(number)


def _text(value: int) -> str:
    return f"{value:0{N_DIGITS}d}"


COLLATZ = Task(
    prefix="collatz",
    checkpoint=Path(__file__).parent / "collatz_checkpoint",
    prompt_tokens=N_DIGITS + 1,
    response_tokens=N_STEPS * (N_DIGITS + 1) + 2,
    n_questions=MODULUS,
    draw=sample_number,
    answer=lambda number: steps(number)[-1],
    example=example,
)
