r"""The tree of an answer, read from its tokens, and its text again.

Brackets that only group stay in the tree, so its text needs no rule for when to write them. The
kinds of nodes are those of `_FORMS`, which has how each is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from real.answers.notation import FUNCTIONS, GREEK, words
from real.answers.tokens import Node, is_word, tokenized


class UnreadableError(ValueError):
    """The tokens follow no grammar: half a pair of brackets, an operator without its side."""


MAX_DEPTH = 40
"""Levels of brackets and arguments. What is deeper is not read."""
DEGREE = r"^{\circ}"

_END = Node("end", "")
_RELATIONS = words(r"""= < > \le \ge \ne \in \notin \to \approx \equiv \sim \simeq \cong \subset
    \subseteq \supset \supseteq \perp \parallel \propto \Rightarrow \implies \iff | \mid \mod
    \ll \gg""")  # fmt: skip
_SET_SIGNS = words(r"\cup \cap \setminus :")
_CHAINED = {"rel": (_RELATIONS, _RELATIONS | {":"}), "setop": (_SET_SIGNS, _SET_SIGNS - {":"})}
"""Signs between sides, outside of a set and directly in one."""
_SIGNS = {"+": "", "-": "neg", r"\pm": "pm", r"\mp": "mp"}
_PAIRS = {"(": ")", "[": "]", r"\{": r"\}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil",
          r"\langle": r"\rangle", "{": "}"}  # fmt: skip
_CLOSERS = frozenset((*_PAIRS.values(), "", "&", r"\\"))
_JOINTS = {r"\lor": "or", r"\land": "and"}
"""Signs that join propositions; between relations they are words."""
_BARS = ("|", r"\|")
_INFIX = {r"\choose": "binom", r"\over": "div"}
_NO_FACTOR = _RELATIONS | _SET_SIGNS | _CLOSERS | {*_SIGNS, r"\cdot", "/", *_INFIX}
_MARKS = words(r"\overline \vec \hat \tilde \dot \ddot \not \mathbb \angle \triangle")
_BIG = words(r"\int \iint \oint \sum \prod \lim \partial \sup")
_COMMANDS = {r"\frac": ("div", 2), r"\binom": ("binom", 2), r"\abs": ("||", 1),
             r"\floor": (r"\lfloor\rfloor", 1), r"\ceil": (r"\lceil\rceil", 1),
             **dict.fromkeys(_MARKS, ("cmd", 1)), **dict.fromkeys(_BIG, ("cmd", 0))}  # fmt: skip
"""Kinds of commands that are not names, and the number of their arguments."""
_MATRICES = ("matrix", "bmatrix", "array")
_LOOSE = words("sum neg pm mp prod over list rel setop mixed pow sub row unit")
ZERO_WIDTH = Node("row")
"""What stands between two separators, or in `{}`: nothing."""


class _Reader:
    """Recursive descent over the tokens of one answer."""

    def __init__(self, tokens: list[Node]) -> None:
        self.tokens = [*tokens, _END, _END]
        self.at = self.depth = 0
        self.opener = ""
        """Of the innermost bracket: in a set a colon means "such that", and a bar closes a bar."""

    @property
    def next(self) -> Node:
        return self.tokens[self.at]

    def take(self, *texts: str) -> str:
        token = self.tokens[self.at]
        if token is _END or (texts and token.text not in texts):
            raise UnreadableError
        self.at += 1
        return token.text

    def items(self) -> Node:
        """Items between separators up to a closing token, which is left there."""
        items, signs = [self.chain("rel")], [","]
        if self.next.text in _INFIX:
            kind = _INFIX[self.take()]
            items = [Node(kind, parts=(bare(items[0]), bare(self.chain("rel"))))]
        while self.next.kind == "sep":
            sign = self.take()
            # There may be two of them: `1, 2, and 3`.
            if self.next.text not in _CLOSERS and self.next.kind not in ("sep", "end"):
                signs.append(sign)
                items.append(self.chain("rel"))
        if len(items) == 1:
            return items[0]
        if all(item.kind == "rel" for item in items):
            signs = [_JOINTS.get(sign, sign) for sign in signs]
        if not _JOINTS.keys().isdisjoint(signs) and len({*signs[1:]}) > 1:
            raise UnreadableError
        # `x=1,y=2 or x=3,y=4`, but not `1, 2 or 3` or `1, 2 and 3, 4`
        for sign in (";", "or", "and", ",") if items[0].kind == "rel" else (";", "or", ","):
            starts = [at for at, before in enumerate(signs) if at == 0 or before == sign]
            size = len(items) // len(starts)
            if 1 < size < len(items) and starts == [*range(0, len(items), size)]:
                groups = [tuple(items[at : at + size]) for at in starts]
                if sign == ";" and self.opener in ("(", "["):  # `[1,2;3,4]`
                    return Node("env", "pmatrix", tuple(Node("cells", parts=one) for one in groups))
                return Node("list", "or", tuple(Node("list", ",", one) for one in groups))
        return Node("list", "," if signs[-1] == ";" else signs[-1], tuple(items))

    def chain(self, kind: str) -> Node:
        """Sides and the signs between them; the first side may be missing, as in `= 5`."""
        side = self.sum if kind == "setop" else lambda: self.chain("setop")
        known = _CHAINED[kind][self.opener == r"\{"]
        is_missing = self.next.text in _RELATIONS and self.next.text != "|"
        sides, signs = [ZERO_WIDTH if is_missing else side()], []
        while self.next.text in known and self.next.text != self.opener:
            signs.append(self.take())
            sides.append(side())
        return Node(kind, " ".join(signs), tuple(sides)) if signs else sides[0]

    def sum(self) -> Node:
        terms: list[Node] = []
        while not terms or self.next.text in _SIGNS:
            kind = _SIGNS[self.take()] if self.next.text in _SIGNS else ""
            term = self.term()
            terms.append(Node(kind, parts=(term,)) if kind else term)
        return terms[0] if len(terms) == 1 else Node("sum", parts=tuple(terms))

    def term(self) -> Node:
        """Factors and quotients; `row` or `over` where no sign says how they are tied."""
        kind, factors, is_slashed = "prod", [self.factor()], False
        while True:
            token, before = self.next, factors[-1]
            if token.text in (r"\cdot", "/"):
                is_closed = self.tokens[self.at - 1].text == ")"
                is_slashed = self.take() == "/"
                right = self.factor()
                if kind == "row":  # `3 4/5`, but not `3 4*5`
                    fraction = Node("div", parts=(before, right))
                    if not (is_slashed and _mixes(factors[:-1], fraction)):
                        raise UnreadableError
                    factors, kind = [Node("mixed", parts=(factors[0], fraction))], "prod"
                elif not is_slashed:
                    factors.append(right)
                elif before.kind == "func" and right.kind != "func" and not is_closed:
                    raise UnreadableError  # the slash of `\sin x/2` may stand within the argument
                else:
                    factors = [Node("div", parts=(bare(_tied(kind, factors)), bare(right)))]
            elif token.kind == "word" and before.kind != "word":
                is_slashed = False
                if kind == "row":
                    factors[-1] = self.unit(before)
                else:
                    factors, kind = [self.unit(_tied(kind, factors))], "prod"
            elif self.starts_factor():
                right = self.base()
                if _mixes(factors, right):
                    factors = [self.factor(Node("mixed", parts=(before, right)))]
                    continue
                factors.append(self.factor(right))
                # But `n 2^n` is a product.
                is_row = factors[-1].kind == "num" or write(before)[0].isdigit()
                is_row = is_row and right.kind == "num" and before.text != "!"
                is_row = is_row or "word" in (right.kind, before.kind) or before.kind == "unit"
                kind = "row" if is_row else "over" if is_slashed else kind
            else:
                return _tied(kind, factors)

    def starts_factor(self) -> bool:
        kind, text, _ = self.next
        if text not in _BARS:
            return (kind not in ("op", "sep", "end") or text in _PAIRS) and text not in _NO_FACTOR
        # Of bars from here on to the end of the bracket an odd number starts with a sign.
        level = n_bars = 0
        for token in self.tokens[self.at :]:
            level += (token.text in _PAIRS) - (token.text in _PAIRS.values())
            if level < 0:
                break
            n_bars += token.text == text and level == 0
        return text != self.opener and n_bars % 2 == 0

    def factor(self, node: Node | None = None) -> Node:
        """A base, or the node, and what stands behind it: powers, an index, `!`, `'`, `%`."""
        node = node or self.base()
        while (mark := self.next.text)[:1] in ("^", "_", "!", "'", "%"):
            self.at += 1
            if mark not in ("^", "_"):
                node = Node("post", mark, (node,))
                continue
            shifted = bare(self.base())
            if mark == "_":
                base, *powers = node.parts if node.kind == "pow" else (node,)  # `x^2_1`
                node = Node("sub", parts=(base, shifted))
                node = Node("pow", parts=(node, *powers)) if powers else node
            elif shifted.text in (r"\circ", "o"):
                node = Node("post", DEGREE, (node,))
            elif node.kind == "pow":
                raise UnreadableError
            else:
                node = Node("pow", parts=(node, shifted))
        return node

    def base(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UnreadableError
        token = self.next
        if token.kind in ("num", "name"):
            node = token
            self.at += 1
        elif token.kind == "word":
            words = self.take()
            while self.next.kind == "word":
                words += f" {self.take()}"
            node = Node("word" if len(words) > 1 else "name", words)
        elif token.text == "-" and self.tokens[self.at - 1].text != "-":  # `2\cdot-3`, `10^-3`
            self.at += 1
            node = Node("()", parts=(Node("neg", parts=(self.factor(),)),))
        elif token.text in _PAIRS or token.text in _BARS:
            node = self.bracket()
        elif token.kind == "begin":
            node = self.environment()
        elif token.kind == "cmd" and token.text not in _NO_FACTOR:
            node = self.command()
        else:
            raise UnreadableError
        self.depth -= 1
        return node

    def bracket(self) -> Node:
        outer, opener, is_empty = self.opener, self.take(), self.next.text in _PAIRS.values()
        self.opener = opener
        inner = self.sum() if opener in _BARS else ZERO_WIDTH if is_empty else self.items()
        self.opener = outer
        closers = (")", "]") if opener in ("(", "[") else (_PAIRS.get(opener, opener),)
        closer = self.take(*closers)
        if opener == "{":
            return Node("()", parts=(inner,)) if inner.kind in _LOOSE else inner
        parts = inner.parts if (inner.kind, inner.text) == ("list", ",") else (inner,)
        return Node(opener + closer, parts=() if inner == ZERO_WIDTH else parts)

    def argument(self) -> Node:
        """One argument of a command: a group, or the next digit, letter, word or command."""
        token = self.next
        if token.kind == "num" and len(token.text) > 1 and token.text.isdigit():
            self.tokens[self.at] = Node("num", token.text[1:])
            return Node("num", token.text[0])
        return bare(self.base())

    def command(self) -> Node:
        name = self.take()
        if name in (r"\sqrt", r"\cbrt"):
            index = Node("num", "2" if name == r"\sqrt" else "3")
            if self.next.text == "[":
                index = bare(self.bracket()._replace(kind="()"))
            return Node("root", parts=(self.argument(), index))
        if name[1:] in FUNCTIONS:
            return self.function(name)
        kind, n_arguments = _COMMANDS.get(name, ("name", 0))
        if name == r"\Delta" and (self.next.kind == "name" or self.next.text[1:] in GREEK):
            kind, n_arguments = "cmd", 1
        if n_arguments == 1 and kind != "cmd" and self.next.text not in ("(", "{"):
            kind, n_arguments = "name", 0  # a word, as in `floor 2`
        arguments = [self.argument() for _ in range(n_arguments)]
        while n_arguments == 0 and self.next.text == "{":
            arguments.append(self.argument())
        kind = "cmd" if kind == "name" and arguments else kind
        return Node(kind, name if kind in ("cmd", "name") else "", tuple(arguments))

    def function(self, name: str) -> Node:
        r"""`\sin^2 2x`, `\log_2(x)`, `\ln x`; the name alone where no argument follows."""
        marked = self.factor(Node("name", name))
        node, *power = marked.parts if marked.kind == "pow" else (marked,)
        node, *index = node.parts if node.kind == "sub" else (node,)
        if node.kind == "post":
            return marked
        if not index and [*map(write, power)] == ["-1"] and f"arc{name[1:]}" in FUNCTIONS:
            name, power = rf"\arc{name[1:]}", []
            marked = Node("name", name)
        factors = [self.base()] if self.next.text == "(" else []
        is_over = bool(factors) or (self.next.kind == "word" and len(self.next.text) > 1)
        while not is_over and self.starts_factor():
            factors.append(self.factor())
            is_over = self.next.kind not in ("cmd", "name") or self.next.text[1:] in FUNCTIONS
        if not factors:
            return marked
        node = Node("func", name, (bare(_tied("prod", factors)), *index))
        return Node("pow", parts=(node, *power)) if power else node

    def environment(self) -> Node:
        """Rows of cells; an array or a matrix in round or square brackets are one."""
        name = self.take()[len(r"\begin{") : -1]
        sign, ends = r"\\", ("&", r"\\", rf"\end{{{name}}}")
        rows: list[list[Node]] = []
        while sign != ends[-1]:
            if sign == r"\\":
                rows.append([])
            rows[-1].append(ZERO_WIDTH if self.next.text in ends else self.items())
            sign = self.take(*ends)
        if rows[-1] == [ZERO_WIDTH]:
            rows.pop()
        if len(rows) == 1 == len(rows[0]) and not name.endswith(("matrix", "array")):
            return Node("()", parts=(rows[0][0],))
        cells = tuple(Node("cells", parts=tuple(row)) for row in rows)
        return Node("env", "pmatrix" if name in _MATRICES else name, cells)

    def unit(self, quantity: Node) -> Node:
        """Words behind a quantity, with their powers and slashes."""
        words: list[str] = []
        while True:
            token, behind = self.tokens[self.at : self.at + 2]
            is_letter = token.kind == "name" and words[-1] in "/*"
            is_joint = token.text in ("/", r"\cdot") and behind.kind in ("word", "name")
            if token.kind == "word" or is_letter or is_joint:
                words.append(self.take().replace(r"\cdot", "*"))
            elif token.text == "^":
                self.at += 1
                words.append("^" + write(bare(self.base())))
            else:
                return Node("unit", " ".join(words), (quantity,))


def _mixes(before: list[Node], fraction: Node) -> bool:
    """A whole number, and behind it a fraction of two that is less than one."""
    numbers = [*before, *fraction.parts]
    is_ratio = fraction.kind == "div" and all(n.kind == "num" and n.text.isdigit() for n in numbers)
    return is_ratio and len(before) == 1 and int(numbers[1].text) < int(numbers[2].text)


def _tied(kind: str, factors: list[Node]) -> Node:
    if kind == "over":
        return Node("over", parts=(*factors[0].parts, *factors[1:]))
    return factors[0] if len(factors) == 1 else Node(kind, parts=tuple(factors))


CONSTANTS = (r"\pi", "e", "i")
_LETTERS = GREEK | words("ell hbar")
_LETTER_MARKS = (r"\vec", r"\hat", r"\tilde", r"\Delta")


def is_name(node: Node) -> bool:
    """A letter or command that has no value of its own, perhaps with an index or a mark."""
    if node.text in CONSTANTS:  # but `e_1` and `\hat i` are names
        return False
    while node.parts and (node.kind == "sub" or node.text[:1] == "'" or node.text in _LETTER_MARKS):
        node = node.parts[0]
    name = node.text.removeprefix("\\")  # not every command is a letter: `x\mapsto 2x`
    is_letter = name == node.text or name.removeprefix("var").lower() in _LETTERS
    return node.kind == "name" and is_letter


def is_derivative(node: Node) -> bool:
    r"""`\frac{dy}{dx}` and `\frac{d}{dx}`, whose letter d is no factor."""
    top, bottom = node.parts if node.kind == "div" else (node, node)
    while top.kind in ("prod", "pow"):
        top = top.parts[0]
    is_ratio = node.kind == "div" and bottom.kind == "prod"
    return is_ratio and top.text == bottom.parts[0].text in ("d", r"\partial")


def bare(node: Node) -> Node:
    """The node without brackets that only group it."""
    while node.kind == "()" and len(node.parts) == 1:
        node = node.parts[0]
    return node


def read(folded_text: str) -> Node:
    """The tree of a folded text; UnreadableError where it follows no grammar."""
    reader = _Reader(tokenized(folded_text))
    node = ZERO_WIDTH if reader.next is _END else reader.items()
    if reader.next is not _END:
        raise UnreadableError
    return node


def _behind(before: str, factor: str) -> str:
    """A factor behind another one, with a sign where it would be read as part of something else."""
    is_tied = factor[0].isdigit() or factor.startswith(r"\frac") or "text{" in before + factor
    return (r"\cdot " if is_tied else " ") + factor


_BETWEEN = {",": ", ", "or": r"\text{ or }", "and": r"\text{ and }"}
_FORMS: dict[str, str | Callable[[str, list[str]], str]] = {
    # Digits, perhaps with `\overline{...}`; a letter or command; letters of text.
    "num": "{text}", "name": "{text}",
    "word": lambda text, _: text if is_word(text) else rf"\text{{{text}}}",
    # Terms, and factors.
    "sum": lambda _, terms: re.sub(r"\+(?=-|\\[pm]{2} )", "", "+".join(terms)),
    "neg": "-{0}", "pm": r"\pm {0}", "mp": r"\mp {0}",
    "prod": lambda _, factors: factors[0] + "".join(map(_behind, factors, factors[1:])),
    "div": r"\frac{{{0}}}{{{1}}}", "mixed": "{0}{1}", "binom": r"\binom{{{0}}}{{{1}}}",
    "pow": "{0}^{{{1}}}", "sub": "{0}_{{{1}}}",
    "root": lambda _, of: rf"\sqrt{'' if of[1] == '2' else f'[{of[1]}]'}{{{of[0]}}}",
    # Side by side, but no product, as `5\quad 6` and `x 2`; `a/b c`, which may mean either of two.
    "row": lambda _, parts: r"\quad ".join(parts),
    "over": lambda _, factors: f"{factors[0]}/{' '.join(factors[1:])}",
    # Behind a part: `!`, `%`, `'` or `\circ`; words.
    "post": "{0}{text}", "unit": r"{0}\text{{ {text}}}",
    # A name and its arguments; of a function the last one is its index.
    "cmd": lambda name, arguments: name + "".join(f"{{{one}}}" for one in arguments),
    "func": lambda name, of: name + "".join(f"_{{{index}}}" for index in of[1:]) + f"({of[0]})",
    # Items of a comma, `or` or `and`; sides and the signs between them.
    "list": lambda sign, of: _BETWEEN.get(sign, rf" {sign} ").join(of),
    "rel": lambda signs, of: of[0] + "".join(map("{} {}".format, signs.split(), of[1:])),
    "setop": lambda signs, of: of[0] + "".join(map("{} {}".format, signs.split(), of[1:])),
    "env": lambda name, rows: rf"\begin{{{name}}}" + r"\\".join(rows) + rf"\end{{{name}}}",
    "cells": lambda _, cells: "&".join(cells),
}  # fmt: skip
r"""How a node of a kind is written. Other kinds are pairs of brackets: `()`, `(]`, `\{\}`, `||`."""


def write(node: Node) -> str:
    """The text of a tree; reading it gives the tree again."""
    kind, text, parts = node
    inner = [write(part) for part in parts]
    if form := _FORMS.get(kind):
        return form.format(*inner, text=text) if isinstance(form, str) else form(text, inner)
    half = len(kind) // 2
    return kind[:half] + (" " if half > 2 else "") + ",".join(inner) + kind[half:]
