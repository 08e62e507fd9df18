"""Values of formulas: exact fractions where they can be, else 120 digits.

Nothing here measures time. What would take long has too many bits or too large an exponent, and is
refused, so the same formula has the same value, or none, on every machine.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from typing import Any

import mpmath

from real.answers.notation import FUNCTIONS, words
from real.answers.reader import Node, write


class NoValueError(ValueError):
    """The node is no scalar formula, or has no finite value there."""


class LimitError(NoValueError):
    """The value would have more bits than `MAX_BITS`, or be lost in rounding."""


MAX_BITS = 20_000
"""Of numerator and denominator of an exact value, and of the exponent of another one."""
_PRECISION = 400
_NOISE = 60 - _PRECISION
"""Binary order below which a part of a value, relative to the whole, is taken for rounding."""
_LOST = 250
"""Bits by which a sum, or its smaller part, may lie below its larger part."""
_SNAP_BITS = 150
_KEY_DIGITS = 30
_MAX_FACTORIAL = 2_000
_MAX_DEGREE = 1_000
"""Of a root; letters stand for fractions with a larger denominator."""

_context: Any = mpmath.MPContext()
_context.prec = _PRECISION
Value = Any
"""A `Fraction`, or a real or complex number of `_context`."""

_CONSTANTS = {r"\pi": +_context.pi, "e": +_context.e, "i": _context.mpc(0, 1)}
_NO_LETTER = words(r"\infty \emptyset \ldots \circ \max \min \gcd \lcm \det \arg").union(
    f"\\{name}" for name in FUNCTIONS
)
_MANY = words("num sum prod div mixed pow root binom func")
_ONE = frozenset(("neg", "post", "()", "[]", r"\{\}", "||", r"\lfloor\rfloor", r"\lceil\rceil"))
_MARKS = (r"\vec", r"\hat", r"\tilde")


def letters(node: Node) -> frozenset[str]:
    """The names in a scalar formula that have no value of their own; NoValueError if it is none."""
    kind, text, parts = node
    if kind == "name":
        if text in _NO_LETTER or text.startswith(r"\mathbb"):
            raise NoValueError
        return frozenset() if text in _CONSTANTS else frozenset((text,))
    if kind == "sub" or text[:1] == "'" or text in _MARKS:  # a name with an index or a mark
        if parts[0].kind not in ("name", "sub", "post") or not letters(parts[0]):
            raise NoValueError
        return frozenset((write(node),))
    is_scalar = kind in _MANY or (kind in _ONE and len(parts) == 1 and text != "%")
    if not is_scalar or (kind == "prod" and _is_ordered(parts)):
        raise NoValueError
    return frozenset().union(*map(letters, parts))


def _is_ordered(factors: tuple[Node, ...]) -> bool:
    """`f(2)`, which is no product, and `AB`, which may be one of matrices or no product at all."""
    return all(node.kind == "name" and node.text.isupper() for node in factors) or any(
        left.text in ("f", "g", "h") and right.kind == "()" for left, right in pairwise(factors)
    )


SALTS = range(4)
"""Points at which formulas with letters are compared."""


def point(names: Iterable[str], salt: int) -> dict[str, Value]:
    """Fixed values of letters: all positive for salt 0, of mixed signs for the others."""
    return {
        name: Fraction(300 + zlib.crc32(f"{name} {salt}".encode()) % 3001, 1009)
        * (-1 if (0, ord(name[-1]), ~ord(name[-1]), ord(name[-1]) >> 1)[salt] & 1 else 1)
        for name in names
    }


def value(node: Node, at: Mapping[str, Value]) -> Value:
    """The value where letters have values; NoValueError where it has none."""
    try:
        return snapped(_value(node, at))
    except (ArithmeticError, TypeError, mpmath.libmp.NoConvergence) as error:
        raise NoValueError from error


def _value(node: Node, at: Mapping[str, Value]) -> Value:
    kind, text, parts = node
    if kind == "num":
        whole, is_repeating, period = text.rstrip("}").partition(r"\overline{")
        lead = len(whole.partition(".")[2])
        tail = Fraction(int(period), (10 ** len(period) - 1) * 10**lead) if is_repeating else 0
        return Fraction(whole.rstrip(".")) + tail
    if kind in ("name", "sub", "cmd") or text[:1] == "'":
        return _CONSTANTS[text] if text in _CONSTANTS else at[write(node)]
    inner = [snapped(_value(part, at)) for part in parts]
    if kind == "pow" and parts[0] == Node("name", "e"):
        return _function("exp", inner[1])
    if kind == "func":
        return _function(text.rstrip("~"), *inner)
    if kind == "post":
        (value,) = inner
        return _times(value, _context.pi / 180) if text == r"\circ" else _factorial(value, text)
    return reduce(_FOLDED[kind], inner) if kind in _FOLDED else _OPERATIONS.get(kind, _only)(*inner)


def _only(inner: Value) -> Value:
    return inner


def _float(number: Value) -> Value:
    is_exact = isinstance(number, Fraction)
    return _context.mpf(number.numerator) / number.denominator if is_exact else number


def _bits(number: Value) -> int:
    """Length of an exact value; binary order of another, and 0 of 0."""
    if isinstance(number, Fraction):
        return max(number.numerator.bit_length(), number.denominator.bit_length())
    return _context.mag(number) if number else 0


def _checked(number: Value) -> Value:
    if not isinstance(number, Fraction) and not _context.isfinite(number):
        raise NoValueError
    if abs(_bits(number)) > MAX_BITS:
        raise LimitError
    return number


def add(a: Value, b: Value) -> Value:
    """The sum; 0 where only rounding is left of it."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return _checked(a + b)
    a, b = _float(a), _float(b)
    if not a or not b:
        return a or b
    total, size = a + b, max(_bits(a), _bits(b))
    if not total or _bits(total) < size + _NOISE:
        return Fraction(0)
    if min(_bits(a), _bits(b), _bits(total)) < size - _LOST:
        raise LimitError
    return total


