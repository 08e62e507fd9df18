"""Exact values of small arithmetic expressions, by a grammar of their own.

Nothing is executed: an expression is read token by token into fractions. Every quantity is
bounded (tokens, depth, digits, exponents, size of values), so the work is bounded too, whatever a
model writes; no clock is needed, and the same text gives the same value everywhere.

    sum     = product { (+ | -) product }
    product = signed { (* | /) signed | group }        a group right behind: multiplied
    signed  = { + | - } power
    power   = atom [ ^ signed ]
    atom    = number | group | frac group group
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

MOST_TOKENS = 200
MOST_DEPTH = 20
MOST_DIGITS = 40
MOST_BITS = 2048
"""Of a value's numerator and denominator together."""
_Number = int | Fraction
"""A whole number that came about without division is an int, with which Python is much faster."""
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class Token(NamedTuple):
    """A piece of an expression."""

    kind: str
    """`number`, `operator` (one of + - * / ^), `open`, `close` or `frac`."""
    text: str


class Uncheckable(Exception):
    """The tokens are no expression of this grammar, or one beyond its limits."""


def value(tokens: Sequence[Token]) -> Fraction | None:
    """Value of an expression; None where it is none, divides by zero or exceeds a limit."""
    if not 0 < len(tokens) <= MOST_TOKENS:
        return None
    reader = _Reader(tokens)
    try:
        number = reader.sum()
    except (Uncheckable, ZeroDivisionError):
        return None
    return Fraction(number) if reader.position == len(tokens) else None


class _Reader:
    """Recursive descent; each method reads what it is named after."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens, self.position, self.depth = tokens, 0, 0

    def sum(self) -> _Number:
        value = self.product()
        while operator := self._take("operator", "+-"):
            other = self.product()
            value = _bounded(value + other if operator == "+" else value - other)
        return value

    def product(self) -> _Number:
        value, divided = self.signed(), False
        while True:
            if operator := self._take("operator", "*/"):
                other = self.signed()
                value = _bounded(value * other if operator == "*" else Fraction(value) / other)
                divided |= operator == "/"
            elif self._next("open"):
                if divided:  # 1/2(3): readers disagree
                    raise Uncheckable
                value = _bounded(value * self.power())
            else:
                return value

    def signed(self) -> _Number:
        sign = 1
        while operator := self._take("operator", "+-"):
            sign = -sign if operator == "-" else sign
        return sign * self.power()

    def power(self) -> _Number:
        base = self.atom()
        if not self._take("operator", "^"):
            return base
        self._descend()
        exponent = self.signed()
        self.depth -= 1
        return _power(base, exponent)

    def atom(self) -> _Number:
        if self._next("number"):
            return _number(self._advance().text)
        if self._take("frac", "frac"):
            above, below = self._group("{"), self._group("{")
            return _bounded(Fraction(above) / below)
        return self._group("([{")

    def _group(self, openings: str) -> _Number:
        opening = self._take("open", openings)
        if not opening:
            raise Uncheckable
        self._descend()
        value = self.sum()
        self.depth -= 1
        if not self._take("close", _CLOSING[opening]):
            raise Uncheckable
        return value

    def _descend(self) -> None:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise Uncheckable

    def _next(self, kind: str) -> bool:
        return self.position < len(self.tokens) and self.tokens[self.position].kind == kind

    def _take(self, kind: str, texts: str) -> str:
        """The next token's text if it is one of those, else nothing."""
        if self._next(kind) and self.tokens[self.position].text in texts:
            return self._advance().text
        return ""

    def _advance(self) -> Token:
        self.position += 1
        return self.tokens[self.position - 1]


def _number(text: str) -> _Number:
    if len(text) > MOST_DIGITS:
        raise Uncheckable
    return Fraction(text) if "." in text else int(text)


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
