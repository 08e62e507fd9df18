r"""Where a response gives its answer: the last `\boxed`, or its last number."""

from __future__ import annotations

import re
from typing import Literal

Extract = Literal["strict", "flexible"]
"""An answer is the last box, or else also the last number."""

# One or two backslashes: models sometimes escape their LaTeX once more. Fixed repeat counts keep
# every attempt at a match constant in time, hence the whole scan linear.
_BRACES = re.compile(
    r"\\{1,2}(?:boxed|fbox)(?:\s{0,8}(?P<open>\{)|(?![A-Za-z])\s{0,8}(?P<bare>[0-9A-Za-z]|\\[A-Za-z]{1,20}))"
    r"|\\[\\{}]|[{}]"
)
_ARGUMENTS = re.compile(r"\s{0,8}(?:\{[^{}]{0,200}\}|[0-9A-Za-z])")
_N_ARGUMENTS = {
    "frac": 2,
    "dfrac": 2,
    "tfrac": 2,
    "binom": 2,
    "sqrt": 1,
    "text": 1,
    "mathrm": 1,
    "mathbf": 1,
}


def last_box(text: str) -> str | None:
    r"""Content of the last `\boxed{...}` or `\fbox{...}` that holds something; None without a box.

    "Last" is the box that opens last among those that close, so of nested boxes it is the inner
    one; where all boxes are empty, the content is. `\boxed 5` and `\boxed\frac12` hold one digit,
    letter or command, as TeX reads them. Boxes that never close and escaped braces (`\{`) are
    passed over. Linear in the text.

    Several boxes of one sentence are no list: the last counts, as in TTRL's grader and in verl's
    `last_boxed_only_string`. math-verify joins boxes with a comma where fewer than ten characters
    stand between them; a response that boxes its steps would then have all of them as its answer.
    """
    if "box" not in text:
        return None
    best, end = -1, -1
    open_braces: list[int] = []  # where a box's content starts; -1 for an ordinary brace
    for match in _BRACES.finditer(text):
        token = match.group()
        if token == "{":
            open_braces.append(-1)
        elif token == "}":
            start = open_braces.pop() if open_braces else -1
            if start > best and (best < 0 or text[start : match.start()].strip(" \n$")):
                best, end = start, match.start()
        elif match["open"]:
            open_braces.append(match.end())
        elif match["bare"]:
            best, end = match.start("bare"), match.end()
            for _ in range(_N_ARGUMENTS.get(match["bare"].lstrip("\\"), 0)):
                argument = _ARGUMENTS.match(text, end)
                end = end if argument is None else argument.end()
    return None if best < 0 else text[best:end]


_NUMBER = re.compile(r"-?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")


def last_number(text: str) -> str | None:
    """Return the last number, as `flexible-extract` of lm-evaluation-harness; None without one."""
    found = _NUMBER.findall(text)
    return found[-1].rstrip(",") if found else None
