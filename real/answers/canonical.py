r"""One cheap spelling for an answer's many spellings: its tree is rewritten, nothing is evaluated.

Rules that would need arithmetic are left out: `2/4` is not `1/2`, `0.5` is not `1/2`, and `1,-2`
is not `-2,1`. Units, degree and percent signs fall away, for answers have them or not by chance.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache

from real.answers.reader import Node, UnreadableError, bare, is_unit, read, write
from real.answers.tokens import FUNCTIONS, folded

MAX_LENGTH = 1_000
"""Characters. A longer answer is none: it counts as unparseable. Bounds the cost of every rule."""

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
    return answer if _PLAIN_INTEGER.fullmatch(answer) else _canonical(answer)


@lru_cache(maxsize=8192)
def _canonical(answer: str) -> str:
    text = folded(answer)
    with suppress(UnreadableError):
        text = write(_item(read(text)))
    return text if len(text) <= MAX_LENGTH else ""


_HELD = frozenset("list setop rel env cells () [] (] [) \\{\\}".split())
_PREAMBLES = ("answer", "the answer is", "the final answer is", "final answer")
_DROPPED_WORDS = frozenset("percent pct percents degrees degree deg".split())


def _item(node: Node) -> Node:
    """A whole answer, or a part of a list, without what it has or lacks by chance."""
    while (plain := _without(node)) != node:
        node = plain
    if node.kind in _HELD:
        names = [p.parts[0] for p in node.parts if (p.kind, p.text) == ("rel", "=")]
        # Of several equations the names say which is which.
        keeps = node.kind in ("list", r"\{\}", "()") and len(set(names)) > 1
        node = node._replace(
            parts=tuple(
                p._replace(parts=tuple(map(_item, p.parts)))
                if keeps and p.kind == "rel"
                else _item(p)
                for p in node.parts
            )
        )
        if node.kind == "list" and not any(part.kind == "rel" for part in node.parts):
            node = node._replace(text=",")
    return node


def _without(node: Node) -> Node:
    kind, text, parts = node
    if kind == "()" and len(parts) == 1:
        return parts[0]
    if kind == "unit" and (text in _DROPPED_WORDS or is_unit(text)):
        return parts[0]
    if kind == "post" and text in ("%", r"\circ"):
        return parts[0]
    if kind in ("neg", "pm") and parts[0].kind in ("unit", "post"):
        return node._replace(parts=(_without(parts[0]),))
    if kind == "sum" and parts[-1].kind in ("unit", "post", "neg"):
        last = _without(parts[-1])
        return (
            node
            if last.kind in ("sum", "num") != (parts[-1].kind == "neg")
            else node._replace(parts=(*parts[:-1], last))
        )
    if kind == "neg" and parts[0] == Node("num", "0"):
        return parts[0]
    if kind == "div" and parts[0].kind == "neg":
        return Node("neg", parts=(Node("div", parts=(parts[0].parts[0], parts[1])),))
    if kind == "row" and parts and parts[0].text.lower() in _PREAMBLES:
        return node._replace(parts=parts[1:]) if len(parts) > 2 else parts[1]
    if kind == "word" and not text.islower():
        return Node("word", text.lower())
    if kind == "setop" and text == ":" and len(parts) == 2 and parts[0].kind == "word":
        return parts[1]
    if kind == "rel" and text.split()[-1] in ("=", r"\in") and _is_named(node):
        return parts[-1]
    return node


_ASKED_FUNCTIONS = frozenset("f g h F G H P E V N T S Q p q A D L".split())
_COORDINATES = frozenset("xyz")


def _is_named(node: Node) -> bool:
    """The left side names what was asked for, and the right side is its value."""
    *names, right = node.parts
    signs = node.text.split()
    if names[0].kind == "row" and not names[0].parts:
        return True
    if len(names) > 1:
        return (
            set(signs) == {"="}
            and _names(names[0], right)
            and not _letters_in(right)
            and not any(_letters_in(side) for side in names[1:])
        )
    if signs == [r"\in"]:
        return names[0].kind == "name" or _is_application(names[0])
    if _is_application(names[0]) and not _letters_in(names[0].parts[1]) == frozenset():
        return True
    return not _letters_in(right) and _names(names[0], right)


def _is_application(node: Node) -> bool:
    """`f(x)`, `P(A)`."""
    if node.kind != "prod" or len(node.parts) != 2 or node.parts[1].kind not in ("()", "[]"):
        return False
    name = node.parts[0]
    while name.kind in ("sub", "post", "pow") and name.text in ("", "'", "''"):
        name = name.parts[0]
    return name.text in _ASKED_FUNCTIONS or (name.kind == "name" and name.text[0] == "\\")


def _names(node: Node, value: Node) -> bool:
    """The node is a name, an application, an angle, a ratio, a tuple or sum of names, or words."""
    kind, text, parts = node
    inner = bare(node)
    if inner is not node:
        return _names(inner, value)
    if kind in ("name", "word"):
        return text not in ("e", "i", r"\pi", r"\infty")
    if kind == "sub" or kind == "cmd" or (kind == "post" and text[0] == "'"):
        return kind == "cmd" or _names(parts[0], value)
    if kind == "func":
        return True
    if kind in ("()", r"\{\}") and len(parts) > 1:
        return all(_names(part, value) for part in parts)
    if kind == "row":
        return any(part.kind == "word" for part in parts)
    if kind == "setop":
        return text == ":" and all(_names(part, value) for part in parts)
    if kind == "prod":
        if _is_application(node):
            return True
        return all(part.kind == "name" and part.text.isupper() for part in parts) or (
            parts[0].text == "m" and _names(Node("prod", parts=parts[1:]), value)
        )
    is_sum = kind in ("sum", "div") and value != Node("num", "0")
    if kind in ("[]", "||"):
        return (
            len(parts) == 1
            and parts[0].kind in ("prod", "name", "cmd", "word")
            and _names(parts[0], value)
            and not (_letters_in(node) & _COORDINATES)
        )
    return (
        is_sum
        and not _letters_in(node) & _COORDINATES
        and all(
            _names(bare(part.parts[0] if part.kind == "neg" else part), value) for part in parts
        )
    )


def _letters_in(node: Node) -> frozenset[str]:
    """Names anywhere in a node, but for those with a value."""
    if node.kind == "name":
        known = ("e", "i", r"\pi", r"\infty", r"\emptyset")
        is_known = (
            node.text in known or node.text.startswith(r"\mathbb") or node.text[1:] in FUNCTIONS
        )
        return frozenset() if is_known else frozenset((node.text,))
    return frozenset().union(*map(_letters_in, node.parts))
