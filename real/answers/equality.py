r"""Equality of two answers: the one rule for votes, rewards and truth.

Two answers are equal if their keys are, so equality is an equivalence and no order of comparisons
has a say. The key of an answer is written from its canonical tree:

1. A scalar formula has the key of its value: exact where it is rational, so `0.33` is not `1/3`,
   else 30 digits. With letters it is the values at three points (`values`).
2. Sets, tuples, intervals, unions and matrices have the keys of their parts. So an interval never
   equals a point or a set by accident, and the order counts in tuples but not in sets.
3. An equation has the key of its difference of sides up to a factor, or, where one of several
   letters can be isolated, of what that letter is: `y=-2x+3`, `2x+y=3` and `-2x+3`.
4. Everything else has its own text.

| written | read as |
|---|---|
| `1,2`, `\{2,1\}`, `x=1,x=2` | set of 1 and 2, with multiplicity |
| `1\pm\sqrt{2}` | set of two |
| `(1,2)` | tuple or open interval: one text, so one key |
| `1<x\le2`, `x>5`, `x\ne3` | `(1,2]`, `(5,\infty)`, `(-\infty,3)\cup(3,\infty)` |
| `(0,1)\cup(2,3)`, `x<1` or `x>2` | union, order free |
| `x=1,y=2` | set of named values |
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from real.answers.canonical import canonical
from real.answers.reader import Node, UnreadableError, bare, read, write
from real.answers.tokens import folded
from real.answers.values import (
    SALTS,
    LimitError,
    NoValueError,
    add,
    digits,
    letters,
    point,
    ratio,
    snapped,
    value,
)

_LESS = {"<": "<", r"\le": "<=", ">": "<", r"\ge": "<="}
_SWAPPED = {">": "<", r"\ge": r"\le", r"\supset": r"\subset", r"\supseteq": r"\subseteq"}
_EVERY = {("name", r"\mathbb{R}"), ("word", "all real numbers"), ("word", "all reals")}
_REALS = "()<-inf|inf>"


class Equality:
    """Compares canonical strings; caches keys and counts formulas beyond its limits."""

    def __init__(self) -> None:
        """Start with no keys."""
        self._keys: dict[str, str] = {}
        self._given_up: dict[str, None] = {}

    @property
    def given_up(self) -> list[str]:
        """Answers with a formula beyond the limits, which equals its own text alone; as found."""
        return list(self._given_up)

    def key(self, text: str) -> str:
        """The string that equal answers share, and only they, of a canonical string."""
        known = self._keys.get(text)
        if known is None:
            writer = _Keys()
            try:
                known = writer.key(read(folded(text)))
            except UnreadableError:
                known = f"text {text}"
            self._keys[text] = known
            if writer.is_beyond:
                self._given_up[text] = None
        return known

    def same(self, one: str, other: str) -> bool:
        """True if two canonical strings are one answer."""
        return self.key(one) == self.key(other)

    def restore(self, given_up: Sequence[str]) -> None:
        """Take over the answers that were given up before."""
        self._given_up.update(dict.fromkeys(given_up))


class _Keys:
    """Writes the key of one answer."""

    def __init__(self) -> None:
        self.is_beyond = False

    def key(self, node: Node) -> str:
        kind, text, parts = node
        if (
            kind in ("()", r"\{\}", "[]")
            and len(parts) == 1
            and (kind != "[]" or parts[0].kind == "env")
        ):
            special = self.condition(parts[0]) if kind == r"\{\}" else None
            return special or self.key(
                parts[0]._replace(text="pmatrix")
                if parts[0].kind == "env" and parts[0].text == "matrix"
                else parts[0]
            )
        if kind == "list":
            return self.listed(node)
        if kind == r"\{\}":
            return (
                self.listed(Node("list", ",", parts))
                if parts
                else self.key(Node("name", r"\emptyset"))
            )
        if (kind, text) in _EVERY:
            return _REALS
        if kind == "env" and text in ("matrix", "bmatrix"):
            node = node._replace(text="pmatrix")
        if kind == "||" and parts[0].kind == "env" and parts[0].text == "matrix":
            return self.key(parts[0]._replace(text="vmatrix"))
        signed = _signed(node)
        if len(signed) > 1:
            return self.listed(Node("list", ",", signed))
        special = {"setop": self.sets, "rel": self.relation}.get(kind)
        found = special(node) if special else self.scalar(node)
        return found or self.structure(node)

    def structure(self, node: Node) -> str:
        """The node's kind and the keys of its parts; of a leaf its text."""
        kind, text, parts = node
        if not parts:
            return {r"\infty": "inf"}.get(text, f"{kind} {text}")
        keys = map(self.key, parts)
        if node == Node("neg", parts=(Node("name", r"\infty"),)):
            return "-inf"
        return f"{kind}{text.rstrip('~')}<{'|'.join(keys)}>"

    def scalar(self, node: Node) -> str | None:
        try:
            names = letters(node)
            return self.digits_at(
                [value(node, point(names, salt)) for salt in (SALTS if names else (0,))]
            )
        except LimitError:
            self.is_beyond = True
        except NoValueError:
            pass
        return None

    @staticmethod
    def digits_at(values: Sequence[Any]) -> str:
        text = " ".join(map(digits, values))
        if len(values) == 1 or len(set(map(digits, values))) == 1:
            return digits(values[0])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def listed(self, node: Node) -> str:
        """A set of items; of conditions on one letter the union, or the range where all hold."""
        parts = [sign for part in node.parts for sign in _signed(part)]
        ranges = [self.condition(part) for part in parts]
        names = {_condition_name(part) for part in parts}
        if node.text == "or" and all(ranges) and len(names) == 1:
            return _union([one for found in ranges if found for one in found.split(" u ")])
        if node.text in ("and", ",") and len(parts) == 2 and all(ranges) and len(names) == 1:
            joined = _intersection(*map(_range, parts))
            if joined is not None:
                return self.range_key(joined)
        named = [
            p.parts
            for p in parts
            if (p.kind, p.text) == ("rel", "=") and len(p.parts) == 2 and _is_name(p.parts[0])
        ]
        if len(named) == len(parts) > 0:
            if len({name for name, _ in named}) == 1:
                return self.listed(Node("list", ",", tuple(found for _, found in named)))
            keys = [f"{write(name)}={self.key(found)}" for name, found in named]
        else:
            tell = len(names - {""}) > 1
            keys = [
                (name if tell else "") + self.key(part)
                for name, part in zip(map(_condition_name, parts), parts)
            ]
        return keys[0] if len(keys) == 1 else f"set<{'|'.join(sorted(keys))}>"

    def sets(self, node: Node) -> str | None:
        _, sign, parts = node
        if sign == r"\cup":
            return _union([one for part in parts for one in self.key(part).split(" u ")])
        if sign == r"\cap":
            return f"cap<{'|'.join(sorted(map(self.key, parts)))}>"
        if sign == r"\setminus" and self.key(parts[0]) == _REALS and parts[1].kind == r"\{\}":
            try:
                ends = sorted((snapped(value(part, {})), part) for part in parts[1].parts)
            except (NoValueError, TypeError):
                return None
            marks = ["-inf", *(self.key(part) for _, part in ends), "inf"]
            return _union(
                [f"()<{low}|{high}>" for low, high in zip(marks, marks[1:], strict=False)]
            )
        return None

    def condition(self, node: Node) -> str | None:
        r"""The set that `x>5`, `x\ne3` or, in braces, `x\mid x>5` describes."""
        if node.kind != "rel":
            return None
        signs, parts = node.text.split(), node.parts
        for i, sign in enumerate(signs[:2]):
            if sign in ("|", r"\mid", ":"):
                is_free = i == 0 or (signs[0] == r"\in" and self.key(parts[1]) == _REALS)
                rest = Node("rel", " ".join(signs[i + 1 :]), parts[i + 1 :])
                return self.condition(rest) if is_free and len(signs) > i + 1 else None
        if signs == [r"\ne"] and _is_name(node.parts[0]):
            end = self.key(node.parts[1])
            return _union([f"()<-inf|{end}>", f"()<{end}|inf>"])
        found = _range(node)
        return None if found is None else self.range_key(found)

    def range_key(self, found: tuple[str, Node, Node]) -> str:
        brackets, low, high = found
        return f"{brackets}<{self.key(low)}|{self.key(high)}>"

    def relation(self, node: Node) -> str | None:
        found = self.condition(node)
        if found:
            return found
        signs, parts = node.text.split(), node.parts
        if len(signs) > 1:
            return None
        sign, parts = (
            (_SWAPPED[signs[0]], parts[::-1]) if signs[0] in _SWAPPED else (signs[0], parts)
        )
        if sign in ("=", "<", r"\le"):
            try:
                key = self.gap(sign, parts)
            except LimitError:
                self.is_beyond = True
            except NoValueError:
                pass
            else:
                return key
        keys = list(map(self.key, parts))
        return f"{sign}<{'|'.join(sorted(keys) if sign in ('=', chr(92) + 'ne', chr(92) + 'approx') else keys)}>"

    def gap(self, sign: str, parts: Sequence[Node]) -> str:
        """The key of an equation, or of an inequality between two formulas."""
        names = letters(parts[0]) | letters(parts[1])
        if sign == "=" and _is_name(parts[0]) and write(parts[0]) in letters(parts[1]):
            return self.key(parts[1])
        difference = Node("sum", parts=(parts[0], Node("neg", parts=(parts[1],))))

        def at(salt: int, **moved: Fraction) -> Any:
            return value(difference, {**point(names, salt), **moved})

        gaps = [at(salt) for salt in SALTS]
        for name in sorted(names, key=_preference) if sign == "=" and len(names) > 1 else ():
            isolated = [
                _isolated(partial(at, salt), name, salt, gap)
                for salt, gap in zip(SALTS, gaps, strict=True)
            ]
            if None not in isolated and len({slope for slope, _ in isolated}) == 1:
                return self.digits_at([place for _, place in isolated])
        scale = gaps[0] if sign == "=" else abs(gaps[0])
        return f"{sign} {self.digits_at([ratio(gap, scale) for gap in gaps])}"