def _times(a: Value, b: Value) -> Value:
    if not a or not b:
        return Fraction(0)
    is_exact = isinstance(a, Fraction) and isinstance(b, Fraction)
    return _checked(a * b if is_exact else _float(a) * _float(b))


def ratio(a: Value, b: Value) -> Value:
    """The quotient; NoValueError where it divides by 0."""
    if not snapped(b):
        raise NoValueError
    return _times(a, 1 / b)


def _power(base: Value, exponent: Value) -> Value:
    if not base and isinstance(exponent, Fraction) and exponent > 0:
        return Fraction(0)
    if isinstance(exponent, Fraction) and exponent.denominator < _MAX_DEGREE and base:
        root, times = _root(base, Fraction(exponent.denominator)), exponent.numerator
        if isinstance(root, Fraction) and abs(root) == 1:
            return root ** (times % 2)
        if abs(times) * max(abs(_bits(root)) - 1, 1) > MAX_BITS:
            raise LimitError
        return _checked(root**times)
    return _function("exp", _times(_function("ln", base), exponent))


def _root(base: Value, index: Value) -> Value:
    """The real root where there is one, else the first."""
    if not base or index == 1:
        return base
    if not isinstance(index, Fraction) or index.denominator != 1 or not 1 < index < _MAX_DEGREE:
        return _power(base, ratio(Fraction(1), index))
    if isinstance(base, Fraction) and base < 0 and index % 2:
        return -_root(-base, index)
    if isinstance(base, Fraction) and base > 0 and index == 2:
        exact = Fraction(math.isqrt(base.numerator), math.isqrt(base.denominator))
        if exact * exact == base:
            return exact
    return snapped(_context.root(_float(base), index.numerator))


