r"""Equality of two answers: the one rule for votes, rewards and truth.

1. Equal canonical strings are equal.
2. Plain numbers are compared as exact fractions: `1/2`, `0.5` and `2/4` are equal, `0.33` and
   `1/3` are not.
3. Sets, tuples, intervals, unions and matrices are equal part by part. So an interval never equals
   a point or a set by accident, and the order counts in tuples but not in sets.
4. Scalar formulas and equations are equal if math-verify says so with either one as the
   reference, and their values at fixed points agree (`child`).

What step 4 cannot do within its limits counts as unequal: it is counted, and remembered so that it
stays so. The limits are CPU seconds, hence do not depend on the load of the machine.

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
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction

from real.answers.canonical import canonical
from real.answers.checker import Checker

_DIGITS = r"\d{1,40}"
_DECIMAL = rf"{_DIGITS}(?:\.{_DIGITS})?"
_EXACT = re.compile(
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
    r"""The number that a canonical string writes, exactly; None where it is no such number.

    Integers, decimals, `1e3`, `3/4`, `\frac{-3}{4}`, `1\frac{4}{5}`, `0.1\overline{6}` and
    `6.7\cdot10^{-5}`, with at most 40 digits per part and exponents below 1000.
    """
    match = _EXACT.fullmatch(text)
    if match is None:
        return None
    part = {name: text for name, text in match.groupdict().items() if text}
    try:
        if "top" in part:
            value = Fraction(part["top"]) / Fraction(part["bottom"])
            if "whole" in part:  # `2\frac{7}{3}` is no mixed number but the product it says
                whole = int(part["whole"])
                value = whole + value if 0 < value < 1 else whole * value
        elif "over" in part:
            value = Fraction(part["over"]) / Fraction(part["under"])
        elif "cycle" in part:
            lead, cycle = part.get("lead", ""), part["cycle"]
            tail = int(lead or "0") + Fraction(int(cycle), 10 ** len(cycle) - 1)
            value = int(part["head"]) + tail / 10 ** len(lead)
        elif "plain" in part:
            value = Fraction(part["plain"])
        else:
            power = int(part.get("digit") or part["power"])
            value = Fraction(part.get("factor", "1")) * Fraction(10) ** power
    except ZeroDivisionError:
        return None
    return -value if part.get("sign") == "-" else value


MAX_PARTS = 64

NUMBER, EXPRESSION = "number", "expression"
_FREE_ORDER = _SET, _UNION = "set", "union"
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
    """Of a leaf: a scalar, or text that says nothing about its structure."""
    parts: tuple[Form, ...] = ()


def keyed_leaves(form: Form, key_of: Callable[[Form], str]) -> tuple[str, list[Form]]:
    """Return a form's key, and its leaves in an order that is one for all forms of the key."""
    if form.kind in (NUMBER, EXPRESSION):
        return key_of(form), [form]
    parts = [keyed_leaves(part, key_of) for part in form.parts]
    if form.kind in _FREE_ORDER:
        parts.sort(key=lambda part: part[0])
    key = f"{form.kind}<{'|'.join(part[0] for part in parts)}>"
    return key, [leaf for part in parts for leaf in part[1]]


def form_of(text: str, depth: int = 6) -> Form:
    """Structure of a canonical string; its cost is linear in the text for each of few levels."""
    value = exact(text)
    if value is not None:
        return Form(NUMBER, str(value))
    if depth == 0:
        return Form(EXPRESSION, text)
    readers = (_matrix, _union, _bracketed, _listed, _ranged)
    forms = (read(text, depth - 1) for read in readers)
    return next(filter(None, forms), Form(EXPRESSION, text))


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
    return _form_of_parts(_UNION, _split(text, (r"\cup",)), depth)


def _bracketed(text: str, depth: int) -> Form | None:
    match = _BRACKETED.fullmatch(text)
    if match is None or not match[2] or not _is_one_group(text):
        return None
    left, inside, right = match.groups()
    items = _split(inside, _COMMAS)
    if (left, right) == (r"\{", r"\}"):
        return _listed(inside, depth) or form_of(canonical(inside), depth)
    if len(items) == 1:
        return form_of(canonical(inside), depth) if (left, right) == ("(", ")") else None
    return _form_of_parts(left + right, items, depth)


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
    return _form_of_parts(_SET, [sign for item in items for sign in _signs(item)], depth)


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


def _form_of_parts(kind: str, items: list[str], depth: int) -> Form | None:
    if not 1 < len(items) <= MAX_PARTS:
        return None
    return Form(kind, parts=tuple(_item(item, depth) for item in items))


def _item(text: str, depth: int) -> Form:
    """A part of a larger answer has a canonical string of its own."""
    return form_of(canonical(text) or text, depth)


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


MAX_FORMULA = 200
"""Characters. What else may take long is left to the checker's limits."""

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
    # One letter, a word, `q1`, `52_8`, `2^10`, `2^3^4`, runs of signs, `5!!`, more digits than are
    # compared, and `1/2x`: half of x or one over 2x.
    r"^[A-Za-z]$|[A-Za-z]{3}|[A-Za-z)}@]\d|[\d)]_|\^\d\d|\^[^{(]\^|[+*-]{3}|\*\*|\|\||\}\^.\^"
    r"|!\W*!|\d{41}"
    r"|/(?:\d+|[A-Za-z@]|\\ ?(?:\{[^{}]*\})?)[A-Za-z@(\\]"
)


