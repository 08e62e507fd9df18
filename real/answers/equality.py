r"""Equality of two answers: the one rule for votes, rewards and truth.

Two answers are equal if their keys are, so equality is an equivalence, in any order of comparisons.
A key is written from the canonical tree:

1. A scalar formula has the key of its value: 4,200 digits, so `0.33` is not `1/3`. With
   letters it is the values at eight points (`values`).
2. A set of real numbers, however it is written, has the key of its intervals and points (`sets`).
3. Other sets, tuples and matrices have the keys of their parts, in order but for sets. `1,2`,
   `1\pm\sqrt2` and `x=1,y=2` are sets, with multiplicity, `x=1,y=2 or x=3,y=4` one of two sets;
   `(1,2)`, a tuple or an open interval, has one key.
4. An equation has the key of its difference of sides up to a factor, or, where one of several
   letters can be isolated, of what that letter is: `y=-2x+3`, `2x+y=3` and `-2x+3`. Of other
   letters than x, y and z it is one that stands alone on a side: `t=d/r`.
5. Everything else has its own text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from real.answers.canonical import names_in, normal
from real.answers.notation import words
from real.answers.reader import Node, read, write
from real.answers.sets import EMPTY, NAMED, set_key
from real.answers.values import REAL, LimitError, NoValueError, Point, everywhere, isolated, value

_TURNED = {">": "<", r"\ge": r"\le", r"\supset": r"\subset", r"\supseteq": r"\subseteq"}
_SETS = ("rel", "setop", "list", "()", "[]", "(]", "[)")
_TRUTHS = words("true false yes no T F Y N")
_UNITS = (everywhere(read("1")), everywhere(read("-1")))
_COSTLY, _MAX_COSTLY = re.compile(r"(?<!\d)!|\.\d+!|binom\{(?!\d+\}\{\d)"), 6
"""Factorials but of whole numbers, which take some 30 ms each, and how many an answer may have."""
_MAX_COST = 1_000
"""Letters times characters of an equation in which letters are isolated, if without factorials."""
_SYMMETRIC = ({"="}, {r"\ne"}, {r"\approx"}, {r"\cap"}, {r"\cup"})


class Equality:
    """Keys of canonical strings, and which of them hold a formula beyond the limits."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}
        self.given_up: list[str] = []
        """Answers with a formula beyond the limits, which equals its own text alone; as found."""

    def key(self, text: str) -> str:
        """The string that equal answers share, and only they, of a canonical string."""
        if text not in self._keys:
            is_costly = len(_COSTLY.findall(text)) > _MAX_COSTLY
            self.restore([text] * is_costly)
            tree = None if is_costly else normal(text)[1]
            # The set of one number is the number, but `\{x\}` may be a fraction.
            if tree and tree.kind == r"\{\}" and len(tree.parts) == 1:
                (part,) = tree.parts
                is_open = part.kind not in ("rel", "list") and names_in(part)
                tree = tree if is_open or part.kind == r"\{\}" or part in EMPTY else part
            self._keys[text] = f"text {text}" if tree is None else self._key(tree, text)
        return self._keys[text]

    def restore(self, given_up: Sequence[str]) -> None:
        """Take over the answers that were given up before."""
        self.given_up = list(dict.fromkeys([*self.given_up, *given_up]))

    def _key(self, node: Node, answer: str) -> str:
        kind, text, parts = node
        if kind == "rel":
            text = re.sub(r"[|:]", r"\\mid", text)
            if _TURNED.keys() >= set(text.split()):
                turned = " ".join(_TURNED[sign] for sign in text.split()[::-1])
                return self._key(Node("rel", turned, parts[::-1]), answer)
        if kind in ("[]", "||") and len(parts) == 1 and parts[0].kind == "env":
            matrix = parts[0] if kind == "[]" else parts[0]._replace(text="vmatrix")
            return self._key(matrix, answer)
        if kind in ("prod", "neg") and parts[-1][:2] == ("env", "pmatrix"):
            factors, rows = parts[:-1], parts[-1].parts
            if not any(p.kind == "env" or any(map(str.isupper, names_in(p))) for p in factors):
                cells = [[Node(kind, parts=(*factors, one)) for one in row.parts] for row in rows]
                rows = tuple(Node("cells", parts=tuple(row)) for row in cells)
                return self._key(Node("env", "pmatrix", rows), answer)
        if r"\pm" in answer and len(both := _signed(node)) > 1:
            return self._key(Node("list", ",", both), answer)
        is_set = text != "=" and (kind in _SETS or node in NAMED)
        is_set = is_set or (kind == r"\{\}" and parts[0].kind == "rel")
        for written in (set_key,) * is_set + (_relation if kind == "rel" else everywhere,):
            try:
                return written(node)
            except NoValueError as error:
                if isinstance(error, LimitError):
                    self.restore([answer])
        if kind in ("list", r"\{\}") and text[:1] != "\\":
            items = [sign for part in parts for sign in _signed(part)]  # letters before relations
            named = ["|".join(sorted(names_in(p))) if p.kind == "rel" else "" for p in items]
            keys = [n + self._key(p, answer) for n, p in zip(named, items, strict=True)]
            # A list of truths answers several questions in turn.
            if kind != "list" or not {part.text for part in parts} <= _TRUTHS:
                keys.sort()
            return f"{'or ' * (text == 'or')}set<{'|'.join(keys)}>"
        if kind == "prod":  # `f(x)^2` is not `f(x^2)`, though `(x)^2` is `x^2`
            parts = tuple(p._replace(kind="^") if p.kind == "pow" else p for p in parts)
        if text == r"\overline":  # digits of a number, whose order counts
            return write(node)
        keys = [self._key(part, answer) for part in parts]
        if kind == "sum" or set(text.split()) in _SYMMETRIC:
            keys.sort()
        return f"{kind}{text}<{'|'.join(keys)}>" if keys else f"{kind} {text}"


