r"""Parts of an answer: sets, tuples, intervals, unions, matrices, and scalars inside.

The structure is read here, so that the checker compares scalars alone: an interval never equals a
point or a set by accident, and the order counts in tuples but not in sets.

| written | read as |
|---|---|
| `1,2`, `\{2,1\}`, `x=1,x=2` | set of 1 and 2, with multiplicity |
| `1\pm\sqrt{2}` | set of two |
| `(1,2)` | tuple or open interval: one text, so one form |
| `1<x\le2`, `x>5` | `(1,2]`, `(5,\infty)` |
| `(0,1)\cup(2,3)` | union, order free |
| `x=1,y=2` | set of named values |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from fractions import Fraction

from real.answers.canonical import canonical

_DIGITS = r"\d{1,40}"
_DECIMAL = rf"{_DIGITS}(?:\.{_DIGITS})?"
_NUMBER = re.compile(
    rf"""(?P<sign>[+-]?)(?:
        (?P<whole>\d{{1,20}})?\\frac\{{(?P<top>-?{_DECIMAL})\}}\{{(?P<bottom>-?{_DECIMAL})\}}
      | (?P<over>{_DECIMAL})/(?P<under>{_DECIMAL})
      | (?P<head>\d{{1,20}})\.(?P<lead>\d{{0,20}})\\overline\{{(?P<cycle>\d{{1,20}})\}}
      | (?:(?P<factor>{_DECIMAL})\\cdot\ ?)?10\^(?:(?P<digit>\d)|\{{(?P<power>-?\d{{1,3}})\}})
      | (?P<plain>{_DECIMAL}(?:[eE][+-]?\d{{1,3}})?)
    )""",
    re.VERBOSE | re.ASCII,
)


def exact(text: str) -> Fraction | None:
    r"""The number that a canonical string writes, exactly.

    Integers, decimals, `1e3`, `3/4`, `\frac{-3}{4}`, `1\frac{4}{5}`, `0.1\overline{6}` and
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


MAX_PARTS = 64
_MAX_DEPTH = 6

NUMBER, EXPRESSION = "number", "expression"
_SET, _UNION = "set", "union"
_FREE_ORDER = (_SET, _UNION)
_COMMAS = (",", ";")

_NAME = r"(?:[A-Za-z]|\\[a-z]{2,8} ?)"
_TOKENS = re.compile(
    r"\\begin\{p?matrix\}|\\end\{p?matrix\}|\\\\|\\[{}]|\\cup ?|\\(?:le|ge|lt|gt)(?![a-z]) ?"
    r"|[()\[\]{}<>,;&]"
)
_OPENERS, _CLOSERS = ("(", "[", "{", r"\{"), (")", "]", "}", r"\}")
_BRACKETED = re.compile(r"(\(|\[|\\\{)(.*)(\)|\]|\\\})", re.DOTALL)
_MATRIX = re.compile(r"\\begin\{pmatrix\}(.*)\\end\{pmatrix\}", re.DOTALL)
_NAMED = re.compile(rf"({_NAME}(?:_\w)?)=([^=]+)")
_LESS = {"<": "<", ">": ">", r"\le": "<=", r"\ge": ">=", r"\lt": "<", r"\gt": ">"}


@dataclass(frozen=True, slots=True)
class Form:
    """A node of an answer's structure."""

    kind: str
    """`number`, `expression`, or what holds the parts: `set`, `union`, `(]`, `matrix 2`, ..."""
    text: str = ""
    """Of a leaf."""
    parts: tuple[Form, ...] = ()

    @property
    def is_leaf(self) -> bool:
        """A scalar, or text that says nothing about its structure."""
        return self.kind in (NUMBER, EXPRESSION)


def form_of(text: str) -> Form:
    """Structure of a canonical string; its cost is linear in the text for each of few levels."""
    return _form(text, _MAX_DEPTH)


def keyed_leaves(form: Form, key_of: Callable[[Form], str]) -> tuple[str, list[Form]]:
    """A form's key, and its leaves in an order that is the same for forms of equal keys.

    Returns:
        key: forms with different keys are not equal.
        leaves: parts whose order is free are sorted by their keys.
    """
    if form.is_leaf:
        return key_of(form), [form]
    parts = [keyed_leaves(part, key_of) for part in form.parts]
    if form.kind in _FREE_ORDER:
        parts.sort(key=lambda part: part[0])
    key = f"{form.kind}<{'|'.join(part[0] for part in parts)}>"
    return key, [leaf for part in parts for leaf in part[1]]