def _isolated(gap_at: Callable[..., Any], name: str, salt: int, gap: Any) -> tuple[str, Any] | None:
    """The gap's slope in a letter and the letter's value without gap, where the gap is linear."""
    place = point([name], salt)[name]
    slopes = [ratio(add(gap_at(**{name: place + step}), -gap), Fraction(step)) for step in (1, 3)]
    if not slopes[0] or digits(slopes[0]) != digits(slopes[1]):
        return None
    return digits(slopes[0]), add(place, -ratio(gap, slopes[0]))


def _preference(name: str) -> tuple[int, str]:
    """Letters that are rather a function of others than others of them come first."""
    if name in ("y", "x", "z"):
        return ("yxz".index(name) + 1, name)
    return (0 if name[0] == "\\" or name.isupper() else 4, name)


def _is_name(node: Node) -> bool:
    if node.kind == "rel" and node.text == r"\in":
        node = node.parts[0]
    return node.kind in ("name", "sub") and bool(
        node.parts or node.text not in ("e", "i", r"\pi", r"\infty")
    )


def _condition_name(node: Node) -> str:
    return next((write(part) for part in node.parts if _is_name(part)), "")


def _range(node: Node) -> tuple[str, Node, Node] | None:
    r"""Brackets and ends of the interval that `1<x\le2` or `x>5` says."""
    signs, parts = node.text.split(), list(node.parts)
    if any(sign not in _LESS for sign in signs):
        return None
    if {sign in _SWAPPED for sign in signs} == {True, False} or len(signs) > 2:
        return None
    marks = [_LESS[sign] for sign in signs]
    if signs[0] in _SWAPPED:
        marks, parts = marks[::-1], parts[::-1]
    infinity = Node("name", r"\infty")
    is_name = [_is_name(part) for part in parts]
    if is_name == [True, False]:
        marks, parts = ["<", *marks], [Node("neg", parts=(infinity,)), *parts]
    elif is_name == [False, True]:
        marks, parts = [*marks, "<"], [*parts, infinity]
    elif is_name != [False, True, False]:
        return None
    return (
        ("(" if marks[0] == "<" else "[") + (")" if marks[1] == "<" else "]"),
        parts[0],
        parts[-1],
    )


