r"""Select the scalars that may reach the checker, without evaluating anything.

Only what looks like a short formula passes: known commands, one- or two-letter products, numbers
and powers of moderate size. Everything else is compared as a string, which costs nothing and is
never wrong about a merge. What passes and still takes too long is stopped by the checker's limits.
"""

from __future__ import annotations

import math
import re

MAX_FORMULA = 200
"""Characters."""
MAX_POWER = 10_000
"""Bound on what exponents amount to, hence on the digits of the numbers that they make."""

_FUNCTIONS = (
    "frac|sqrt|cdot|log|ln|exp|binom|lfloor|rfloor|lceil|rceil"
    "|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh"
)
_LETTERS = (
    "pi|alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau"
    "|phi|varphi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega"
)
_FORMULA = re.compile(
    rf"(?:\\(?:{_FUNCTIONS}|{_LETTERS})(?![A-Za-z])|[0-9A-HJ-Za-z+\-/^_(){{}}.|!=\[\] ])+"
)
_COMMAND = re.compile(r"\\[A-Za-z]+")
_UNCLEAR = re.compile(
    # One letter, a word, `q1`, `52_8`, `2^10`, `2^3^4`, runs of signs, and `1/2x`: half of x or
    # one over 2x.
    r"^[A-Za-z]$|[A-Za-z]{3}|[A-Za-z)}@]\d|[\d)]_|\^\d\d|\^[^{(]\^|[+*-]{3}|\*\*|\|\||\}\^.\^"
    r"|/(?:\d+|[A-Za-z@]|\\ ?(?:\{[^{}]*\})?)[A-Za-z@(\\]"
)
_NUMBER = re.compile(r"\d+")
_POWER = re.compile(r"\^.")
_MAX_DIGITS, _MAX_COUNTED, _MAX_CALLS = 40, 170, 3
_MAX_ROUND, _MAX_CURLY = 4, 8
"""Depths of brackets: the parser's time grows with them, to half a second for ten parentheses."""
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def formula(text: str) -> str | None:
    r"""A canonical scalar as the checker reads it.

    `i` becomes the imaginary unit `I`, and `\log_23` gets the braces that LaTeX implies.

    Returns:
        The formula; None for what must not reach the checker.
    """
    if len(text) > MAX_FORMULA or not _FORMULA.fullmatch(text) or text.count("=") > 1:
        return None
    if _UNCLEAR.search(_COMMAND.sub(_mark, text)) or not _is_small(text):
        return None
    text = re.sub(r"_(\w)", r"_{\1}", text)
    return re.sub(r"\\[A-Za-z]+|i", lambda m: "I" if m[0] == "i" else m[0], text)


def _mark(command: re.Match[str]) -> str:
    """One character for a command, so that its letters are not taken for a word."""
    if command[0] == r"\cdot":
        return "*"
    return "@" if re.fullmatch(_LETTERS, command[0][1:]) else "\\"


def _is_small(text: str) -> bool:
    """No power tower, no huge power or factorial, no long number, no deep parentheses."""
    numbers = _NUMBER.findall(text)
    if any(len(number) > _MAX_DIGITS for number in numbers) or not _is_flat(text):
        return False
    if "!" in text or r"\binom" in text:
        few = text.count("!") + text.count(r"\binom") <= _MAX_CALLS
        largest = max(map(int, numbers), default=0)
        if not few or largest > _MAX_COUNTED or "^" in text or re.search(r"!\W*!", text):
            return False
    return _power(text) <= MAX_POWER


def _power(text: str) -> int:
    """Largest power that the text can amount to; beyond `MAX_POWER` for a tower of numbers."""
    largest, product = 1, 1
    for match in _POWER.finditer(text):
        exponent = _group(text, match.end()) if match[0][1] in _CLOSING else match[0][1:]
        if "^" in exponent and not re.search("[a-z]", _COMMAND.sub("", exponent)):
            return MAX_POWER + 1
        power = math.prod(min(int(n), MAX_POWER + 1) or 1 for n in _NUMBER.findall(exponent)[:9])
        if text[match.start() - 1] in ")}]":  # of a group, which can hold powers itself
            product = min(product * power, MAX_POWER + 1)
        largest = max(largest, power)
    return largest * product


def _is_flat(text: str) -> bool:
    """Brackets match and are not deep."""
    waiting: list[str] = []
    for character in text:
        if character in _CLOSING:
            waiting.append(_CLOSING[character])
            curly = waiting.count("}")
            if curly > _MAX_CURLY or len(waiting) - curly > _MAX_ROUND:
                return False
        elif character in ")]}" and (not waiting or waiting.pop() != character):
            return False
    return not waiting


def _group(text: str, start: int) -> str:
    """From `start` to the bracket that closes there, or to the end."""
    depth = 1
    for i in range(start, len(text)):
        depth += (text[i] in _CLOSING) - (text[i] in ")]}")
        if depth == 0:
            return text[start:i]
    return text[start:]
