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
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

from real.answers.canonical import tree_of
from real.answers.reader import Node, is_name, write
from real.answers.values import (
    SALTS,
    LimitError,
    NoValueError,
    add,
    digits,
    letters,
    point,
    ratio,
    value,
)

_LESS, _GREATER = ("<", r"\le"), (">", r"\ge")
_TURNED = {">": "<", r"\ge": r"\le", r"\supset": r"\subset", r"\supseteq": r"\subseteq"}
_SYMMETRIC = ("=", r"\ne", r"\approx", r"\cap")
_SUCH_THAT = ("|", r"\mid", ":")
_REALS = "()<-inf|inf>"
_EMPTY = (Node(r"\{\}"), Node("name", r"\emptyset"), Node("word", "empty set"))
_ONE_TEXT = {
    Node("name", r"\mathbb{R}"): _REALS, Node("word", "all real numbers"): _REALS,
    Node("name", r"\infty"): "inf", Node("neg", parts=(Node("name", r"\infty"),)): "-inf",
    Node("word", "all reals"): _REALS, **dict.fromkeys(_EMPTY, r"name \emptyset"),
}  # fmt: skip


class Span(NamedTuple):
    """An interval: its two brackets, and the keys of its ends."""

    brackets: str
    low: str
    high: str


class Equality:
    """Keys of canonical strings, and which of them hold a formula beyond the limits."""

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
            writer = _Writer()
            tree = tree_of(text)
            known = f"text {text}" if tree is None else writer.key(tree)
            self._keys[text] = known
            if writer.is_beyond:
                self._given_up[text] = None
        return known

    def restore(self, given_up: Sequence[str]) -> None:
        """Take over the answers that were given up before."""
        self._given_up.update(dict.fromkeys(given_up))


class _Writer:
    """Writes the key of one answer."""

    def __init__(self) -> None:
        self.is_beyond = False

    def key(self, node: Node) -> str:
        kind, text, parts = node
        if node in _ONE_TEXT:
            return _ONE_TEXT[node]
        is_single = len(parts) == 1
        if is_single and parts[0].kind == "env" and kind in ("()", "[]", "||"):
            around = "vmatrix" if kind == "||" else "pmatrix"
            is_bare = parts[0].text == "matrix"
            return self.key(parts[0]._replace(text=around) if is_bare else parts[0])
        if kind == r"\{\}" and is_single and parts[0] in _EMPTY:
            return "set<empty>"
        if kind in ("()", r"\{\}") and is_single:
            found = self.condition(parts[0]) if kind != "()" else None
            return self.key(parts[0]) if found is None else _union(found[1])
        if kind in ("list", r"\{\}"):
            return self.listed(node)
        if kind == "env" and text == "matrix":
            return self.key(node._replace(text="pmatrix"))
        if len(_signed(node)) > 1:
            return self.listed(Node("list", ",", _signed(node)))
        written = {"setop": self.sets, "rel": self.relation}.get(kind, self.scalar)
        try:
            return written(node)
        except LimitError:
            self.is_beyond = True
        except NoValueError:
            pass
        keys = [self.key(part) for part in parts]
        if text in _SYMMETRIC:
            keys.sort()
        inside = f"<{'|'.join(keys)}>" if keys else ""
        return f"{kind}{text.rstrip('~') if keys else ' ' + text}{inside}"

    @staticmethod
    def scalar(node: Node) -> str:
        names = letters(node)
        return _digits([value(node, point(names, salt)) for salt in (SALTS if names else (0,))])

    def listed(self, node: Node) -> str:
        """A set of items; of conditions on one letter the union, or the range where all hold."""
        parts = [sign for part in node.parts for sign in _signed(part)]
        found = [self.condition(part) for part in parts]
        conditions = [one for one in found if one is not None]
        names = {name for name, _ in conditions}
        if len(conditions) == len(parts) and len(names) == 1:
            spans = [span for _, one in conditions for span in one]
            if node.text == "or":
                return _union(spans)
            if len(spans) == 2:
                one, other = sorted(spans, key=lambda span: span.low == "-inf")
                if one.high == "inf" and other.low == "-inf" != one.low:
                    return _union([Span(one.brackets[0] + other.brackets[1], one.low, other.high)])
        named = [part.parts for part in parts if (part.kind, part.text) == ("rel", "=")]
        if (
            len({name for name, *_ in named}) == 1
            and len(named) == len(parts)
            and is_name(named[0][0])
        ):
            return self.listed(Node("list", ",", tuple(right for _, right in named)))
        keys = [f"{one[0]} {self.key(part)}" if one and len(names) > 1 else self.key(part)
                for one, part in zip(found, parts, strict=True)]  # fmt: skip
        if named and len(named) == len(parts) and all(is_name(name) for name, *_ in named):
            keys = [f"{write(name)}={self.key(right)}" for name, right in named]
        return keys[0] if len(keys) == 1 else f"set<{'|'.join(sorted(keys))}>"

    def sets(self, node: Node) -> str:
        _, sign, parts = node
        if sign == r"\cup" and all(part.kind == r"\{\}" for part in parts):
            keys = {self.key(one) for part in parts for one in part.parts}
            return f"set<{'|'.join(sorted(keys))}>" if len(keys) > 1 else keys.pop()
        if sign == r"\cup":
            return " u ".join(sorted({one for p in parts for one in self.key(p).split(" u ")}))
        if sign != r"\setminus" or self.key(parts[0]) != _REALS or parts[1].kind != r"\{\}":
            raise NoValueError
        try:
            ends = sorted((value(part, {}), part) for part in parts[1].parts)
        except (TypeError, KeyError) as error:  # complex numbers, letters
            raise NoValueError from error
        marks = ["-inf", *(self.key(part) for _, part in ends), "inf"]
        return _union([Span("()", *ends) for ends in pairwise(marks)])

    def condition(self, node: Node) -> tuple[str, list[Span]] | None:
        r"""The name and where it lies: `x>5`, `1<x\le2`, `x\ne3`, `x\mid x>5`."""
        signs, parts = node.text.split(), node.parts
        if node.kind != "rel":
            return None
        for i, sign in enumerate(signs[:-1]):
            if sign in _SUCH_THAT:
                is_free = i == 0 or (signs[0] == r"\in" and self.key(parts[1]) == _REALS)
                rest = Node("rel", " ".join(signs[i + 1 :]), parts[i + 1 :])
                return self.condition(rest) if is_free else None
        if signs == [r"\ne"] and is_name(parts[0]):
            end = self.key(parts[1])
            return write(parts[0]), [Span("()", "-inf", end), Span("()", end, "inf")]
        if all(sign in _GREATER for sign in signs):
            signs, parts = [_TURNED[sign] for sign in signs[::-1]], parts[::-1]
        at = [is_name(part) for part in parts].index(True) if any(map(is_name, parts)) else -1
        if (
            not all(sign in _LESS for sign in signs)
            or at < 0
            or len(parts) != 2 + (at == 1 < len(signs))
        ):
            return None
        low, high = (
            (self.key(parts[0]) if at else "-inf"),
            (self.key(parts[-1]) if at < len(signs) else "inf"),
        )
        brackets = ("[" if at and signs[0] == r"\le" else "(") + (
            "]" if at < len(signs) and signs[-1] == r"\le" else ")"
        )
        return write(parts[at]), [Span(brackets, low, high)]

    def relation(self, node: Node) -> str:
        """Of an equation, or an inequality between two formulas, its difference up to a factor."""
        found = self.condition(node)
        if found is not None:
            return _union(found[1])
        sign, parts = node.text, node.parts
        if sign in _TURNED:
            return self.key(Node("rel", _TURNED[sign], parts[::-1]))
        if sign not in ("=", *_LESS):
            raise NoValueError
        names = letters(parts[0]) | letters(parts[1])
        difference = Node("sum", parts=(parts[0], Node("neg", parts=(parts[1],))))
        if sign in _LESS and len(names) == 1:
            (name,) = names
            ends = {_isolated(difference, names, name, salt) for salt in SALTS}
            slope, end = ends.pop()
            if slope and not ends:  # `2x>6`
                low, high = (digits(end), "inf") if slope[0] == "-" else ("-inf", digits(end))
                closed = "[)" if slope[0] == "-" else "(]"
                return _union([Span("()" if sign == "<" else closed, low, high)])
        if sign == "=" and is_name(parts[0]) and write(parts[0]) in letters(parts[1]):
            return self.key(parts[1])
        gaps = [value(difference, point(names, salt)) for salt in SALTS]
        for name in sorted(names, key=_preference) if sign == "=" and len(names) > 1 else ():
            isolated = [_isolated(difference, names, name, salt) for salt in SALTS]
            if len({slope for slope, _ in isolated}) == 1 and isolated[0][0]:
                return _digits([place for _, place in isolated])
        scale = gaps[0] if sign == "=" else abs(gaps[0])
        return f"{sign} {_digits([ratio(gap, scale) for gap in gaps])}"