def _intersection(one: Any, other: Any) -> tuple[str, Node, Node] | None:
    """The range of both, where one has the lower end and the other the upper."""
    if one is None or other is None:
        return None
    if one[1].kind == "neg" and one[1].parts[0].text == r"\infty":
        one, other = other, one
    if (
        one[2].text == r"\infty"
        and write(other[1]) == r"-\infty" != write(one[1])
        and other[2].text != r"\infty"
    ):
        return one[0][0] + other[0][1], one[1], other[2]
    return None


def _union(keys: Sequence[str]) -> str:
    return " u ".join(sorted(set(keys)))


def _signed(node: Node) -> tuple[Node, ...]:
    r"""Both values of a node with `\pm`, at most one of it; else the node."""
    n_signs = _count(node, "pm")
    if n_signs != 1 or _count(node, "mp") > 1 or node.kind in ("list", r"\{\}", "()"):
        return (node,)
    return tuple(_with_sign(node, sign) for sign in (1, -1))


def _count(node: Node, kind: str) -> int:
    return (node.kind == kind) + sum(_count(part, kind) for part in node.parts)


def _with_sign(node: Node, sign: int) -> Node:
    if node.kind in ("pm", "mp"):
        is_plus = (node.kind == "pm") == (sign > 0)
        return node.parts[0] if is_plus else Node("neg", parts=node.parts)
    return node._replace(parts=tuple(_with_sign(part, sign) for part in node.parts))