def _form(text: str, depth: int) -> Form:
    value = exact(text)
    if value is not None:
        return Form(NUMBER, str(value))
    if depth == 0:
        return Form(EXPRESSION, text)
    readers = (_matrix, _union, _bracketed, _listed, _ranged)
    structure = next((form for read in readers if (form := read(text, depth - 1))), None)
    return Form(EXPRESSION, text) if structure is None else structure


def _matrix(text: str, depth: int) -> Form | None:
    match = _MATRIX.fullmatch(text)
    if match is None or r"\begin" in match[1]:
        return None
    rows = [_split(row, ("&",)) for row in _split(match[1], (r"\\",))]
    if sum(map(len, rows)) > MAX_PARTS:
        return None
    cells = tuple(_item(cell, depth) for row in rows for cell in row)
    return Form(f"matrix {','.join(str(len(row)) for row in rows)}", parts=cells)


def _union(text: str, depth: int) -> Form | None:
    return _group(_UNION, _split(text, (r"\cup",)), depth)


def _bracketed(text: str, depth: int) -> Form | None:
    match = _BRACKETED.fullmatch(text)
    if match is None or not match[2] or not _is_one_group(text):
        return None
    left, inside, right = match.groups()
    items = _split(inside, _COMMAS)
    if (left, right) == (r"\{", r"\}"):
        return _listed(inside, depth) or _form(canonical(inside), depth)
    if len(items) == 1:
        return _form(canonical(inside), depth) if (left, right) == ("(", ")") else None
    return _group(left + right, items, depth)


def _listed(text: str, depth: int) -> Form | None:
    items = _split(text, _COMMAS)
    named = [_NAMED.fullmatch(item) for item in items]
    names = [match[1] for match in named if match]
    if len(items) > 1 and len(names) == len(items):
        values = [match[2] for match in named if match]
        if len(set(names)) > 1:
            pairs = zip(names, values, strict=True)
            parts = tuple(Form(f"{name}=", parts=(_item(value, depth),)) for name, value in pairs)
            return Form(_SET, parts=parts) if len(parts) <= MAX_PARTS else None
        items = values
    return _group(_SET, [sign for item in items for sign in _signs(item)], depth)


def _ranged(text: str, depth: int) -> Form | None:
    r"""`1<x\le2` and `x>5` as the intervals that they say."""
    marks = [_LESS[m.group().strip()] for m in _top(text) if m.group().strip() in _LESS]
    sides = _split(text, _LESS)
    if not marks or "=" in text or len({mark[0] for mark in marks}) > 1:
        return None
    if marks[0][0] == ">":
        sides, marks = sides[::-1], marks[::-1]
    is_name = [bool(re.fullmatch(_NAME, side)) for side in sides]
    if is_name == [False, True, False]:
        low, high = sides[0], sides[2]
    elif is_name == [True, False]:
        low, high, marks = r"-\infty", sides[1], ["<", *marks]
    elif is_name == [False, True]:
        low, high, marks = sides[0], r"\infty", [*marks, "<"]
    else:
        return None
    kind = ("[" if "=" in marks[0] else "(") + ("]" if "=" in marks[1] else ")")
    return Form(kind, parts=(_item(low, depth), _item(high, depth)))


def _group(kind: str, items: list[str], depth: int) -> Form | None:
    if not 1 < len(items) <= MAX_PARTS:
        return None
    return Form(kind, parts=tuple(_item(item, depth) for item in items))


def _item(text: str, depth: int) -> Form:
    """A part of a larger answer has a canonical string of its own."""
    return _form(canonical(text) or text, depth)


def _signs(text: str) -> list[str]:
    if text.count(r"\pm") != 1 or r"\mp" in text:
        return [text]
    return [re.sub(r"\\pm ?", sign, text) for sign in "+-"]


def _top(text: str) -> list[re.Match[str]]:
    """Tokens outside all brackets and environments; none where brackets do not match."""
    tokens, level = [], 0
    for match in _TOKENS.finditer(text):
        token = match.group()
        if token in _OPENERS or token.startswith(r"\begin"):
            level += 1
        elif token in _CLOSERS or token.startswith(r"\end"):
            level -= 1
            if level < 0:
                return []
        elif level == 0:
            tokens.append(match)
    return tokens if level == 0 else []


def _split(text: str, marks: Collection[str]) -> list[str]:
    """Pieces between the top-level tokens in `marks`."""
    pieces, start = [], 0
    for match in _top(text):
        if match.group().strip() in marks:
            pieces.append(text[start : match.start()])
            start = match.end()
    return [*pieces, text[start:]]


def _is_one_group(text: str) -> bool:
    """The first bracket closes at the end of the text, not before."""
    level = 0
    for match in _TOKENS.finditer(text):
        level += (match.group() in _OPENERS) - (match.group() in _CLOSERS)
        if level == 0:
            return match.end() == len(text)
    return False
