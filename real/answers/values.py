"""Values of formulas: exact fractions where they can be, else 120 digits.

Nothing here measures time. What would take long has too many bits or too large an exponent, and is
refused, so the same formula has the same value, or none, on every machine.
"""

from __future__ import annotations

import hashlib
import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import reduce
from typing import Any

import mpmath

from real.answers.reader import Node, write


class NoValueError(ValueError):
    """The node is no scalar formula, or has no finite value there."""


class LimitError(NoValueError):
    """The value would have more bits than `MAX_BITS`, or more digits would be needed."""


MAX_BITS = 20_000
"""Of numerator and denominator of an exact value, and of the exponent of another one."""
_PRECISION = 400
_LOST = 250
"""Bits of a sum's larger part that its smaller part, or its difference, may lie below it."""
_KEY_DIGITS = 30
_SNAP_BITS = 120
_MAX_FACTORIAL = 2_000
_MAX_DEGREE = 1_000
"""Of a root; letters stand for fractions with a larger denominator."""

_context: Any = mpmath.MPContext()
_context.prec = _PRECISION
Value = Any
"""A `Fraction`, or a real or complex number of `_context`."""

_NUMBER = re.compile(r"(\d+)(?:\.(\d*)\\overline\{(\d+)\}|(?:\.\d+)?(?:e-?\d+)?)")
_CONSTANTS: dict[str, Callable[[], Value]] = {
    r"\pi": lambda: +_context.pi,
    "e": lambda: _context.exp(1),
    "i": lambda: _context.mpc(0, 1),
}
_NO_LETTERS = re.compile(
    r"\\(infty|emptyset|ldots|angle|triangle|circ|mathbb.*|[a-z]{2,3}|log|\w+h)?"
)
_GREEK = frozenset(r"\xi \mu \nu \eta \chi \phi \psi \rho \tau".split())
_SCALARS = frozenset(
    [
        "num",
        "neg",
        "sum",
        "prod",
        "div",
        "mixed",
        "pow",
        "root",
        "binom",
        "func",
        "post",
        "()",
        "[]",
    ]
    + [r"\{\}", "||", r"\lfloor\rfloor", r"\lceil\rceil"]
)


def number(text: str) -> Fraction:
    r"""The value of a `num` node: digits, perhaps with a period or a power of ten."""
    match = _NUMBER.fullmatch(text)
    assert match is not None
    whole, lead, period = match.groups()
    if not period:
        return Fraction(text)
    tail = int(lead or "0") + Fraction(int(period), 10 ** len(period) - 1)
    return int(whole) + tail / 10 ** len(lead)


def letters(node: Node) -> frozenset[str]:
    """The names in a scalar formula that have no value of their own; NoValueError if it is none."""
    kind, text, parts = node
    if kind == "name":
        if text in _CONSTANTS:
            return frozenset()
        if text[0] == "\\" and text not in _GREEK and _NO_LETTERS.fullmatch(text):
            raise NoValueError
        return frozenset((text,))
    if kind == "sub" or (kind == "post" and text[0] == "'") or (kind == "cmd" and text in _MARKS):
        if not letters(parts[0]) or parts[0].kind in ("prod", "sum", "pow"):
            raise NoValueError
        return frozenset((write(node),))
    if kind == "prod" and _is_ordered(parts):
        raise NoValueError
    if kind == "env" and text == "vmatrix":
        parts = tuple(cell for row in parts for cell in row.parts)
    elif kind not in _SCALARS or (kind not in _MANY and len(parts) != 1) or text == "%":
        raise NoValueError
    return frozenset().union(*map(letters, parts))


_MARKS = frozenset((r"\vec", r"\hat", r"\tilde"))
_MANY = frozenset("num sum prod div mixed pow root binom func".split())


def _is_ordered(factors: tuple[Node, ...]) -> bool:
    """`f(2)`, which is no product, and `AB`, which may be one of matrices or no product at all."""
    pairs = zip(factors, factors[1:], strict=False)
    return all(node.kind == "name" and node.text.isupper() for node in factors) or any(
        left.text in ("f", "g", "h") and right.kind == "()" for left, right in pairs
    )


SALTS = range(4)


def point(names: Iterable[str], salt: int) -> dict[str, Value]:
    """Fixed values of letters, one for each of `SALTS`: positive, and of mixed signs."""
    return {
        name: Fraction(300 + zlib.crc32(f"{name} {salt}".encode()) % 3001, 1009)
        * (-1 if (0, ord(name[-1]), ~ord(name[-1]), ord(name[-1]) >> 1)[salt] & 1 else 1)
        for name in names
    }


def value(node: Node, at: Mapping[str, Value]) -> Value:
    """The value where letters have values; NoValueError where it has none."""
    try:
        found = _value(node, at)
    except (ArithmeticError, ValueError, TypeError, mpmath.libmp.NoConvergence) as error:
        if isinstance(error, NoValueError):
            raise
        raise NoValueError from error
    return snapped(found)


