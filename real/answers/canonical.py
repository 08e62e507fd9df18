r"""One cheap spelling for an answer's many spellings: its tree is rewritten, nothing is evaluated.

Rules that would need arithmetic are left out: `2/4` is not `1/2`, `0.5` is not `1/2`, and `1,-2`
is not `-2,1`. Units, degree and percent signs fall away, for answers have them or not by chance.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache

from real.answers.notation import folded, is_unit, words
from real.answers.reader import (
    DEGREE,
    ZERO_WIDTH,
    Node,
    UnreadableError,
    is_derivative,
    is_name,
    read,
    write,
)

MAX_LENGTH = 1_000
"""Characters. A longer answer is none: it counts as unparseable. Bounds the cost of every rule."""

_PASSES = 8
"""After which an answer that still changes counts as unparseable; most come to rest in one."""
_PLAIN_INTEGER = re.compile(r"-?[1-9][0-9]{0,30}|0")


def canonical(answer: str) -> str:
    r"""The canonical string of an answer; equal strings are equal answers.

    `025`, `25.0`, `$25$`, `25^\circ`, `x=25` give `25`; `\dfrac12` gives `\frac{1}{2}`; `1,234`
    gives `1234`; `\text{(C)}` gives `C`; `10\%` gives `10`, hence never equals `0.1`. Applying it
    twice changes nothing. Empty where nothing is left, or the answer is longer than `MAX_LENGTH`.
    What follows no grammar is kept as it stands but for Unicode and spaces.
    """
    if len(answer) > MAX_LENGTH:
        return ""
    return answer if _PLAIN_INTEGER.fullmatch(answer) else normal(answer)[0]


@lru_cache(maxsize=8192)
def normal(answer: str) -> tuple[str, Node | None]:
    """The canonical string of an answer, and its tree; None where it follows no grammar."""
    for _ in range(_PASSES):
        text, tree = folded(answer), None
        with suppress(UnreadableError):
            tree = _item(read(text))
            text = write(tree)
        if text == answer or len(text) > MAX_LENGTH:
            break
        answer = text
    return (text if text == answer else ""), tree


_HELD = frozenset(("list", "setop", "rel", "env", "cells", "()", "[]", "(]", "[)", r"\{\}"))
_NO = r"(?!.*\bn(?:o|ot|one|or|ever|either|othing)\b)"
_PREAMBLE = re.compile(
    rf"(?:final )?ans(?:wer)?|option|choice|base|rs|usd|\u7b54\u6848.?|{_NO}.* (?:is|are|equals)"
)
_OF = re.compile("""(?ix: (?:.*[ ])?(?:of|is|are) | so|thus|hence|let|therefore | angle|area|side
    | var|cov|tr|re|im|rank|lcm)""")  # fmt: skip
_ARTICLE = re.compile("^(?:an?|the|there (?:is|are)) ")
_FACTORS = {"dozen": "12", "hundred": "100", "thousand": "10^3", "million": "10^6",
            "billion": "10^9", "trillion": "10^{12}"}  # fmt: skip
_COUNTS = "zero one two three four five six seven eight nine ten eleven twelve"
_SAID = {word: Node("num", str(number)) for number, word in enumerate(_COUNTS.split())}
_SAID["dne"] = Node("word", "does not exist")


def _item(node: Node, keeps_name: bool = False) -> Node:
    """A whole answer, or a part of a list, without what it has or lacks by chance."""
    while not keeps_name and (plain := _without(node)) != node:
        node = plain
    if node.kind not in _HELD:
        return node
    # Of several equations the names say which is which, and beside conditions that they are some.
    tags = {_tag(part) for part in node.parts}
    is_list = node.kind in ("list", r"\{\}")
    is_told = len(tags - {None}) > 1 or (is_list and (keeps_name or tags == {"%", None}))
    is_system = node.kind == "cells" or any(p.kind == "rel" and p.text != "=" for p in node.parts)
    parts = tuple(_item(p, is_told or (is_system and p.kind == "rel")) for p in node.parts)
    is_plain = node.kind == "list" and not any(part.kind in ("rel", "list") for part in parts)
    is_plain = is_plain and not (node.text == "or" and all(p.kind == "name" for p in parts))
    return node._replace(parts=parts, text="," if is_plain else node.text)


def _tag(node: Node) -> str | None:
    """What tells a part from the others: its unit, words before it, or the name it is equal to."""
    node = node.parts[0] if node.kind in ("neg", "list") else node
    if (node.kind == "unit" and is_unit(node.text)) or node.kind == "post":
        return "%" if node.text == "percent" else node.text[:2] + node.text[2:].rstrip("es")
    is_told = node.kind in ("row", "setop") and node.parts and node.parts[0].kind == "word"
    return write(node.parts[0]) if is_told or node.text == "=" else None


def _without(node: Node) -> Node:
    kind, text, parts = node
    first, last = (parts[0], parts[-1]) if parts else (node, node)
    is_mark = kind == "post" and text in ("%", DEGREE)
    if is_mark or (kind == "()" and len(parts) == 1) or (kind == "neg" and first.text == "0"):
        return first
    if kind == "unit":
        factor, _, counted = text.partition(" ")
        if factor in _FACTORS and counted[:1] != "^":
            number = Node("prod", parts=(first, read(_FACTORS[factor])))
            return Node("unit", counted, (number,)) if counted else number
        if is_unit(text) or (text in ("rad", "radian", "radians") and r"\pi" in write(first)):
            return first
        return node._replace(text=text.lower())
    if kind == "sum" and DEGREE in (written := write(node)):
        n_marked = sum(_tag(part) == DEGREE for part in parts)  # but not `45^\circ+180^\circ k`
        is_angle = n_marked == written.count(DEGREE) and r"\pi" not in written
        return read(written.replace(DEGREE, "")) if is_angle else node
    is_marked = kind in ("neg", "pm", "sum") and last.kind in ("unit", "post")
    if is_marked or (kind == "sub" and first.kind == "num"):  # `101_{\text{two}}`
        return node._replace(parts=(*parts[:-1], _without(last)))
    if kind == "list" and first.text == r"\ne" and all(part.kind != "rel" for part in parts[1:]):
        points = Node(r"\{\}", parts=(first.parts[1], *parts[1:]))  # `x\ne1,2`
        return Node("rel", r"\notin", (first.parts[0], points))
    if kind == "div" and first.kind == "neg":
        return Node("neg", parts=(node._replace(parts=(first.parts[0], parts[1])),))
    is_introduced = kind == "row" and len(parts) == 2 and first.kind == "word"
    is_introduced = is_introduced and _PREAMBLE.fullmatch(first.text.lower()) is not None
    is_label = text == ":" and first.kind == "word"
    is_label = is_label and first.text.lower() not in ("yes", "no", "true", "false")
    if is_introduced or is_label or (kind == "rel" and _asks(node)):
        return last
    if kind == "row":
        lowered = (p._replace(text=p.text.lower()) if p.kind == "word" else p for p in parts)
        return node._replace(parts=tuple(lowered))
    if kind == "env" and text == "cases" and all(len(row.parts) == 1 for row in parts):
        return Node("list", ",", tuple(row.parts[0] for row in parts))
    if kind == "rel" and text == "=" and is_name(last) and not names_in(first):  # `3=x`
        return first
    is_rounded = text.endswith(r"\approx") and parts[-2].kind not in ("word", "row", "cmd")
    if is_rounded and not names_in(parts[-2]):  # `2\pi\approx6.28`
        *signs, _ = text.split()
        return Node("rel", " ".join(signs), parts[:-1]) if signs else first
    if kind == "rel" and set(text.split()) == {"="} and not names_in(node):
        numbers = [part for part in parts if part.kind == "num"]  # `3*4=12`, but not `1=2`
        is_told = len(numbers) < len(parts) and last.text != "0" and last.kind != "cmd"
        return (numbers or parts)[-1] if is_told else node
    if kind == "word":
        before, _, choice = text.rpartition(" ")
        if re.fullmatch("[A-J]", choice) and _PREAMBLE.fullmatch(before.lower()):
            return Node("name", choice)
        return _SAID.get(text.lower(), Node("word", _ARTICLE.sub("", text.lower())))
    return node


_ASKED_FUNCTIONS = frozenset("fghFGHPEVNTSQqpADLC")
_OPERATORS = words(r"\max \min \det \arg \lim \gcd \dim \deg \sum \prod \int")


def _asks(node: Node) -> bool:
    """The left side names what was asked for, and the right side is its value."""
    left, *between, right = node.parts
    signs = set(node.text.split())
    if signs == {r"\in"}:
        names = left.parts if left.kind == "()" else (left,)
        return all(one.kind == "name" for one in names) or _is_application(left)
    if signs != {"="}:
        return False
    if _is_application(left) and names_in(left.parts[1]) and not between:
        # But `f(x+y)=f(x)+f(y)` is an equation.
        are_plain = left.kind == "div" or all(map(is_name, left.parts[1].parts))
        return are_plain or names_in(left.parts[0]).isdisjoint(names_in(right))
    # `A=lw=12`, but not `x=y=2`
    are_formulas = all(p.kind != "name" and names_in(p).isdisjoint("fgxyz") for p in between)
    is_value = not names_in(right) and (left.kind, right.kind) != ("cmd", "cmd")
    is_value = is_value or (right.kind == "env" and left.kind != "env")
    return left == ZERO_WIDTH or (_names(left, right) and is_value and are_formulas)


def _is_application(node: Node) -> bool:
    r"""`f(x)`, `f'(2)`, `P(A)`, `E[X]`, `\frac{dy}{dx}`."""
    is_pair = node.kind == "prod" and len(node.parts) == 2 and node.parts[1].kind in ("()", "[]")
    if not is_pair:
        return is_derivative(node)
    name = node.parts[0]
    while name.kind in ("sub", "post", "pow") or name.text == r"\mathbb":
        name = name.parts[0]
    is_asked = name.text in _ASKED_FUNCTIONS or name.text[:1] == "\\"
    if name.text not in names_in(node.parts[1]):  # `r(x)`, `n(A\cup B)`
        is_asked = is_asked or all(is_name(p) or p.kind == "setop" for p in node.parts[1].parts)
    return is_asked and name.kind == "name"


def _names(node: Node, value: Node) -> bool:
    """The node is a name, an application, an angle, a ratio, a tuple or sum of names, or words."""
    kind, text, parts = node
    if kind in ("name", "sub"):
        return is_name(node)
    if kind == "func":  # `\sin x=0` is an equation
        return value.text != "0" and text not in (r"\ln", r"\log")
    if kind == "pow":  # `A^{-1}`, `\sigma^2`
        return is_name(parts[0]) and (value.kind == "env" or parts[0].text == r"\sigma")
    head = parts[0] if parts and kind in ("prod", "row") else node
    while head.kind in ("sub", "pow"):
        head = head.parts[0]
    if kind in ("word", "cmd") or head.text in _OPERATORS or _is_application(node):
        return True
    is_set = kind == value.kind == r"\{\}"  # but `\{x\}=0.5`
    is_made = is_set or text[:1] == "'" or kind in ("row", "()", "env", "cells", "setop")
    if kind in ("sum", "prod", "div", "[]", "||", r"\|\|"):
        # `x+y=1` and `|x|=2` are equations, and so is `a+b=0`.
        is_made = names_in(node).isdisjoint("xy") and value.text != "0"
    said = (p.text for p in parts if kind == "row" and p.kind == "word")
    is_made = is_made and all(map(_OF.fullmatch, said))  # but not `\text{true if }x`
    inner = (part.parts[0] if part.kind in ("neg", "pow") else part for part in parts)
    return bool(parts) and is_made and all(_names(part, value) for part in inner)


def names_in(node: Node) -> frozenset[str]:
    """Names anywhere in a node, but for those with a value."""
    names = (node.text,) if node.kind == "name" and is_name(node) else ()
    return frozenset(names).union(*map(names_in, () if node.text == r"\mathbb" else node.parts))
