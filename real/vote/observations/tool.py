r"""What a calculator says of responses: do their arithmetic claims hold?

Nothing that a model wrote is executed. A response is confirmed if at least one claim of it could
be checked and all that could be checked hold exactly; `1/3 = 0.33` does not hold. Claims that the
grammar cannot read are passed over, so a confirmed response may still be wrong, and one without
arithmetic is never confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from real.tiny.task import Expression
from real.vote.observations.claims import claims
from real.vote.observations.scratch import is_scratch, scratch_holds


def tool_verdicts(texts: Sequence[str], problem: str | None = None) -> NDArray[np.bool_]:
    """Which responses a calculator confirms.

    Args:
        texts: (n,) responses; equal ones are looked at once.
        problem: that they all answer. Only scratch work of the tiny task is held against it, see
            `real.vote.observations.scratch`.

    Returns:
        (n,) bool.
    """
    start = problem if problem is not None and _is_expression(problem) else None
    verdict_of = {text: _holds(text, start) for text in dict.fromkeys(texts)}
    return np.array([verdict_of[text] for text in texts], dtype=bool)


def _holds(text: str, problem: str | None) -> bool:
    text = text.strip()
    if is_scratch(text):
        return scratch_holds(text, problem)
    found = False
    for claim in claims(text):
        if not claim.holds:
            return False
        found = True
    return found


def _is_expression(text: str) -> bool:
    try:
        Expression.parse(text.strip())
    except ValueError:
        return False
    return True
