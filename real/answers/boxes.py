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
_LOOKS = TEXTS | {name for name, new in REWRITTEN.items() if new in ("", r"\ldots")}
_BLANKS = "|".join(sorted(_LOOKS | {"ldots", "quad", "qquad", "square", "Box"}))
_TOKEN = re.compile(
    rf"""\\{{1,2}}(?:boxed|fbox)(?:\s{{0,8}}(?P<box>\{{)|(?![A-Za-z])\s{{0,8}}(?P<bare>
        \\[dt]?frac(?![A-Za-z]){_ARGUMENT}{{0,2}}|\\(?:sqrt|text|math[a-z]{{2}})(?![A-Za-z])
        {_ARGUMENT}?|\\[A-Za-z]{{1,20}}|[0-9A-Za-z]))
    |(?P<blank>\\(?:{WITH_ARGUMENT})\s{{0,8}}\{{[^{{}}]{{0,200}}\}}|\\(?:{_BLANKS})(?![A-Za-z])
        |\\(?:\\|(?![{{}}]))|[\s$~.,:;!?_\u2026\u25a1]
        |[<(\[]?\b(?i:your|the|final|answer|here)\b[>)\]]?|\u7b54\u6848)
    |(?P<open>\{{)|(?P<close>\}})|(?P<filled>(?:\\[{{}}]|.)[^\\{{}}]*)""",
    re.VERBOSE | re.DOTALL,
)
"""Boxes, braces, and what fills a box or is a blank: a request's dots, and words for the answer."""


def last_box(text: str) -> str | None:
    r"""Content of the last `\boxed{...}` or `\fbox{...}` that holds something; None without a box.

    "Last" is the box that opens last among those that close, so of nested boxes it is the inner
    one, unless that is empty. Blanks, dots and "your answer" are nothing, as base models repeat the
    request for a box; where all boxes hold nothing, the result is empty. `\boxed 5` and
    `\boxed\frac12` hold one digit, letter or command, as TeX reads them. Boxes that never close and
    escaped braces (`\{`) are passed over. Linear in the text.

    Several boxes of one sentence are no list: the last counts, as in TTRL's grader and in verl's
    `last_boxed_only_string`. math-verify joins boxes that are less than ten characters apart.
    """
    best = (False, -1, -1)  # whether a box holds something; where its content starts and ends
    filled = -1
    open_braces: list[int] = []  # where a box's content starts; -1 for an ordinary brace
    for match in _TOKEN.finditer(text, max(0, text.find("box") - 2)) if "box" in text else ():
        kind, start, end = match.lastgroup, match.start(), match.end()
        if kind in ("box", "open"):
            open_braces.append(end if kind == "box" else -1)
        elif kind == "close":
            content = open_braces.pop() if open_braces else -1
            if content >= 0:
                best = max(best, (filled >= content, content, start))
        elif kind == "bare":
            filled, best = start, (True, *match.span("bare"))
        elif kind == "filled":
            filled = start
    holds, start, end = best
    return None if start < 0 else text[start:end] if holds else ""


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
