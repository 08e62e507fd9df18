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
    bare,
    is_derivative,
    is_name,
    read,
    write,
)

MAX_LENGTH = 1_000
"""Characters. A longer answer is none: it counts as unparseable. Bounds the cost of every rule."""

_PASSES = 8
"""After which an answer that still changes counts as unparseable; most come to rest in one."""
_WHOLE = "[1-9][0-9]{0,30}"
_PLAIN = re.compile(
    rf"(?!-0$)(-?)(?:((?:0|{_WHOLE})(?:\.[0-9]{{0,30}}[1-9])?)|\\frac\{{({_WHOLE})\}}\{{({_WHOLE})\}})"
)
"""The most frequent answers, which are canonical and need no reading."""


def canonical(answer: str) -> str:
    r"""The canonical string of an answer; equal strings are equal answers.

    `025`, `25.0`, `$25$`, `25^\circ`, `x=25` give `25`; `\dfrac12` gives `\frac{1}{2}`; `1,234`
    gives `1234`; `\text{(C)}` gives `C`; `10\%` gives `10`, hence never equals `0.1`. Applying it
    twice changes nothing. Empty where nothing is left, or the answer is longer than `MAX_LENGTH`.
    What follows no grammar is kept as it stands but for Unicode and spaces.
    """
    return "" if len(answer) > MAX_LENGTH else normal(answer)[0]


@lru_cache(maxsize=8192)
def normal(answer: str) -> tuple[str, Node | None]:
    """The canonical string of an answer, and its tree; None where it follows no grammar."""
    if plain := _PLAIN.fullmatch(answer):
        sign, *numbers = plain.groups()
        node, *others = (Node("num", number) for number in numbers if number)
        node = Node("div", parts=(node, *others)) if others else node
        return answer, Node("neg", parts=(node,)) if sign else node
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
_PREAMBLE = re.compile(r"""(?x: (?:final[ ])?ans(?:wer)? | option|choice|base|rs|usd
    | 答案.? | (?!.*\b(?:n(?:o|ot|one|or|ever|either|othing)|unless|except\w*)\b)
    .*[ ](?:is|are|equals))""")  # fmt: skip
"""Words before an answer, but not `none of these is`."""
_OF = re.compile("""(?ix: (?:.*[ ])?(?:of|is|are) | so|thus|hence|let|therefore | angle|area|side
    | var|cov|tr|re|im|rank|lcm)""")  # fmt: skip
"""Words before what was asked for, but not `true if`."""
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
    is_kept = [is_told or (is_system and part.kind == "rel") for part in node.parts]
    is_kept = [kept or _is_grouped(node, at) for at, kept in enumerate(is_kept)]
    parts = tuple(map(_item, node.parts, is_kept))
    kinds = {bare(part).kind for part in parts}
    is_plain = node.kind == "list" and node.text[0] != "\\" and kinds.isdisjoint(("rel", "list"))
    is_plain = is_plain and not (node.text == "or" and kinds == {"name"})
    return node._replace(parts=parts, text="," if is_plain else node.text)


def _is_grouped(node: Node, at: int) -> bool:
    r"""Brackets around a part say what belongs together: `A\cup(B\cap C)`."""
    inner, signs, rising = bare(node.parts[at]), node.text.split(), ("list", "rel", "setop")
    is_condition = node.kind == "rel" and signs[at - 1] in ("|", r"\mid", ":")
    if is_condition or node.parts[at].kind != "()" or {node.kind, inner.kind} - {*rising}:
        return False
    if node.kind == inner.kind == "setop":
        return at > 0 and {*signs, *inner.text.split()} not in ({r"\cup"}, {r"\cap"})
    return rising.index(inner.kind) <= rising.index(node.kind)


def _tag(node: Node) -> str | None:
    """What tells a part from the others: its unit, words before it, or the name it is equal to."""
    node = node.parts[0] if node.kind in ("neg", "list") else node
    if (node.kind == "unit" and is_unit(node.text)) or node.kind == "post":
        return "%" if node.text == "percent" else node.text[:2] + node.text[2:].rstrip("es")
    is_told = node.kind in ("row", "setop") and node.parts and node.parts[0].kind == "word"
    return write(node.parts[0]) if is_told or node.text == "=" else None


