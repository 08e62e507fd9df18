r"""Numbers as exact fractions, without evaluating anything that could grow."""

from __future__ import annotations

import re
from fractions import Fraction

_DIGITS = r"\d{1,40}"
_DECIMAL = rf"{_DIGITS}(?:\.{_DIGITS})?"
_NUMBER = re.compile(
    rf"""(?P<sign>[+-]?)(?:
        (?P<whole>\d{{1,20}})?\\frac\{{(?P<top>-?{_DECIMAL})\}}\{{(?P<bottom>-?{_DECIMAL})\}}
      | (?P<over>{_DECIMAL})/(?P<under>{_DECIMAL})
      | (?P<head>\d{{1,20}})\.(?P<lead>\d{{0,20}})\\overline\{{(?P<cycle>\d{{1,20}})\}}
      | (?:(?P<factor>{_DECIMAL})\\cdot\ ?)?10\^(?:(?P<digit>\d)|\{{(?P<power>-?\d{{1,3}})\}})
      | (?P<plain>{_DECIMAL})
    )""",
    re.VERBOSE | re.ASCII,
)


def exact(text: str) -> Fraction | None:
    r"""The number that a canonical string writes, exactly.

    Integers, decimals, `3/4`, `\frac{-3}{4}`, `1\frac{4}{5}`, `0.1\overline{6}` and
    `6.7\cdot10^{-5}`, with at most 40 digits per part and exponents below 1000.

    Returns:
        The number; None where the text is no such number.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    try:
        value = _value(match.groupdict())
    except ZeroDivisionError:
        return None
    return -value if match["sign"] == "-" else value


def _value(part: dict[str, str | None]) -> Fraction:
    if part["top"] is not None:
        return _mixed(part["whole"], Fraction(part["top"]) / Fraction(part["bottom"] or "0"))
    if part["over"] is not None:
        return Fraction(part["over"]) / Fraction(part["under"] or "0")
    if part["cycle"] is not None:
        return _repeating(part["head"] or "", part["lead"] or "", part["cycle"])
    if part["plain"] is not None:
        return Fraction(part["plain"])
    power = int(part["digit"] or part["power"] or "0")
    return Fraction(part["factor"] or "1") * Fraction(10) ** power


def _mixed(whole: str | None, fraction: Fraction) -> Fraction:
    r"""`1\frac{4}{5}` is 9/5; `2\frac{7}{3}` is no mixed number but the product it says."""
    if whole is None:
        return fraction
    return int(whole) + fraction if 0 < fraction < 1 else int(whole) * fraction


def _repeating(head: str, lead: str, cycle: str) -> Fraction:
    ten = 10 ** len(lead)
    tail = Fraction(int(cycle), (10 ** len(cycle) - 1) * ten)
    return int(head) + Fraction(int(lead or "0"), ten) + tail