def _function(name: str, argument: Value, base: Value = None) -> Value:
    number = _float(argument)
    if name == "exp":
        if _bits(number) > 13:
            raise LimitError
        return _context.exp(number)
    if name in ("ln", "log", "lg"):
        if not argument:
            raise NoValueError
        base = Fraction(10) if base is None and name != "ln" else base
        found = _context.log(number)
        return found if base is None else ratio(found, _function("ln", base))
    if base is not None or _bits(number) > 64:
        raise NoValueError
    found = getattr(_context, name.replace("arc", "a"))(number)
    if _bits(found) > _LOST:  # a pole that rounding hides
        raise NoValueError
    return found if _bits(found) > _NOISE else Fraction(0)


def _factorial(argument: Value, marks: str = "!") -> Value:
    if marks != "!":
        raise NoValueError
    if abs(_float(argument)) > _MAX_FACTORIAL:
        raise LimitError
    if isinstance(argument, Fraction) and argument.denominator == 1 and argument >= 0:
        return Fraction(math.factorial(argument.numerator))
    return _context.gamma(_float(argument) + 1)


def _binomial(n: Value, k: Value) -> Value:
    if isinstance(k, Fraction) and k.denominator == 1 and 0 <= k <= _MAX_FACTORIAL:
        steps = (ratio(add(n, Fraction(-j)), Fraction(j + 1)) for j in range(k.numerator))
        return reduce(_times, steps, Fraction(1))
    below = _times(_factorial(k), _factorial(snapped(add(n, -k))))
    return ratio(_factorial(n), below)


def _floor(argument: Value) -> Value:
    if isinstance(argument, _context.mpc):
        raise NoValueError
    is_exact = isinstance(argument, Fraction)
    return Fraction(math.floor(argument) if is_exact else int(_context.floor(argument)))


_FOLDED: dict[str, Callable[[Value, Value], Value]] = {"sum": add, "prod": _times, "mixed": add}
_OPERATIONS: dict[str, Callable[..., Value]] = {
    "neg": lambda a: -a, "div": ratio, "pow": _power, "root": _root, "binom": _binomial, "||": abs,
    r"\lfloor\rfloor": _floor, r"\lceil\rceil": lambda a: -_floor(-a),
}  # fmt: skip


def snapped(number: Value) -> Value:
    """The fraction of few bits, or the real number, that a computed value is but for rounding."""
    if isinstance(number, Fraction):
        return number
    if isinstance(number, _context.mpc):
        least = _bits(number) + _NOISE
        real, imaginary = (
            part if _bits(part) > least else 0 for part in (number.real, number.imag)
        )
        return _context.mpc(real, imaginary) if imaginary else snapped(_context.mpf(real))
    sign, top, exponent, _ = number._mpf_
    if not top or abs(exponent + top.bit_length()) > _SNAP_BITS:
        return number if top else Fraction(0)
    # Its continued fraction, until that has too many bits or what is left is rounding.
    top, rest = (top << exponent, 1) if exponent > 0 else (top, 1 << -exponent)
    a, b, c, d = 0, 1, 1, 0
    while max(c.bit_length(), d.bit_length()) < _SNAP_BITS:
        whole, left = divmod(top, rest)
        a, b, c, d = c, d, whole * c + a, whole * d + b
        if left << -_NOISE <= rest * c * d:
            return Fraction(-c if sign else c, d)
        top, rest = rest, left
    return number


def digits(number: Value) -> str:
    """The exact value as text, or its first digits; equal values have equal texts."""
    number = snapped(number)
    if isinstance(number, _context.mpc):
        return f"{digits(number.real)}&{digits(number.imag)}"
    if not isinstance(number, Fraction):
        return _context.nstr(number, _KEY_DIGITS)
    text = f"{number.numerator:x}" + (f"/{number.denominator:x}" if number.denominator > 1 else "")
    return text if len(text) < 60 else hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