def _isolated(gap: Node, names: frozenset[str], name: str, salt: int) -> tuple[str, Any]:
    """The gap's slope in a letter, empty unless it is linear, and the letter where it is 0."""
    at = point(names, salt)
    start = value(gap, at)
    moved = [value(gap, {**at, name: at[name] + step}) for step in (1, 3)]
    slopes = [
        ratio(add(end, -start), Fraction(step)) for end, step in zip(moved, (1, 3), strict=True)
    ]
    if not slopes[0] or digits(slopes[0]) != digits(slopes[1]):
        return "", None
    return digits(slopes[0]), add(at[name], -ratio(start, slopes[0]))


def _preference(name: str) -> tuple[int, str]:
    """Letters that are rather a function of others than others of them come first."""
    is_coordinate = name in ("y", "x", "z")
    return (
        "yxz".index(name) if is_coordinate else 3 - 4 * (name[0] == "\\" or name.isupper()),
        name,
    )


def _digits(values: Sequence[Any]) -> str:
    """One text for values at all points; of a constant its own."""
    texts = list(map(digits, values))
    if len(set(texts)) == 1:
        return texts[0]
    return hashlib.blake2b(" ".join(texts).encode(), digest_size=16).hexdigest()


def _union(spans: Sequence[Span]) -> str:
    return " u ".join(sorted({f"{brackets}<{low}|{high}>" for brackets, low, high in spans}))


def _signed(node: Node) -> tuple[Node, ...]:
    r"""Both values of a node with one `\pm`; else the node."""
    if _count(node, "pm") != 1 or _count(node, "mp") > 1 or node.kind in ("list", r"\{\}", "()"):
        return (node,)
    return _with_sign(node, True), _with_sign(node, False)


def _count(node: Node, kind: str) -> int:
    return (node.kind == kind) + sum(_count(part, kind) for part in node.parts)


def _with_sign(node: Node, upper: bool) -> Node:
    if node.kind in ("pm", "mp"):
        return node.parts[0] if (node.kind == "pm") == upper else node._replace(kind="neg")
    return node._replace(parts=tuple(_with_sign(part, upper) for part in node.parts))
