"""Values of formulas: exact fractions where they can be, else 120 digits.

Nothing here measures time. What would take long has too many bits or too large an exponent, and is
refused, so the same formula has the same value, or none, on every machine.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from itertools import pairwise
from typing import Any

import mpmath

from real.answers.notation import words
from real.answers.reader import CONSTANTS, DEGREE, Node, is_derivative, is_name, read, write


class NoValueError(Exception):
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
_MAX_FACTORIAL = 2_050
_MAX_DEGREE = 1_000
"""Of a root; letters stand for fractions with a larger denominator."""

_APPLIED = words(r"f g h \Gamma \zeta")
"""Letters of functions before any brackets."""
_TURNING = (read("-1"), read("T"))
_FAULTS = (ArithmeticError, TypeError, ValueError, LookupError, mpmath.libmp.NoConvergence)
_context: Any = mpmath.MPContext()
_context.prec = _PRECISION
Value = Any
"""A `Fraction`, or a real or complex number of `_context`."""

_NUMBERS = (+_context.pi, +_context.e, _context.mpc(0, 1), _context.pi / 180)
_CONSTANTS = dict(zip((*CONSTANTS, DEGREE), _NUMBERS, strict=True))


@dataclass(eq=False)
class Point(dict[str, Value]):
    """Fixed values of the letters that were asked for; points differ in their signs and sizes."""

    salt: int
    """The number of the point."""

    def __missing__(self, name: str) -> Value:
        """The letter's value, which depends on its name and the salt alone."""
        salt, code = self.salt, sum(name.encode())
        signs = (0, code, ~code, code >> 1, code >> 2, ~code >> 2, code >> 1 ^ code >> 3)
        hashed = zlib.crc32(f"{name} {salt}".encode()) % 3001
        # On either side of 0 also below 1, where `|x^2-1|` is not `x^2-1`; and whole and far from
        # 0, where `|x-9|` is not `9-x` and a floor may be the ceiling.
        size = Fraction(300 + hashed, 4001 if salt in (1, 2) else 1009)
        size = size if salt < N_NEAR else Fraction(120 + hashed % 90 * 6)
        return self.setdefault(name, -size if signs[salt] & 1 else size)


N_POINTS, N_NEAR = 7, 4
"""Points at which formulas with letters are compared; those near 0, which come first."""


def value(node: Node, at: Mapping[str, Value]) -> Value:
    """The value where letters have values; NoValueError where it has none."""
    try:
        return _value(node, at)
    except _FAULTS as error:
        raise NoValueError from error


def _value(node: Node, at: Mapping[str, Value]) -> Value:
    kind, text, parts = node
    if kind == "num":
        whole, _, period = text.rstrip("}").partition(r"\overline{")
        number, turn = Fraction(whole), 10 ** len(period)
        tail = (Fraction(whole + period) - number) * turn / (turn - 1) if period else 0
        return number + tail
    if kind == "name" and text in _CONSTANTS:
        return _CONSTANTS[text]
    if is_name(node):
        return at[write(node)]
    is_ordered = kind == "prod" and _is_ordered(parts)
    if kind == "[]" and parts[0].kind in ("name", "div", "root", "func"):
        is_ordered = not parts[0].text.isupper()  # a floor, but `[D]` is a choice
    if kind not in _OPERATIONS or is_ordered or is_derivative(node):
        raise NoValueError
    inner = [_value(part, at) for part in parts]
    if kind == "||" and isinstance(inner[0], _context.mpc):
        _value(parts[0], {})  # raises with letters: for real ones `|z-i|` is `|z+i|`
    computed = _OPERATIONS[kind](*inner, *([text] if text else []))
    return computed if isinstance(computed, Fraction) else snapped(computed)


def _is_ordered(factors: tuple[Node, ...]) -> bool:
    r"""`f(2)` and `(12)(34)`, which are none, and those of matrices as `AB^{-1}`."""
    bases = [n.parts[0] if n.kind == "pow" and n.parts[1] in _TURNING else n for n in factors]
    are_matrices = all(node.kind == "name" and node.text.isupper() for node in bases)
    n_cycles = sum(node.kind == "()" and node.parts[0].text.isdigit() for node in factors)
    has_function = any(_is_applied(left, right) for left, right in pairwise(factors))
    return are_matrices or n_cycles > 1 or has_function


