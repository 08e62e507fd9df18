r"""Where a response gives its answer: the last `\boxed`, or its last number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from real.answers.notation import REWRITTEN, TEXTS, WITH_ARGUMENT

Extract = Literal["strict", "flexible"]
"""An answer is the last box, or else also the last number."""

# One or two backslashes: models sometimes escape their LaTeX once more. Fixed repeat counts keep
# every attempt at a match constant in time, hence the whole scan linear.
_ARGUMENT = r"(?:\s{0,8}(?:\{[^{}]{0,200}\}|[0-9A-Za-z]))"
_BARE = (
    rf"\\[dt]?frac(?![A-Za-z]){_ARGUMENT}{{0,2}}|\\(?:sqrt|text|math[a-z]{{2}})(?![A-Za-z])"
    rf"{_ARGUMENT}?|\\[A-Za-z]{{1,20}}|[0-9A-Za-z]"
)
_BRACES = re.compile(
    rf"\\{{1,2}}(?:boxed|fbox)(?:\s{{0,8}}(?P<open>\{{)|(?![A-Za-z])\s{{0,8}}(?P<bare>{_BARE}))"
    rf"|\\(?:{WITH_ARGUMENT})\s{{0,8}}\{{[^{{}}]{{0,200}}\}}|\\[\\{{}}]|[{{}}]"
)
_LOOKS = TEXTS | {name for name, new in REWRITTEN.items() if new in ("", r"\ldots")}
_BLANKS = "|".join(sorted(_LOOKS | {"ldots", "quad", "qquad", "square", "Box"}))
_NOTHING = re.compile(
    rf"(?:\\(?:{_BLANKS})(?![A-Za-z])|[\s$~.,;:!?\\_\u2026\u25a1]"
    r"|[<(\[]?\b(?i:your|the|final|answer|here)\b[>)\]]?|\u7b54\u6848)*+"
)
"""What a request leaves in a box that is to be filled: blanks, and words for the answer."""


def last_box(text: str) -> str | None:
    r"""Content of the last `\boxed{...}` or `\fbox{...}` that holds something; None without a box.

    "Last" is the box that opens last among those that close, so of nested boxes it is the inner
    one, unless that is empty. Blanks, dots and "your answer" are nothing, as base models repeat the
    request for a box; where all boxes hold nothing, the result is empty. `\boxed 5` and
    `\boxed\frac12` hold one digit, letter or command, as TeX reads them. Boxes that never close and
    escaped braces (`\{`) are passed over. Linear in the text.

    Several boxes of one sentence are no list: the last counts, as in TTRL's grader and in verl's
    `last_boxed_only_string`. math-verify joins boxes with a comma where fewer than ten characters
    stand between them; a response that boxes its steps would then have all of them as its answer.
    """
    if "box" not in text:
        return None
    best, end, holds = -1, -1, False
    filled = read = 0  # where something stood last, outside of braces; where the last token ended
    open_braces: list[int] = []  # where a box's content starts; -1 for an ordinary brace
    for match in _BRACES.finditer(text):
        token, position = match.group(), match.start()
        is_sign = token in (r"\{", r"\}")
        if is_sign or match["bare"] or not _NOTHING.fullmatch(text, read, position):
            filled = position
        read = match.end()
        if match["open"] or token == "{":
            open_braces.append(read if match["open"] else -1)
        elif token == "}":
            start = open_braces.pop() if open_braces else -1
            if start >= 0 and (best < 0 or (filled >= start and (start > best or not holds))):
                best, end, holds = start, position, filled >= start
        elif match["bare"]:
            best, end, holds = match.start("bare"), read, True
    return None if best < 0 else text[best:end] if holds else ""


_TIMES = re.compile(r"\\(?:times|cdot)(?![A-Za-z])|[\u00d7\u00b7\u22c5\u2217]")
_DRESS = re.compile(r"\\(?:left|right)(?![A-Za-z])|[dt](?=frac)|[^\w+*/^!-]")
_FORMULA = re.compile(r"\w[-+*^!]")


def repeats(question: str, responses: Sequence[str]) -> int:
    """Number of responses whose last box holds a formula of the question: 80*5 of "80 * 5 = ?".

    It equals its value, so that it is rewarded like the value without being computed. A fraction
    counts as a value.
    """
    boxes = (last_box(response) or "" for response in responses)
    question, *formulas = (_DRESS.sub("", _TIMES.sub("*", text)) for text in (question, *boxes))
    return sum(_FORMULA.search(formula) is not None and formula in question for formula in formulas)


_NUMBER = re.compile(r"-?\$?(?:\d[\d,]*(?:\.\d+)*|\.\d+)")


def last_number(text: str) -> str | None:
    """Return the last number, as `flexible-extract` of lm-evaluation-harness; None without one."""
    numbers = _NUMBER.findall(text)
    return numbers[-1].rstrip(",") if numbers else None