def _without(node: Node) -> Node:
    """The node without one thing that it has by chance, or in a plainer writing."""
    match node:
        case ("()", _, (inner,)) | ("neg", _, (Node("num", "0") as inner,)):
            return inner
        case ("post", sign, (inner,)) if sign in ("%", DEGREE):
            return inner
        case ("unit", named, (quantity,)):
            factor, _, rest = named.partition(" ")
            if factor in _FACTORS:
                return read(rf"{write(quantity)}\cdot {_FACTORS[factor]}\text{{{rest}}}")
            is_angle = named in ("rad", "radian", "radians") and r"\pi" in write(quantity)
            is_by_chance = named in ("C", "K") if quantity.kind == "post" else is_unit(named)
            return quantity if is_angle or is_by_chance else node._replace(text=named.lower())
        case ("prod", _, (("post", "^{\\circ}", (inner,)), ("name", "C", _))):
            return inner
        case ("sum", _, parts) if DEGREE in (text := write(node)):
            n_marked = sum(_tag(part) == DEGREE for part in parts)  # not `45^\circ+180^\circ k`
            is_angle = n_marked == text.count(DEGREE) and r"\pi" not in text
            return read(text.replace(DEGREE, "")) if is_angle else node
        case ("neg" | "pm" | "sum" | "prod", _, (*others, Node("unit" | "post") as last)):
            return node._replace(parts=(*others, _without(last)))
        case ("sub", _, (Node("num") as digits, base)):
            return node._replace(parts=(digits, _without(base)))
        case ("div", _, (("neg", _, (top,)), bottom)):
            return Node("neg", parts=(Node("div", parts=(top, bottom)),))
        case ("div", _, (Node("unit" | "post") as top, bottom)):
            return node._replace(parts=(_without(top), bottom))
        case ("rel", _, _):
            return _answering(node)
        case ("list", _, (("rel", r"\ne", (name, one)), *others)):  # `x\ne1,2`
            if all(part.kind != "rel" for part in others):
                return Node("rel", r"\notin", (name, Node(r"\{\}", parts=(one, *others))))
        case ("setop", ":", (("word", said, _), *_, last)):
            is_kept = said.lower() in ("yes", "no", "not", "true", "false", "at least", "at most")
            is_kept = is_kept or (last.kind == "word" and not _PREAMBLE.fullmatch(said.lower()))
            return node if is_kept else last
        case ("row", _, (("word", said, _), last)) if _PREAMBLE.fullmatch(said.lower()):
            return last
        case ("row", _, parts):
            lowered = (p._replace(text=p.text.lower()) if p.kind == "word" else p for p in parts)
            return node._replace(parts=tuple(lowered))
        case ("env", "cases" | "aligned" | "align", rows) if all(
            len(row.parts) == 1 and row.parts[0].parts[:1] != (ZERO_WIDTH,) for row in rows
        ):
            return Node("list", ",", tuple(row.parts[0] for row in rows))
        case ("word", said, _):
            before, _, choice = said.rpartition(" ")
            if re.fullmatch("[A-J]", choice) and _PREAMBLE.fullmatch(before.lower()):
                return Node("name", choice)
            if before.lower().endswith("answer is"):
                return Node("word", choice)
            return _SAID.get(said.lower(), Node("word", _ARTICLE.sub("", said.lower())))
    return node


_OPERATORS = words(r"\max \min \det \arg \lim \gcd \dim \deg \sum \prod \int")
_FUNCTIONS = frozenset("fghFGHPEVNTSQqpADLC")
_FORMULAS = ("sum", "prod", "div", "[]", "||", r"\|\|")
_GROUPS = ("row", "()", "env", "cells", "setop")