def _is_applied(left: Node, right: Node) -> bool:
    """`f(x+1)`; and before brackets with one number or name any letter: `y(0)`, `E[X]^2`."""
    held = right.parts[0] if right.kind == "pow" else right
    is_single = held.kind in ("()", "[]") and held.parts[0].kind in ("num", "name", "sub")
    is_any = is_single and (is_name(left) or left.text == "i")  # but `\pi(3)^2` is a product
    return is_any or (held.kind == "()" and left.text in _APPLIED)


def _bits(number: Value) -> int:
    """Length of an exact value; binary order of another, and 0 of 0."""
    if isinstance(number, Fraction):
        return max(number.numerator.bit_length(), number.denominator.bit_length())
    return _context.mag(number) if number else 0


def add(a: Value, b: Value) -> Value:
    """The sum; 0 where only rounding is left of it."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return snapped(a + b)
    if not a or not b:
        return a or b
    sizes = _context.mag(a), _context.mag(b)
    total, size = a + b, max(sizes)
    if not total or _bits(total) < size + _NOISE:
        return Fraction(0)
    if min(*sizes, _bits(total)) < size - _LOST:
        raise LimitError
    return total


def ratio(a: Value, b: Value) -> Value:
    """The quotient; NoValueError where it divides by 0."""
    if not b:
        raise NoValueError
    return snapped(a * (1 / snapped(b)))


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(exponent, Fraction) and exponent.denominator < _MAX_DEGREE:
        root, times = _root(base, exponent.denominator), exponent.numerator
        if abs(times) * max(abs(_bits(root)) - 1, root not in (1, -1)) > MAX_BITS:
            raise LimitError
        return snapped(root**times)
    return _function("exp", snapped(_function("ln", base) * exponent))


def _root(base: Value, index: int) -> Value:
    """The real root where there is one, else the first."""
    if index == 1:
        return base
    if index % 2 and not isinstance(base, _context.mpc) and base < 0:
        return -_root(-base, index)
    if isinstance(base, Fraction) and base > 0 and index == 2:
        exact = Fraction(math.isqrt(base.numerator), math.isqrt(base.denominator))
        if exact * exact == base:
            return exact
    return snapped(_context.root(base, index))


def _function(name: str, argument: Value, base: Value = None) -> Value:
    if name in ("ln", "log", "lg"):
        return _context.log(argument, 10 if base is None and name != "ln" else base)
    size = _context.mag(argument)
    if name == "exp" and size > 13:
        raise LimitError
    if base is not None or size > 64:
        raise NoValueError
    computed = getattr(_context, name.replace("arc", "a"))(argument)
    if name != "exp" and _bits(computed) > _LOST:  # a pole that rounding hides
        raise NoValueError
    return computed if _bits(computed) > _NOISE or name == "exp" else Fraction(0)


def _factorial(argument: Value) -> Value:
    if abs(argument) > _MAX_FACTORIAL:
        raise LimitError
    if isinstance(argument, Fraction) and argument.denominator == 1:
        if argument >= 0:
            return Fraction(math.factorial(argument.numerator))
        argument += _context.ldexp(1, -200)  # beside the pole
    return _context.factorial(argument)


def _binomial(n: Value, k: Value) -> Value:
    are_whole = all(isinstance(one, Fraction) and one.denominator == 1 for one in (n, k))
    is_counted = are_whole and 0 <= k <= n
    size = min(n, min(k, n - k) * _bits(n)) if is_counted else max(_bits(n), _bits(k))
    if size > (MAX_BITS if is_counted else _SNAP_BITS):
        raise LimitError
    return Fraction(math.comb(int(n), int(k))) if is_counted else _context.binomial(n, k)


_OPERATIONS: dict[str, Callable[..., Value]] = {
    "sum": lambda *terms: reduce(add, terms),
    "prod": lambda *factors: reduce(lambda a, b: snapped(a * b), factors),
    "mixed": add, "neg": lambda a: -a, "div": ratio, "pow": _power,
    "root": lambda a, index: _power(a, ratio(Fraction(1), index)),
    "post": lambda a, mark: _factorial(a) if mark == "!" else a * _CONSTANTS[mark],
    "func": lambda *inner: _function(inner[-1][1:], *inner[:-1]), "binom": _binomial, "||": abs,
    r"\lfloor\rfloor": lambda a: a - a % 1, r"\lceil\rceil": lambda a: a + -a % 1,
    "()": lambda a: a, "[]": lambda a: a,
}  # fmt: skip


def snapped(number: Value) -> Value:
    """The fraction of few bits, or the real number, that a computed value is but for rounding."""
    if isinstance(number, _context.mpc):
        least = _bits(number) + _NOISE
        real, imaginary = (p if _bits(p) > least else 0 for p in (number.real, number.imag))
        return _context.mpc(real, imaginary) if imaginary else snapped(_context.mpf(real))
    is_exact = isinstance(number, Fraction)
    if not is_exact and not _context.isfinite(number):
        raise NoValueError
    size = abs(_bits(number))
    if size > MAX_BITS:
        raise LimitError
    return number if is_exact or size > _SNAP_BITS else _near(number)


@lru_cache(maxsize=4096)
def _near(number: Value) -> Value:
    exact = Fraction(*mpmath.libmp.to_rational(number._mpf_))
    near = exact.limit_denominator(2**_SNAP_BITS)
    is_near = abs(near - exact) <= abs(exact) / 2**-_NOISE
    return near if is_near and _bits(near) < _SNAP_BITS else number


def digits(number: Value, is_exact: bool = True) -> str:
    """The exact value as text, or its first digits; equal values have equal texts."""
    number = snapped(number)
    if isinstance(number, _context.mpc):
        return f"{digits(number.real, is_exact)}&{digits(number.imag, is_exact)}"
    if not is_exact and abs(_context.mag(number)) > _LOST - 20:
        is_below_0 = number < 0 and _context.mag(number) > 0
        return "-" * is_below_0  # else divided by a pole, or lost beside a letter
    if not (is_exact and isinstance(number, Fraction)):
        return _context.nstr(_context.convert(number), _KEY_DIGITS)
    return f"{number.numerator:x}" + (f"/{number.denominator:x}" if number.denominator > 1 else "")


def everywhere(node: Node, function: Callable[[Node, Point], Value] = value) -> str:
    """One text for a node's values, or a function of it, at all points; of a constant its own."""
    numbers: list[Value] = []
    for salt in range(N_POINTS):
        at = Point(salt)
        try:
            numbers.append(function(node, at))
        except NoValueError:
            if salt < N_NEAR:
                raise
            numbers.append(None)
        if not at:  # a constant
            break
    if not isinstance(numbers[0], _context.mpc):  # of letters below 0 a root is no real number
        numbers = [None if isinstance(n, _context.mpc) else n for n in numbers]
    texts = ["" if n is None else digits(n) for n in numbers]
    if len(set(texts)) == 1:
        return texts[0]
    # A large value is exact in one writing and rounded in another.
    texts[N_NEAR:] = ["" if n is None else digits(n, False) for n in numbers[N_NEAR:]]
    return hashlib.blake2b(" ".join(texts).encode(), digest_size=16).hexdigest()


def isolated(gap: Node, name: str) -> tuple[str, Value, str]:
    """The gap's slope in a letter; that letter where it is 0, at the first point and everywhere.

    NoValueError unless the gap is linear, with the same slope everywhere.
    """
    slopes: set[str] = set()
    places: list[Value] = []

    def place(_: Node, at: Point) -> Value:
        start = value(gap, at)
        one, three = (add(value(gap, {**at, name: at[name] + n}), -start) for n in (1, 3))
        is_linear = digits(3 * one) == digits(three)
        slopes.add(digits(one) if is_linear else "")
        places.append(add(at[name], -ratio(start, one)))
        return places[-1]

    text = everywhere(gap, place)
    if len(slopes) > 1 or "" in slopes:
        raise NoValueError
    return slopes.pop(), places[0], text