def _value(node: Node, at: Mapping[str, Value]) -> Value:
    kind, text, parts = node
    if kind == "num":
        return number(text)
    if kind in ("name", "sub", "cmd") or (kind == "post" and text[0] == "'"):
        constant = _CONSTANTS.get(text)
        return at[write(node)] if constant is None else constant()
    if kind == "env":
        return _determinant([[_value(cell, at) for cell in row.parts] for row in parts])
    if kind == "pow" and parts[0] == Node("name", "e"):
        return _function("exp", _value(parts[1], at))
    inner = [_value(part, at) for part in parts]
    if kind == "func":
        return _function(text.rstrip("~"), *inner)
    if kind == "post":
        return (
            _product(inner[0], _context.pi / 180)
            if text == r"\circ"
            else _factorial(inner[0], text)
        )
    return _OPERATIONS.get(kind, _only)(*inner)


def _only(inner: Value) -> Value:
    return inner


def _checked(number: Value) -> Value:
    if isinstance(number, Fraction):
        if max(number.numerator.bit_length(), number.denominator.bit_length()) > MAX_BITS:
            raise LimitError
    elif not _context.isfinite(number):
        raise NoValueError
    elif number and abs(_context.mag(number)) > MAX_BITS:
        raise LimitError
    return number


def _float(number: Value) -> Value:
    if not isinstance(number, Fraction):
        return number
    return _context.mpf(number.numerator) / number.denominator


def _sum(*terms: Value) -> Value:
    return reduce(add, terms)


def add(a: Value, b: Value) -> Value:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return _checked(a + b)
    a, b = _float(a), _float(b)
    if not a or not b:
        return a or b
    gap = _context.mag(a) - _context.mag(b)
    if abs(gap) > _LOST:
        raise LimitError
    total = a + b
    lost = max(_context.mag(a), _context.mag(b)) - (_context.mag(total) if total else math.inf)
    if not total or lost > _PRECISION - 60:
        return Fraction(0)
    if lost > _LOST:
        raise LimitError
    return total


def _product(*factors: Value) -> Value:
    return reduce(_times, factors)


def _times(a: Value, b: Value) -> Value:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return _checked(a * b)
    return _checked(_float(a) * _float(b)) if a and b else Fraction(0)


def ratio(a: Value, b: Value) -> Value:
    b = snapped(b)
    if not b:
        raise NoValueError
    return _times(a, 1 / b)


def _power(base: Value, exponent: Value) -> Value:
    base, exponent = snapped(base), snapped(exponent)
    if not base:
        if isinstance(exponent, Fraction) and exponent > 0:
            return Fraction(0)
        raise NoValueError
    if isinstance(exponent, Fraction):
        if exponent.denominator < _MAX_DEGREE:
            root = _root(base, Fraction(exponent.denominator))
            return _whole_power(root, exponent.numerator)
    return _exp(_times(_context.log(_float(base)), exponent))


def _whole_power(base: Value, exponent: int) -> Value:
    if isinstance(base, Fraction):
        size = max(base.numerator.bit_length(), base.denominator.bit_length()) - 1
        if abs(base) != 1 and abs(exponent) * max(size, 1) > MAX_BITS:
            raise LimitError
        return base**exponent if abs(base) != 1 else base ** (exponent % 2)
    if abs(exponent) * abs(_context.mag(base) or 1) > MAX_BITS:
        raise LimitError
    return _checked(base**exponent)


def _root(base: Value, index: Value) -> Value:
    """The real root where there is one, else the first; exact where it is rational."""
    base, index = snapped(base), snapped(index)
    if (
        not base
        or not isinstance(index, Fraction)
        or index.denominator != 1
        or not 0 < index < _MAX_DEGREE
    ):
        return _exp(ratio(_context.log(_float(base)), index)) if base else Fraction(0)
    degree = index.numerator
    if degree == 1:
        return base
    if isinstance(base, Fraction):
        if base < 0:
            if degree % 2:
                return -_root(-base, index)
            turn = _context.mpc(0, 1) if degree == 2 else _context.expjpi(_context.mpf(1) / degree)
            return _times(turn, _root(-base, index))
        roots = [_exact_root(part, degree) for part in (base.numerator, base.denominator)]
        if roots[0] is not None and roots[1] is not None:
            return Fraction(roots[0], roots[1])
    return _context.root(_float(base), degree)


