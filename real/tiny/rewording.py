"""Other words for problems of the tiny task: operands change places where the value allows it.

Value and length stay as they are under the usual precedence, while the misconceptions that are
planted in the task often read the two writings differently.
"""

from __future__ import annotations

import re


def reworded(prompt: str) -> str | None:
    """Expression rewritten with swapped operands; None where nothing can be swapped.

    The digits of the first product whose two differ change places; without one, the first term and
    the first other that is added.

    Args:
        prompt: such as `3+0-1*6+0=`.
    """
    body, end = prompt.removesuffix("="), "=" * prompt.endswith("=")
    for match in re.finditer(r"(?=(\d)\*(\d))", body):
        left, right = match.groups()
        if left != right:
            return f"{body[: match.start()]}{right}*{left}{body[match.start() + 3 :]}{end}"
    return _terms_swapped(body, end)


def _terms_swapped(body: str, end: str) -> str | None:
    signs = ["+", *re.findall(r"[+-]", body)]
    terms = re.split(r"[+-]", body)
    for i in range(1, len(terms)):
        if signs[i] == "+" and terms[i] != terms[0]:
            terms[0], terms[i] = terms[i], terms[0]
            signed_terms = zip(signs[1:], terms[1:], strict=True)
            return terms[0] + "".join(sign + term for sign, term in signed_terms) + end
    return None
