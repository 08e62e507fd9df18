"""A calculator's verdict on responses: do their arithmetic claims hold?

A response is confirmed if at least one of its claims could be checked and all that could be checked
hold exactly; `1/3 = 0.33` does not. So a confirmed response may still be wrong, and one without
arithmetic is never confirmed. Nothing that a model wrote is executed.

Claims are `3 + 4 = 7` or chains `a = b = c`, plain or in LaTeX. A text is cut into runs of
numbers, operators and brackets; anything else ends a run. A side that touches something which may
belong to it (`2x`, `f(3)`, `5!`, `4 apples - 1`) is not read: a claim is passed over rather than
misread.

An expression is read token by token into fractions. Every quantity is bounded (tokens, digits,
exponents, size of values), so no clock is needed, and a text has one value everywhere.

    sum     = product { (+ | -) product }
    product = signed { (* | /) signed | group }        a group right behind: multiplied
    signed  = { + | - } power
    power   = atom [ ^ signed ]
    atom    = number | group | frac group group
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import pairwise, takewhile

import numpy as np
from numpy.typing import NDArray

from real.tiny.arithmetic import is_expression, scratch_holds

MOST_TOKENS = 200
MOST_DIGITS = 40
MOST_BITS = 2048
_Number = int | Fraction
"""A whole number that came about without division is an int, with which Python is much faster."""
_OPEN, _CLOSE, _OPERATORS = "([{", ")]}", "+-*/^"


class Uncheckable(Exception):
    """The tokens are no expression of this grammar, or one beyond its limits."""


class _Reader:
    """Recursive descent; each method reads what it is named after."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.left = [*reversed(tokens)]

    def sum(self) -> _Number:
        value = self.product()
        while operator := self._take("+-"):
            other = self.product()
            value = _bounded(value + other if operator == "+" else value - other)
        return value

    def product(self) -> _Number:
        value, divided = self.signed(), False
        while self.left and self.left[-1] in "*/" + _OPEN:
            operator = self._take("*/")
            if divided and not operator:  # 1/2(3): readers disagree
                raise Uncheckable
            other = self.signed() if operator else self.power()
            value = _bounded(Fraction(value) / other if operator == "/" else value * other)
            divided |= operator == "/"
        return value

    def signed(self) -> _Number:
        sign = 1
        while operator := self._take("+-"):
            sign = -sign if operator == "-" else sign
        return sign * self.power()

    def power(self) -> _Number:
        base = self.atom()
        return _power(base, self.signed()) if self._take("^") else base

    def atom(self) -> _Number:
        if self.left and _is_number(self.left[-1]):
            number = self.left.pop()
            if len(number) > MOST_DIGITS:
                raise Uncheckable
            return Fraction(number) if "." in number else int(number)
        if self._take([_FRAC]):
            above, below = self._group("{"), self._group("{")
            return _bounded(Fraction(above) / below)
        return self._group(_OPEN)

    def _group(self, openings: str) -> _Number:
        opening = self._take(openings)
        if not opening:
            raise Uncheckable
        value = self.sum()
        if not self._take(_CLOSE[_OPEN.index(opening)]):
            raise Uncheckable
        return value

    def _take(self, tokens: Container[str]) -> str:
        """The next token if it is one of these, which is thereby read; else nothing."""
        return self.left.pop() if self.left and self.left[-1] in tokens else ""


def _is_number(token: str) -> bool:
    return token[-1].isdecimal()


def _power(base: _Number, exponent: _Number) -> _Number:
    if exponent.denominator != 1 or (base == 0 and exponent <= 0):
        raise Uncheckable
    bits = base.numerator.bit_length() + base.denominator.bit_length()
    if abs(exponent.numerator) * bits > MOST_BITS:
        raise Uncheckable
    return (base if exponent >= 0 else Fraction(base)) ** exponent.numerator


def _bounded(number: _Number) -> _Number:
    if number.numerator.bit_length() + number.denominator.bit_length() > MOST_BITS:
        raise Uncheckable
    return number


MOST_CHARACTERS = 20_000
"""Of a longer text this much is read."""

