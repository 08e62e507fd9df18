r"""Sets of real numbers: intervals, points, conditions on one letter, and what is made of them.

A set is a sorted list of cuts, at which it begins and ends in turn: `[1,2)` is the cuts before 1
and before 2.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from operator import and_, gt, or_

from flint import acb, arb

from real.answers.reader import Node, bare, is_name, read, write
from real.answers.values import NoValueError, Point, isolated, key, rounded, value

Cut = tuple[arb, bool]
"""The place just before a number, or just behind it if true."""
Cuts = list[Cut]
_START, _END = (arb.neg_inf(), True), (arb.pos_inf(), False)
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
_TURNED = {"<": ">", r"\le": r"\ge", r"\ge": r"\le", ">": "<"}
_SUCH_THAT = ("|", r"\mid", ":")


def set_key(node: Node) -> str:
    """The key of a set of real numbers; NoValueError if the node is none."""
    names = Point(0)
    cuts = _set(node, names)
    if len(names) > 1 or r"\Delta" in "".join(names):  # `\Delta H<0` is of H
        raise NoValueError
    texts = [key(acb(end)) if end.is_finite() else str(end) for end, _ in cuts]
    if texts[::2] == texts[1::2]:
        return texts[0] if len(texts) == 2 else f"set<{'|'.join(sorted(texts[::2]))}>"
    return "|".join(f"{text} {is_behind}" for text, (_, is_behind) in zip(texts, cuts, strict=True))


def _combined(keeps: Callable[[int, int], int], one: Cuts, *others: Cuts) -> Cuts:
    """The set of what the rule keeps, by whether it is in the one and in the other; in turn."""
    for other in others:
        cuts: Cuts = []
        for cut in sorted([*one, *other]):
            if keeps(bisect_right(one, cut) % 2, bisect_right(other, cut) % 2) != len(cuts) % 2:
                cuts.append(cut)
        one = cuts
    return one


def _around(number: acb) -> Cuts:
    if number.imag != 0:  # it ends no interval
        raise NoValueError
    return [(rounded(number.real), False), (rounded(number.real), True)]


def _ends(node: Node) -> Cuts:
    return [INFINITE[node]] * 2 if node in INFINITE else _around(value(node, {}))


def _set(node: Node, names: Point) -> Cuts:
    kind, text, parts = node = bare(node)
    signs = text.split()
    if node in NAMED:
        return NAMED[node]
    if kind in ("()", "[]", "(]", "[)") and len(parts) == 2:
        ends = [_ends(parts[0])[kind[0] == "("], _ends(parts[1])[kind[1] == "]"]]
        if ends[0][0] < ends[1][0]:
            return ends
    are_rays = kind == "list" and all(p.kind[0] in "([" for p in parts) and r"\infty" in write(node)
    if are_rays or (
        kind in ("list", r"\{\}") and all(bare(p).kind in ("rel", "list") for p in parts)
    ):
        sets = [_set(part, names) for part in parts]
        both = _combined(and_, *sets)
        is_equal = any(part.text == "=" for part in parts) and not (both and _REALS in sets)
        is_open = both if are_rays else not both and text == "and"
        if text != "or" and (is_equal or is_open):
            raise NoValueError
        # One of them holds: `or`, and where a comma cannot mean `and`: `(-\infty,0), (1,\infty)`.
        return both if both and text != "or" else _combined(or_, *sets)
    if kind in (r"\{\}", "num", "neg", "div"):  # `\mathbb{R}\setminus {2}` lost its braces
        return _combined(or_, *map(_ends, parts if kind == r"\{\}" else (node,)))
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
        return _combined(gt, *[_REALS] * (sign == r"\notin"), _set(right, names))
    if sign not in _SIDES:
        raise NoValueError
    if right.kind == "||" and sign in _TURNED:
        left, sign, right = right, _TURNED[sign], left
    if left.kind == "||" and sign in _TURNED:
        signed = (left.parts[0], Node("neg", parts=left.parts))
        both = [_side(one, sign, right, names) for one in signed]
        return _combined(and_ if sign in ("<", r"\le") else or_, *both)
    if left in INFINITE or right in INFINITE:
        value(right if left in INFINITE else left, names)
        return _REALS
    gap = Node("sum", parts=(left, Node("neg", parts=(right,))))
    value(gap, names)
    if len(names) != 1:
        raise NoValueError
    slope, place, text = isolated(gap, *names)
    if text != key(place):
        raise NoValueError
    before, behind = _around(place)
    sides = [[_START, before], [before, behind], [behind, _END]][:: -1 if slope.real < 0 else 1]
    return _combined(or_, *[sides[int(n)] for n in _SIDES[sign]])