def _relation(node: Node) -> str:
    """Of an equation, or an inequality between two formulas, its difference up to a factor."""
    sign, sides, names = node.text, [write(part) for part in node.parts], names_in(node)
    if sign not in ("=", "<", r"\le") or not names:  # `1<2` and `1<3` are both true
        raise NoValueError
    if sign == "=" and sides[0] in names_in(node.parts[1]):  # `x=x^2+1` names an expression
        return everywhere(node.parts[1])
    gap = Node("sum", parts=(node.parts[0], Node("neg", parts=(node.parts[1],))))

    def preference(name: str) -> tuple[bool, int, bool, str]:
        """A letter alone on a side comes first, then y, x and z, so that `y-x^2=C` gives y."""
        is_inside = name not in sides
        return is_inside or name in "xyzC", -"zxy".find(name), is_inside, name

    text = "".join(sides)
    cost = len(names) * len(text) * (1 + len(_COSTLY.findall(text)))
    is_open = sign == "=" and len(names) > 1 and cost < _MAX_COST
    for name in sorted(names, key=preference) if is_open else ():
        with suppress(NoValueError):
            other = dict(zip(sides, node.parts[::-1], strict=True)).get(name)
            is_alone = other is not None and name not in names_in(other)
            text = everywhere(other) if is_alone else isolated(gap, name)[2]
            if all(text != everywhere(read(other)) for other in names):  # `y=x`
                return text
    scale = value(gap, Point(REAL))
    scale = scale if sign == "=" and scale.imag == 0 else abs(scale)  # which stays complex
    difference = everywhere(gap, lambda node, at: value(node, at, scale))
    if difference in _UNITS:  # `x+1=x`: no letter is left
        raise NoValueError
    return f"{sign} {difference}"


def _signed(node: Node) -> tuple[Node, ...]:
    r"""Both values of a node with one `\pm`; else the node."""
    text = write(node)
    if text.count(r"\pm ") != 1 or text.count(r"\mp ") > 1 or node.kind in ("list", r"\{\}"):
        return (node,)
    signs = (("+", "-"), ("-", "+"))
    return tuple(read(text.replace(r"\pm ", one).replace(r"\mp ", other)) for one, other in signs)
