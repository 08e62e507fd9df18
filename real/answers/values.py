"""Values of formulas: balls of FLINT, which are numbers of 14,400 bits with bounds on their errors.

Nothing here measures time. What is too large, or of what too few bits are certain, is refused, so
the same formula has the same value, or none, on every machine.
"""

from __future__ import annotations

import hashlib
import operator
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import flint
from flint import acb, arb, fmpq

from real.answers.notation import words
from real.answers.reader import CONSTANTS, DEGREE, Node, is_derivative, is_name, read, write


class NoValueError(Exception):
    """The node is no scalar formula, or has no finite value there."""


class LimitError(NoValueError):
    """The value would be too large, or be lost in rounding."""


_BITS = 14_000
"""Of the numbers that decide: a ball holds one, and is that, or lies between two of them."""
flint.ctx.prec = _PRECISION = _BITS + 400
_LOST = _BITS // 2
"""Bits by which a term may lie below another one, so that also its square decides."""
_MAX_BITS, _MAX_ARGUMENT = 2**48, 64
"""Of exponents: of a value, and of what functions are applied to."""
_MAX_DEGREE = 100
"""Of the real root of a number below 0."""
_APPLIED = words(r"f g h \Gamma \zeta")
"""Letters of functions before any brackets."""
_TURNING = (read("-1"), read("T"))
_FAULTS = (ArithmeticError, AttributeError, TypeError, ValueError, LookupError)
_NUMBERS = (acb.pi(), acb(1).exp(), acb(0, 1), acb.pi() / 180)
_CONSTANTS = dict(zip((*CONSTANTS, DEGREE), _NUMBERS, strict=True))
_INVERTED = {"arccot": "arctan", "arcsec": "arccos", "arccsc": "arcsin"}
"""Functions of the inverse of a number."""
_BASES = {"ln": _CONSTANTS["e"], "log": acb(10), "lg": acb(10)}


@dataclass(eq=False)
class Point(dict[str, acb]):
    """Fixed values of the letters that were asked for; points differ in their signs and sizes."""

    salt: int
    """The number of the point."""

    def __missing__(self, name: str) -> acb:
        """The letter's value, which depends on its name and the salt alone."""
        # Of two letters but f and h, one is below 0 somewhere where the other is not: `|ax|`.
        salt, code = self.salt, sum(name.encode()) % 26 % 24
        far = code // 4 + 1
        signs = (0, code, ~code, code >> 1, 0, far, far >> 1, far >> 2)
        sign = -1 if signs[salt] & 1 else 1
        odd = zlib.crc32(f"{name} {salt % 4}".encode()) % 2**20 | 1
        if salt == REAL:  # in the other order than at 0: `|\sqrt a-\sqrt b|`
            odd = 2**20 - odd
        # On either side of 0 also near it, where `|x^2-1|` is not `x^2-1`, and `e^{-5000t}` is no
        # lost term; and far from 0, where `|x-9|` is not `9-x`, above it whole, where a floor may
        # be the ceiling.
        size = acb(3 * (odd + 2**17)) / 2 ** (32 if salt in (1, 2) else 20)
        if salt >= N_NEAR:
            size = (20 + odd % 90) * 2_162_160_000 + (acb(odd) / 2**20 if sign < 0 else acb(0))
        return self.setdefault(name, sign * size)


N_POINTS, N_NEAR, REAL = 8, 5, 4
"""Points at which formulas are compared; of them near 0, which come first; where all is above 0."""


def value(node: Node, at: Mapping[str, acb], scale: acb | arb | None = None) -> acb:
    """The value where letters have values, in units of the scale; NoValueError without one."""
    flint.ctx.prec = _PRECISION  # others may have changed it
    try:
        return _value(node, at) if scale is None else settled(_value(node, at) / scale)
    except _FAULTS as error:
        raise NoValueError from error


def _value(node: Node, at: Mapping[str, acb]) -> acb:
    kind, text, parts = node
    if kind == "num":
        whole, _, decimals = text.rstrip("}").partition(".")
        decimals, _, period = decimals.partition(r"\overline{")
        unit = 10 ** len(decimals)
        repeated = fmpq(int(period), unit * (10 ** len(period) - 1)) if period else 0
        return acb(fmpq(int(whole + decimals), unit) + repeated)
    if kind == "name" and text in _CONSTANTS:
        return _CONSTANTS[text]
    if is_name(node):
        return at[write(node)]
    if (kind, text) == ("env", "vmatrix"):
        return settled(flint.acb_mat([[_value(c, at) for c in row.parts] for row in parts]).det())
    is_ordered = kind == "prod" and _is_ordered(parts)
    if kind == "[]" and parts[0].kind in ("name", "div", "root", "func"):
        is_ordered = not parts[0].text.isupper()  # a floor, but `[D]` is a choice
    if kind not in _OPERATIONS or is_ordered or is_derivative(node):
        raise NoValueError
    inner = [_value(part, at) for part in parts]
    if kind == "||" and inner[0].imag != 0:
        _value(parts[0], {})  # raises with letters: for real ones `|z-i|` is `|z+i|`
    return settled(_OPERATIONS[kind](*inner, *([text] if text else [])))


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


def settled(number: acb) -> acb:
    """The ball, or the number of few bits in it; LimitError where too few bits are certain."""
    if not number.is_finite():
        raise NoValueError
    real, imaginary = _settled_part(number.real), number.imag
    return acb(real) if imaginary == 0 else acb(real, _settled_part(imaginary))