def _answering(node: Node) -> Node:
    r"""The side that is the answer: `5` of `x=5`, `3=x`, `36/3=12`; else the whole relation."""
    signs, (first, *between, last) = node.text.split(), node.parts
    exact = node.parts[:-1]
    if signs[-1] == r"\approx" and _is_computed(exact[-1]):  # `2\pi\approx6.28`
        return Node("rel", " ".join(signs[:-1]), exact) if between else first
    if set(signs) == {r"\in"}:
        return last if _is_asked(first, last) else node
    if set(signs) != {"="} or first.kind == last.kind == "cmd":
        return node
    if is_name(last) and not between and _is_computed(first):
        return first
    is_defined = write(first) == ""
    if not between and _is_application(first) and first.parts[1].kind in ("()", "[]", "prod"):
        # `f(x)=x+1`, but `P(A)=P(B)` and `f(x+y)=f(x)+f(y)` are equations
        function, argument = names_in(first.parts[0]), first.parts[1]
        is_defined = all(map(is_name, argument.parts)) and not _is_application(last)
        is_defined = is_defined or (function != set() and function.isdisjoint(names_in(last)))
    # `A=lw=12`, but not `x=y=2` or `x=1 if a=2`
    is_value = all(p.kind != "name" and names_in(p).isdisjoint("fgxyz") for p in between)
    is_value = is_value and (not names_in(last) or last.kind == "env" != first.kind)
    is_given = is_value and not any(map(_has_words, between)) and _is_asked(first, last)
    is_worked = last.text != "0" and {part.kind for part in node.parts} != {"num"}
    is_worked = is_worked and all(map(_is_computed, node.parts))  # `3*4=12`, but not `1=2`
    return last if is_defined or is_given or is_worked else node


def _is_computed(node: Node) -> bool:
    is_said = node.kind in ("row", "cmd") or _has_words(node)
    return not is_said and not names_in(node) and all(map(_is_computed, node.parts))


def _is_asked(node: Node, value: Node) -> bool:
    """What may be asked for: words, names, applications, and what is made of these alone."""
    kind, text, parts = node
    if kind in ("word", "cmd") or is_name(node) or _is_application(node):
        return True
    if kind == "func":  # `\sin x=0` is an equation
        return value.text != "0" and text not in (r"\ln", r"\log")
    if kind == "pow":  # `A^{-1}`, `\sigma^2`
        return is_name(parts[0]) and (value.kind == "env" or parts[0].text == r"\sigma")
    if kind in _FORMULAS:  # `x+y=1` and `|x|=2` are equations, and so is `a+b=0`
        is_made = value.text != "0" and names_in(node).isdisjoint("xy")
    else:  # but not `\{x\}=0.5`
        is_made = kind in _GROUPS or kind == value.kind == r"\{\}"
        said = (part.text for part in parts if kind == "row" and part.kind == "word")
        is_made = is_made and all(map(_OF.fullmatch, said))
    inner = [part.parts[0] if part.kind in ("neg", "pow") else part for part in parts]
    if kind == "sum":  # `100m+n`
        inner = [part.parts[-1] if _is_digit(part) else part for part in inner]
    if kind in ("()", "setop", "div") or inner != [*parts]:
        # Their mirror image would have the same value: `(y,x)=(1,2)`, `100m+n=307`.
        letters = [re.sub(r"\\text|[^A-Za-z0-9]", "", write(part)) for part in inner]
        is_made = is_made and letters == sorted(letters) and parts[0].kind != "neg"
    return is_made and parts != () and all(_is_asked(part, value) for part in inner)


def _is_digit(node: Node) -> bool:
    return node.kind == "prod" and len(node.parts) == 2 and node.parts[0].text.strip("0") == "1"


def _is_application(node: Node) -> bool:
    r"""`f(x)`, `f'(2)`, `P(A)`, `E[X]`, `\max(a,b)`, `\lim_{x\to0}f(x)`, `\frac{dy}{dx}`."""
    if node.kind not in ("prod", "row") or not node.parts:
        return is_derivative(node)
    name, argument, *others = node.parts
    while name.kind in ("sub", "post", "pow") or name.text == r"\mathbb":
        name = name.parts[0]
    while argument.kind == "sub":  # `f(x)_{\max}`
        argument = argument.parts[0]
    if name.kind == "()" and names_in(name) and names_in(name) <= _FUNCTIONS:  # `(f+g)(x)`
        return argument.kind == "()" and not others
    is_known = name.text in _FUNCTIONS or name.text[:1] == "\\"
    is_known = is_known or all(is_name(part) and part != name for part in argument.parts)
    is_applied = name.kind == "name" and argument.kind in ("()", "[]") and not others
    return (is_known and is_applied) or name.text in _OPERATORS


def _has_words(node: Node) -> bool:
    is_said = node.kind == "word" or (node.kind == "unit" and not is_unit(node.text))
    return is_said or any(map(_has_words, node.parts))


def names_in(node: Node) -> frozenset[str]:
    """Names anywhere in a node, but for those with a value."""
    if is_name(node):  # `x_1` is another one than `x`
        return frozenset((write(node),))
    return frozenset().union(*map(names_in, () if node.text == r"\mathbb" else node.parts))