def _exact_root(power: int, degree: int) -> int | None:
    """The whole root, by bisection on its bits."""
    if degree == 2:
        root = math.isqrt(power)
    else:
        root = 0
        for bit in reversed(range(power.bit_length() // degree + 1)):
            if (root | 1 << bit) ** degree <= power:
                root |= 1 << bit
    return root if root**degree == power else None


def _exp(exponent: Value) -> Value:
    exponent = _float(exponent)
    if exponent and _context.mag(exponent) > 13:
        raise LimitError
    return _context.exp(exponent)


def _function(name: str, argument: Value, base: Value = None) -> Value:
    argument = snapped(argument)
    if name == "exp":
        return Fraction(1) if not argument else _exp(argument)
    if name in ("ln", "log", "lg"):
        if not argument:
            raise NoValueError
        found = _context.log(_float(argument))
        base = Fraction(10) if base is None and name != "ln" else base
        return found if base is None else ratio(found, _context.log(_float(snapped(base))))
    if base is not None or (argument and _context.mag(_float(argument)) > 64):
        raise NoValueError
    found = getattr(_context, name.replace("arc", "a"))(_float(argument))
    if found and _context.mag(found) > _LOST:  # a pole that rounding hides
        raise NoValueError
    return found if not found or _context.mag(found) > 60 - _PRECISION else Fraction(0)


def _factorial(argument: Value, marks: str) -> Value:
    argument = snapped(argument)
    if marks != "!":
        raise NoValueError
    if isinstance(argument, Fraction) and argument.denominator == 1 and argument >= 0:
        if argument > _MAX_FACTORIAL:
            raise LimitError
        return Fraction(math.factorial(argument.numerator))
    if abs(_float(argument)) > _MAX_FACTORIAL:
        raise LimitError
    return _context.gamma(_float(argument) + 1)


def _binomial(n: Value, k: Value) -> Value:
    n, k = snapped(n), snapped(k)
    if isinstance(k, Fraction) and k.denominator == 1 and 0 <= k <= _MAX_FACTORIAL:
        steps = (ratio(add(n, Fraction(-j)), Fraction(j + 1)) for j in range(k.numerator))
        return reduce(_times, steps, Fraction(1))
    return ratio(
        _factorial(n, "!"),
        _times(_factorial(k, "!"), _factorial(add(n, _times(k, Fraction(-1))), "!")),
    )


def _absolute(argument: Value) -> Value:
    return abs(argument)


def _floor(argument: Value, sign: int = 1) -> Value:
    argument = snapped(argument)
    if isinstance(argument, Fraction):
        return Fraction(sign * math.floor(sign * argument))
    if argument.imag:
        raise NoValueError
    return Fraction(sign * int(_context.floor(sign * argument)))


def _determinant(rows: list[list[Value]]) -> Value:
    if any(len(row) != len(rows) for row in rows) or not 0 < len(rows) < 6:
        raise NoValueError
    if len(rows) == 1:
        return rows[0][0]
    minors = ([row[:j] + row[j + 1 :] for row in rows[1:]] for j in range(len(rows)))
    return _sum(
        *(
            _product(Fraction((-1) ** j), rows[0][j], _determinant(minor))
            for j, minor in enumerate(minors)
        )
    )


_OPERATIONS: dict[str, Callable[..., Value]] = {
    "neg": lambda a: -a,
    "sum": _sum,
    "prod": _product,
    "div": ratio,
    "mixed": add,
    "pow": _power,
    "root": _root,
    "binom": _binomial,
    "||": _absolute,
    r"\lfloor\rfloor": _floor,
    r"\lceil\rceil": lambda a: _floor(a, -1),
}


def snapped(number: Value) -> Value:
    """The fraction of few bits, or the real number, that a computed value is but for rounding."""
    if isinstance(number, Fraction):
        return number
    if isinstance(number, _context.mpc):
        size = _context.mag(number) if number else 0
        real, imaginary = (
            part if part and _context.mag(part) > size + 60 - _PRECISION else Fraction(0)
            for part in (number.real, number.imag)
        )
        return _context.mpc(_float(real), imaginary) if imaginary else snapped(real)
    sign, mantissa, exponent, _ = number._mpf_
    if not mantissa:
        return Fraction(0)
    if abs(exponent + mantissa.bit_length()) > _SNAP_BITS:
        return number
    # Its continued fraction, until that has too many bits or what is left is rounding.
    top, bottom = (mantissa << exponent, 1) if exponent > 0 else (mantissa, 1 << -exponent)
    a, b, c, d = 0, 1, 1, 0
    rest = bottom
    while d.bit_length() < _SNAP_BITS > c.bit_length():
        whole, left = divmod(top, rest)
        a, b, c, d = c, d, whole * c + a, whole * d + b
        if left << (_PRECISION - 60) <= rest * c * d:
            return Fraction(-c if sign else c, d)
        top, rest = rest, left
    return number


def digits(number: Value) -> str:
    """The exact value as text, or its first digits; equal values have equal texts."""
    number = snapped(number)
    if isinstance(number, Fraction):
        text = (
            f"{number.numerator:x}/{number.denominator:x}"
            if number.denominator != 1
            else f"{number.numerator:x}"
        )
        return (
            text if len(text) < 60 else hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        )
    parts = (snapped(number.real), snapped(number.imag))
    return "&".join(
        digits(part) if isinstance(part, Fraction) else _context.nstr(part, _KEY_DIGITS)
        for part in (parts if parts[1] else parts[:1])
    )