def formula(text: str) -> str | None:
    """A canonical scalar as the checker reads it (`i` as `I`); None for what must not reach it."""
    if len(text) > MAX_FORMULA or not _FORMULA.fullmatch(text) or text.count("=") > 1:
        return None
    if _UNCLEAR.search(_COMMAND.sub(_mark, text)):
        return None
    text = re.sub(r"_(\w)", r"_{\1}", text)
    return re.sub(r"\\[A-Za-z]+|i", lambda m: "I" if m[0] == "i" else m[0], text)


def _mark(command: re.Match[str]) -> str:
    """One character for a command, so that its letters are not taken for a word."""
    if command[0] == r"\cdot":
        return "*"
    return "@" if re.fullmatch(_LETTERS, command[0][1:]) else "\\"


_SHARE = 4
"""One question may take this part of a group's seconds, and none starts once the rest is spent."""


@dataclass(slots=True)
class ParseBudget:
    """CPU seconds that one group of answers may still cost."""

    left: float


class Equality:
    """Compares canonical strings; caches what it found, keeps count of what it gave up."""

    def __init__(self, seconds: float = 2.0, checker: Checker | None = None) -> None:
        """Start no process yet; answers of one group may cost so many CPU seconds."""
        self.checker = Checker() if checker is None else checker
        self._seconds = seconds
        self._keys: dict[str, str] = {}
        self._verdicts: dict[tuple[str, str], bool] = {}
        self._given_up: set[tuple[str, ...]] = set()
        self._n_postponed = 0

    @property
    def n_given_up(self) -> int:
        """Formulas and pairs that hit a limit, or that a spent budget left unread."""
        return len(self._given_up) + self._n_postponed

    def budget(self) -> ParseBudget:
        """For one group of answers."""
        return ParseBudget(self._seconds)

    def key(self, text: str, budget: ParseBudget) -> str:
        """A string that equal answers share; answers that share it need not be equal."""
        return self._keyed(text, budget)[0]

    def same(self, one: str, other: str, budget: ParseBudget) -> bool:
        """True if two canonical strings are one answer; symmetric in them."""
        if one == other:
            return True
        key, leaves = self._keyed(one, budget)
        other_key, other_leaves = self._keyed(other, budget)
        if key != other_key or len(leaves) != len(other_leaves):
            return False
        pairs = zip(leaves, other_leaves, strict=True)
        return all(self._same_leaves(a, b, budget) for a, b in pairs)

    def close(self) -> None:
        """End the checker's process."""
        self.checker.close()

    def to_values(self) -> dict[str, object]:
        """The comparisons that were given up, as plain JSON types."""
        return {"given_up": sorted(map(list, self._given_up)), "postponed": self._n_postponed}

    def restore(self, given_up: Sequence[Sequence[str]], postponed: int) -> None:
        """Take over what `to_values` wrote."""
        self._given_up.update(map(tuple, given_up))
        self._n_postponed += postponed

    def _keyed(self, text: str, budget: ParseBudget) -> tuple[str, list[Form]]:
        return keyed_leaves(form_of(text), lambda leaf: self._leaf_key(leaf, budget))

    def _leaf_key(self, leaf: Form, budget: ParseBudget) -> str:
        if leaf.kind == NUMBER:
            return _number_key(Fraction(leaf.text))
        known = self._keys.get(leaf.text)
        if known is not None:
            return known
        readable = formula(leaf.text)
        value = None if readable is None else self._ask("key", (readable,), budget)
        # Without a value it is equal to its own string alone.
        key = f"s:{leaf.text}" if value is None else f"e:{value}"
        self._keys[leaf.text] = key
        return key

    def _same_leaves(self, one: Form, other: Form, budget: ParseBudget) -> bool:
        if one == other:
            return True
        if one.kind == other.kind == NUMBER:
            return False
        a, b = sorted((self._formula(one), self._formula(other)))
        if not a or (_letters(a) != _letters(b) and _folded(a) == _folded(b)):
            return False  # math-verify takes R for r
        known = self._verdicts.get((a, b))
        if known is None:
            known = a == b or bool(self._ask("same", (a, b), budget))
            self._verdicts[a, b] = known
        return known

    def _formula(self, leaf: Form) -> str:
        return leaf.text if leaf.kind == NUMBER else formula(leaf.text) or ""

    def _ask(self, do: str, texts: tuple[str, ...], budget: ParseBudget) -> str | bool | None:
        question = (do, *texts)
        if question in self._given_up:
            return None
        limit = self._seconds / _SHARE
        if budget.left < limit:
            self._n_postponed += 1
            return None
        reply = self.checker.ask(do, texts, limit)
        budget.left -= reply.cpu
        if reply.given_up:
            self._given_up.add(question)
        return reply.value


def _number_key(value: Fraction) -> str:
    """As the child writes it, for a formula can have a plain number as its value."""
    try:
        return f"e:{float(value):.8e}"
    except OverflowError:
        return f"n:{value}"


def _letters(text: str) -> set[str]:
    return set(_COMMAND.sub("", text))


def _folded(text: str) -> set[str]:
    return {letter.lower() for letter in _letters(text)}