_LEXER = re.compile(
    r"""
      (?P<item>    ^[^\S\n]*\d{1,3}[.)][^\S\n]+ )
    | (?P<dangling> ^[^\S\n]*(?:[-+*/\u2022\u00d7\u00b7\u00f7\u2212] | \\(?:times|cdot|div)\b) )
    | (?P<number>  \d{1,3}(?:(?:,|\{,\}|\\[,!])\d{3})+(?![\d,]) | \d+(?:\.\d+)? | (?<!\w)\.\d+ )
    | (?P<space>   [^\S\n]+ | \\[,;! $] | \\(?:left|right|displaystyle|boxed)(?![A-Za-z]) | &
                 | (?:\\\\|\n)\s*(?=&?\s*=(?!=)) )
    | (?P<frac>    \\[dtc]?frac(?![A-Za-z]) )
    | (?P<end>     \n | \\\\ | \$ | \\[()\[\]]
                 | [=-]> | [\u2192\u21d2\u27f9] | [<>!:]= | [<>\u2248\u2260\u2261\u2264\u2265]
                 | \\(?:approx|equiv|neq?|leq?|geq?|lt|gt|implies|Rightarrow|text|q?quad|therefore)
                   (?![A-Za-z])
                 | [.,;:](?=\s|$) )
    | (?P<word>    [^\W\d_]\w* )
    | (?P<operator> \*\*? | [+\-/^\u00d7\u00b7\u22c5\u2217\u00f7\u2212]
                 | \\(?:times|cdot|ast|div)(?![A-Za-z]) )
    | (?P<open>    [(\[{] )
    | (?P<close>   [)\]}] )
    | (?P<equal>   ==? )
    | (?P<other>   \\[A-Za-z]+ | . )
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
_FRAC = "frac"
_SAME = {"**": "^", "==": "=", "\\div": "/", "\u00f7": "/", "\u2212": "-"}
_SAME |= dict.fromkeys(["\\times", "\\cdot", "\\ast", "\u00d7", "\u00b7", "\u22c5", "\u2217"], "*")
_OF_RUNS = {"number", "frac", "operator", "open", "close", "equal"}
_OF_SUMS = re.compile(
    "log|ln|lg|sin|cos|tan|cot|sec|csc|sqrt|root|mod|modulo|gcd|lcm|max|min|exp|floor|ceil|round|"
    "abs|det|of|times|plus|minus|over|by|div|divided|multiplied|choose|base|percent|factorial|"
    "squared|cubed|than|from|dozen|hundred|thousand|million|billion|remainder",
    re.IGNORECASE,
)
"""Words that make something else of the numbers next to them."""
_MOST_UNITS = 2
"""So many words may stand between a number and an operator on it: 3 red apples + 4 red apples."""


@dataclass(slots=True)
class _Run:
    starts_free: bool
    """Nothing before the run can belong to its first expression."""
    ends_free: bool = True
    tokens: list[str] = field(default_factory=list[str])
    """Numbers of digits and a point, `_OPERATORS`, brackets, `_FRAC` and `=`."""


def claims(text: str) -> Iterator[tuple[Fraction, Fraction]]:
    """Both sides of a text's claims that can be checked: one has something to compute."""
    if "=" not in text:
        return
    for run in _runs(text[:MOST_CHARACTERS]):
        if "=" not in run.tokens:
            continue
        for (left, computes), (right, also) in pairwise(map(_read, _sides(run))):
            if left is not None and right is not None and (computes or also):
                yield left, right


def _runs(text: str) -> list[_Run]:
    runs: list[_Run] = []
    inside, last, words = False, None, 0
    for match in _LEXER.finditer(text):
        kind = match.lastgroup or ""
        if kind in _OF_RUNS:
            if not inside:
                free = last is None or _is_apart(text, last, before=False)
                if last is not None and last.lastgroup == "word" and kind == "operator":
                    free = False
                    if runs and words <= _MOST_UNITS:
                        runs[-1].ends_free = False
                runs.append(_Run(free))
            runs[-1].tokens.append(_token(kind, match[0]))
            inside = True
        elif kind != "space":
            if inside:
                runs[-1].ends_free = _is_apart(text, match, before=True)
                words = 0
            words = words + 1 if kind == "word" else _MOST_UNITS
            inside, last = False, match
    if inside and len(text) == MOST_CHARACTERS:  # what was cut off may belong to it
        runs[-1].ends_free = False
    return runs


def _is_apart(text: str, match: re.Match[str], before: bool) -> bool:
    """Return whether neighbouring text is separate from a run, as a word behind a space."""
    if match.lastgroup in ("end", "item"):
        return True
    word = match.group()
    if match.lastgroup != "word" or len(word) < 2 or _OF_SUMS.fullmatch(word):
        return False
    near = text[match.start() - 1 : match.start()] if before else text[match.end() :][:1]
    return near.isspace()


def _token(kind: str, text: str) -> str:
    if kind == "number" and not text.isdecimal():
        return re.sub(r"[^\d.]", "", text)
    return _FRAC if kind == "frac" else _SAME.get(text, text)


def _sides(run: _Run) -> Iterator[list[str]]:
    """Expressions between the equal signs; empty where one is not to be read."""
    equals = (i for i, token in enumerate(run.tokens) if token == "=")
    cuts = [-1, *equals, len(run.tokens)]
    sides = [run.tokens[start + 1 : end] for start, end in pairwise(cuts)]
    # The brackets of a remark: (as 3 + 4 = 7).
    sides[0] = _without_excess(sides[0], _OPEN, _CLOSE)
    sides[-1] = _without_excess(sides[-1][::-1], _CLOSE, _OPEN)[::-1]
    for i, side in enumerate(sides):
        torn = (i == 0 and not run.starts_free) or (side is sides[-1] and not run.ends_free)
        yield [] if torn or len(side) > MOST_TOKENS else side


def _without_excess(tokens: list[str], brackets: str, partners: str) -> list[str]:
    """The tokens without brackets at the beginning that have no partner."""
    leading = len([*takewhile(brackets.__contains__, tokens)])
    excess = sum((token in brackets) - (token in partners) for token in tokens)
    return tokens[max(0, min(leading, excess)) :]


def _read(tokens: list[str]) -> tuple[Fraction | None, bool]:
    """Value of a side, None if it is no expression, and whether it has something to compute."""
    if not tokens:
        return None, False
    unsigned = tokens[1:] if tokens[0] == "-" else tokens
    computes = any(token in (*_OPERATORS, _FRAC) for token in unsigned)
    computes |= sum(map(_is_number, tokens)) > 1
    reader = _Reader(tokens)
    try:
        number = reader.sum()
    except (Uncheckable, ZeroDivisionError, RecursionError):
        return None, computes
    return None if reader.left else Fraction(number), computes


def tool_verdicts(texts: Sequence[str], problem: str | None = None) -> NDArray[np.bool_]:
    """Return (n,) which responses a calculator confirms; scratch work starts at the problem."""
    start = problem if problem is not None and is_expression(problem.strip()) else None

    @cache
    def is_confirmed(text: str) -> bool:
        held = scratch_holds(text, start)
        verdicts = [left == right for left, right in claims(text)] if held is None else [held]
        return bool(verdicts) and all(verdicts)

    return np.array([is_confirmed(text.strip()) for text in texts], dtype=bool)
