r"""Sets of real numbers: intervals, points, conditions on one letter, and what is made of them.

A cut is the place just before a number or just behind it, with the number's key. A set is a sorted
list of cuts, at which it begins and ends in turn: `[1,2)` is the cuts before 1 and before 2.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from fractions import Fraction
from operator import and_, gt, or_
from typing import Any, NamedTuple

from real.answers.reader import Node, is_name, read, write
from real.answers.values import NoValueError, Point, digits, isolated, value


class Cut(NamedTuple):
    """A place on the line of real numbers."""

    number: float | Fraction
    is_behind: bool
    text: str


Cuts = list[Cut]
_START, _END = Cut(-float("inf"), True, "-inf"), Cut(float("inf"), False, "inf")
_REALS = [_START, _END]
INFINITE = {read(r"\infty"): _END, read(r"-\infty"): _START}
"""Cuts of infinite ends of intervals."""
_NO = [rf"\text{{no {kind}solution{s}}}" for kind in ("", "real ") for s in ("", "s")]
EMPTY = [read(text) for text in (r"\{\}", r"\emptyset", r"\text{empty set}", *_NO)]
_ALL = (r"\mathbb{R}", r"\text{all real numbers}", r"\text{all reals}", r"\text{all real}\quad x")
NAMED: dict[Node, Cuts] = {node: [] for node in EMPTY} | {read(text): _REALS for text in _ALL}
_COMBINED = {r"\cup": or_, r"\cap": and_, r"\setminus": gt}
_SIDES = {"<": "0", r"\le": "01", "=": "1", r"\ge": "12", ">": "2", r"\ne": "02"}
"""Of a number: below it, itself, above it."""
_SUCH_THAT = ("|", r"\mid", ":")


def set_key(node: Node) -> str:
    """The key of a set of real numbers; NoValueError if the node is none."""
    names = Point(0)
    cuts = _set(node, names)
    if len(names) > 1 or r"\Delta" in "".join(names):  # `\Delta H<0` is of H
        raise NoValueError
    pairs = list(zip(cuts[::2], cuts[1::2], strict=True))
    points = sorted(low.text for low, high in pairs if low.text == high.text)
    if len(points) == len(pairs):
        return points[0] if len(points) == 1 else f"set<{'|'.join(points)}>"
    return " u ".join(
        f"{'[('[low.is_behind]}{')]'[high.is_behind]}<{low.text}|{high.text}>"
        for low, high in pairs
    )


def _combined(keeps: Callable[[int, int], int], one: Cuts, *others: Cuts) -> Cuts:
    """The set of what the rule keeps, by whether it is in the one and in the other; in turn."""
    for other in others:
        cuts: Cuts = []
        for cut in sorted({*one, *other}):
            if keeps(bisect_right(one, cut) % 2, bisect_right(other, cut) % 2) != len(cuts) % 2:
                cuts.append(cut)
        one = cuts
    return one


def _point(number: Any) -> Cuts:
    text = digits(number)
    if "&" in text:
        raise NoValueError  # a complex number ends no interval
    place = number if isinstance(number, Fraction) else Fraction(text)
    return [Cut(place, False, text), Cut(place, True, text)]


def _end(node: Node) -> Cuts:
    return [INFINITE[node]] * 2 if node in INFINITE else _point(value(node, {}))


def _set(node: Node, names: Point) -> Cuts:
    kind, text, parts = node
    signs = text.split()
    if node in NAMED:
        return NAMED[node]
    if kind in ("()", "[]", "(]", "[)") and len(parts) == 2:
        ends = [_end(parts[0])[kind[0] == "("], _end(parts[1])[kind[1] == "]"]]
        if ends[0].number < ends[1].number:
            return ends
    are_rays = kind == "list" and all(p.kind[0] in "([" for p in parts) and r"\infty" in write(node)
    if are_rays or (kind in ("list", r"\{\}") and all(p.kind in ("rel", "list") for p in parts)):
        sets = [_set(part, names) for part in parts]
        both = _combined(and_, *sets)
        is_equal = any(part.text == "=" for part in parts) and not (both and _REALS in sets)
        is_open = both if are_rays else not both and text == "and"
        if text != "or" and (is_equal or is_open):
            raise NoValueError
        # One of them holds: `or`, and where a comma cannot mean `and`: `(-\infty,0), (1,\infty)`.
        return both if both and text != "or" else _combined(or_, *sets)
    if kind in (r"\{\}", "num", "neg", "div"):  # `\mathbb{R}\setminus {2}` lost its braces
        return _combined(or_, *map(_end, parts if kind == r"\{\}" else (node,)))
    if kind == "setop" and _COMBINED.keys() >= set(signs):
        cuts = _set(parts[0], names)
        for sign, part in zip(signs, parts[1:], strict=True):
            cuts = _combined(_COMBINED[sign], cuts, _set(part, names))
        return cuts
    if kind != "rel":
        raise NoValueError
    cuts = _REALS
    for at, (sign, left, right) in enumerate(zip(signs, parts, parts[1:], strict=False)):
        if sign not in _SUCH_THAT:
            cuts = _combined(and_, cuts, _side(left, sign, right, names))
        elif at == 0 and len(signs) > 1:
            names[write(left)]  # asked for: the set is of its values
    if not names:
        raise NoValueError
    return cuts


def _side(left: Node, sign: str, right: Node, names: Point) -> Cuts:
    if sign in (r"\in", r"\notin") and is_name(left):
        names[write(left)]
        inside = _set(right, names)
        return inside if sign == r"\in" else _combined(gt, _REALS, inside)
    if sign not in _SIDES:
        raise NoValueError
    if "||" in (left.kind, right.kind) and sign not in ("=", r"\ne"):
        is_left, (inner, *_) = left.kind == "||", (left if left.kind == "||" else right).parts
        signed = (inner, Node("neg", parts=(inner,)))
        sides = ((one, right) if is_left else (left, one) for one in signed)
        both = (_side(lower, sign, upper, names) for lower, upper in sides)
        return _combined(and_ if is_left == (sign in ("<", r"\le")) else or_, *both)
    if left in INFINITE or right in INFINITE:
        value(right if left in INFINITE else left, names)
        return _REALS
    gap = Node("sum", parts=(left, Node("neg", parts=(right,))))
    value(gap, names)
    if len(names) != 1:
        raise NoValueError
    slope, place, text = isolated(gap, *names)
    if text != digits(place):
        raise NoValueError
    before, behind = _point(place)
    sides = [[_START, before], [before, behind], [behind, _END]][:: -1 if slope[0] == "-" else 1]
    return _combined(or_, *[sides[int(n)] for n in _SIDES[sign]])
