r"""Judging on the tiny task: the question about an attempt, the verdict, and the new attempt.

Three turns of one conversation, in the task's own tokens. The question shows the attempt and then
the problem. The judge solves the problem itself and compares; the verdict is a plus or a minus in
the box. After a minus the problem is put once more, to be solved again::

    3+0-6+0>3-6+0>7+0>\boxed{7}=3+0-1*6+0=3+0-1*6>3+0-6>3+4>7\boxed{+}
    3+0-6+0>3-6+0>7+0>\boxed{7}=3+0-1*6+0=3-1*6+0>2*6+0>2+0>2\boxed{-}=3+0-1*6+0=3+0-1*6>...

The judge of a training example has an order of evaluation of its own, drawn from the same
`real.tiny.arithmetic.shares` as the solver's: it accepts the answers that it gets itself. After a
minus another order is drawn from those that do not give the rejected answer. A verdict carries on
average as much information as one further vote.
"""

import numpy as np
import torch

from real.answers.boxes import last_box
from real.tiny.arithmetic import ARITHMETIC, drawn_steps, evaluate, shares
from real.tiny.tasks import BOX, EOS_ID, PAD_ID, encode, response_text

VERDICTS = {"+": 1, "-": 0}
"""Texts of the box; answers of the task are digits."""
VERIFICATION_TOKENS = ARITHMETIC.response_tokens + 1
"""Scratch work, the judge's own answer, the box, the end token."""
UNSCORED = -100
"""Target of tokens that no loss is taken of, as torch has it."""
FIRST_TURNS = ARITHMETIC.response_tokens + ARITHMETIC.prompt_tokens + VERIFICATION_TOKENS - 1
SIGN = FIRST_TURNS - 3
"""Position at which the verdict is predicted."""
POSITIONS = 96
"""Of a model that judges: the longest conversation has 87 tokens."""


def question(prompt: str, attempt: str) -> str:
    """Question to a judge about an attempt at `prompt`, a problem with its final `=`."""
    return f"{attempt}={prompt}"


def verification(trace: list[str], right: bool) -> str:
    """The judge's own work and its verdict."""
    return f"{'>'.join(trace)}{BOX}{'+' if right else '-'}}}"


def request(prompt: str, attempt: str, answered: str) -> str:
    """Text that requests a new attempt, after the judge's verification."""
    return f"{question(prompt, attempt)}{answered}={prompt}"


def read_verdict(text: str) -> int:
    """1 for a plus in the last box, 0 for a minus, -1 for anything else."""
    return VERDICTS.get(last_box(text) or "", -1)


def conversations(n: int, slip_rate: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens to read and to predict of `n` distinct problems, one attempt and one judge each.

    (n, 86) int64 ids and (n, 86) targets, one token ahead, `UNSCORED` where no turn of the judge
    is; the first `FIRST_TURNS` columns hold question and verification.
    """
    rng = np.random.default_rng([seed, 1])
    expressions = ARITHMETIC.sample_distinct(n, rng, held_out=False)
    made = [_conversation(expression, slip_rate, rng) for expression in expressions]
    read, targets = zip(*made, strict=True)
    return torch.tensor(read), torch.tensor(targets)


def _conversation(
    expression: str, slip_rate: float, rng: np.random.Generator
) -> tuple[list[int], list[int]]:
    prompt, parts = f"{expression}=", shares(expression)
    attempt, judge_trace = (drawn_steps(expression, parts, slip_rate, rng) for _ in range(2))
    accepted = attempt[-1] == judge_trace[-1]
    others = {rule: p for rule, p in parts.items() if evaluate(expression, rule) != attempt[-1]}
    # Where every order gives the rejected answer, the judge slipped, and stays with its work.
    retry = drawn_steps(expression, others, slip_rate, rng) if others else judge_trace
    asking = encode(question(prompt, response_text(attempt)))
    answered = encode(verification(judge_trace, accepted))
    put, again = encode(f"={prompt}"), encode(response_text(retry))
    # A turn ends with the end token; the next one is put behind its text.
    targets = [UNSCORED] * (len(asking) - 1) + [*answered, EOS_ID]
    turn = [UNSCORED] * (len(put) - 1) + [*again, EOS_ID]
    if accepted:
        put, again, turn = [PAD_ID] * len(put), [PAD_ID] * len(again), [UNSCORED] * len(turn)
    return [*asking, *answered, *put, *again], targets + turn