def _settled_part(part: arb) -> arb:
    if part.contains(0):
        return arb(0)
    n_places = _BITS - _order(part)
    if part.rel_accuracy_bits() < _BITS + 200 or abs(n_places) > _MAX_BITS:
        raise LimitError
    whole = None if part.is_exact() else (part * arb((1, n_places))).unique_fmpz()
    return part if whole is None else arb((whole, -n_places))


def _order(number: acb | arb) -> int:
    """Binary order of the size of a number; 0 of 0."""
    mantissa, exponent = abs(number).mid().man_exp()
    return mantissa.bit_length() + int(exponent)


def add(a: acb, b: acb) -> acb:
    """The sum; LimitError where one of the terms is lost beside the other."""
    if a != 0 and b != 0 and abs(_order(a) - _order(b)) > _LOST:
        raise LimitError
    return a + b


def _times(a: acb, b: acb) -> acb:
    product = a * b
    if a.is_exact() and b.is_exact() and not product.is_exact():  # of sums of powers
        raise LimitError
    return product


def _power(base: acb, exponent: acb) -> acb:
    if not -_LOST < _order(exponent) <= _MAX_ARGUMENT:
        raise LimitError
    if base.imag == 0 and base.real < 0:
        for degree in range(1, _MAX_DEGREE, 2):  # the real root where there is one
            times = (exponent * degree).unique_fmpz()
            if times is not None:
                return (-base) ** exponent * (-1) ** int(times % 2)
    return base**exponent


def _function(name: str, argument: acb, *index: acb) -> acb:
    if name in _BASES:
        base, *_ = *index, _BASES[name]
        return argument.log() / base.log()
    if name in _INVERTED:
        argument, name = 1 / argument, _INVERTED[name]
    if not -_LOST < _order(argument) <= _MAX_ARGUMENT:
        raise LimitError
    if name in ("sinh", "cosh", "tanh"):  # as sums they are lost where these are
        up, down = argument.exp(), (-argument).exp()
        sinh, cosh = add(up, -down) / 2, add(up, down) / 2
        return sinh if name == "sinh" else cosh if name == "cosh" else sinh / cosh
    return getattr(argument, name.replace("arc", "a"))(*index)


def _factorial(number: acb) -> acb:
    return _function("gamma", add(number, acb(1)))


def _floor(number: acb) -> acb:
    if number.imag != 0:
        raise NoValueError
    return number.real_floor()


_OPERATIONS: dict[str, Callable[..., acb]] = {
    "sum": lambda *terms: reduce(add, terms), "prod": lambda *factors: reduce(_times, factors),
    "mixed": add, "neg": operator.neg, "div": operator.truediv, "pow": _power,
    "root": lambda a, index: _power(a, 1 / index),
    "post": lambda a, mark: _factorial(a) if mark == "!" else a * _CONSTANTS[mark],
    "func": lambda *inner: _function(inner[-1][1:], *inner[:-1]),
    "binom": lambda n, k: _factorial(n) / (_factorial(k) * _factorial(add(n, -k))),
    "||": lambda a: acb(abs(a)), "()": operator.pos, "[]": operator.pos,
    r"\lfloor\rfloor": _floor, r"\lceil\rceil": lambda a: -_floor(-a),
}  # fmt: skip


def rounded(part: arb) -> arb:
    """An exact number that is the same for all balls of one real number, in their order."""
    if part.is_exact():
        return part
    n_places = _BITS - _order(part)
    whole = (part * arb((1, n_places))).floor().unique_fmpz()
    if whole is None:
        raise LimitError
    return arb((whole, -n_places))


def key(number: acb) -> str:
    """The key of a number; equal numbers have the same."""
    parts = (number.real, number.imag) if number.imag != 0 else (number.real,)
    return _hashed(" ".join(f"{int(n):x}" for part in parts for n in rounded(part).man_exp()))


def _hashed(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def everywhere(node: Node, function: Callable[[Node, Point], acb] = value) -> str:
    """One key for a node's values, or a function of it, at all points; of a constant its own."""
    keys: list[str] = []
    n_lost, is_real = 0, False
    for salt in range(N_POINTS):
        at = Point(salt)
        try:
            number = function(node, at)
            is_real = is_real or (salt == 0 and number.imag == 0)
            # Of letters below 0 a root is no real number.
            keys.append(key(number) if number.imag == 0 or not is_real else "")
        except NoValueError as error:
            # Terms as `x^{2025}` are lost near 0, and such as `e^{-5000t}` away from it.
            n_lost += salt < N_NEAR
            is_lost = isinstance(error, LimitError) or salt >= N_NEAR
            if not at or n_lost > N_NEAR - 2 or not is_lost:
                raise
            keys.append("")
        if not at:  # a constant
            break
    return keys[0] if len(set(keys)) == 1 else _hashed(" ".join(keys))


def isolated(gap: Node, name: str) -> tuple[acb, acb, str]:
    """The gap's slope in a letter; that letter where it is 0, at the first point and everywhere.

    NoValueError unless the gap is linear, with the same slope everywhere.
    """
    at = Point(0)
    slope = settled(add(value(gap, at), -value(gap, {**at, name: acb(0)})) / at[name])

    def place(_: Node, at: Point) -> acb:
        without = Point(at.salt)
        without[name] = acb(0)
        start = value(gap, without)
        with suppress(LimitError):  # where the letter is lost beside other terms
            if settled(add(add(start, slope * at[name]), -value(gap, at))) != 0:
                raise NoValueError
        return settled(-start / slope)

    text = everywhere(gap, place)
    return slope, place(gap, Point(0)), text
