r"""The tree of an answer, read from its tokens, and its text again.

Brackets that only group stay in the tree, so its text needs no rule for when to write them.

| kind | text | parts |
|---|---|---|
| `num` | digits, perhaps with `\overline{...}` or `e5` | |
| `name`, `word` | a letter or command; letters of text | |
| `sum`, `neg`, `pm`, `mp`, `prod` | | terms; factors |
| `div`, `pow`, `sub`, `root`, `binom`, `mixed` | | two |
| `func`, `cmd` | name | arguments |
| `post` | `!`, `%`, `'` or `\circ` | what it stands behind |
| `unit` | words | the quantity before them |
| `row` | | side by side, but no product: `5\quad 6`, `x 2` |
| `over` | | `a/b c`, which may mean either of two |
| `()`, `(]`, `\{\}`, `||`, ... | | what stands between the brackets |
| `list` | `,`, `or`, `and` | items |
| `rel`, `setop` | signs between the parts | sides |
| `env`, `cells` | name | rows; their cells |
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from real.answers.notation import FUNCTIONS, RAW_UNITS, words
from real.answers.tokens import Token, is_word, tokens


class Node(NamedTuple):
    """A node of an answer's structure."""

    kind: str
    text: str = ""
    parts: tuple[Node, ...] = ()


class UnreadableError(ValueError):
    """The tokens follow no grammar: half a pair of brackets, an operator without its side."""


MAX_DEPTH = 40
"""Levels of brackets and arguments. What is deeper is not read."""

_END = Token("end", "")
_RELATIONS = words(r"""= < > \le \ge \ne \in \notin \to \approx \equiv \sim \simeq \cong \subset
    \subseteq \supset \supseteq \perp \parallel \propto \Rightarrow \implies \iff | \mid \mod
    \bmod \ll \gg""")  # fmt: skip
_SET_SIGNS = frozenset((r"\cup", r"\cap", r"\setminus", ":"))
_SIGNS = {"+": "", "-": "neg", r"\pm": "pm", r"\mp": "mp"}
_PAIRS = {"(": ")", "[": "]", r"\{": r"\}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil",
          r"\langle": r"\rangle"}  # fmt: skip
_CLOSERS = frozenset((*_PAIRS.values(), "}", "", "&", r"\\"))
_SEPARATORS = {",": ",", ";": ",", "or": "or", "and": "and"}
_INFIX = {r"\choose": "binom", r"\over": "div"}
_NAMED = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_BASES = {name: str(n) for n, name in enumerate(_NAMED, 2)}
"""Bases of numbers that are written in words."""
_NO_FACTOR = frozenset((*_RELATIONS, *_SET_SIGNS, *_SIGNS, *_CLOSERS, r"\cdot", "/", *_INFIX))
_ONE_ARGUMENT = words(r"\overline \vec \hat \widehat \tilde \overrightarrow \dot \ddot \pmod \not")
_BIG = words(r"\int \iint \oint \sum \prod \lim \partial \sup")
_SAME_ENVIRONMENT = {"bmatrix": "pmatrix", "array": "matrix", "smallmatrix": "matrix"}
_SPELT = {r"\abs": "||", r"\floor": r"\lfloor\rfloor", r"\ceil": r"\lceil\rceil"}
ZERO_WIDTH = Node("row")
"""What stands between two separators, or in `{}`: nothing."""


class _Reader:
    """Recursive descent over the tokens of one answer."""

    def __init__(self, found: list[Token]) -> None:
        self.tokens = [*found, _END, _END, _END]
        self.at = 0
        self.depth = 0
        self.bars = 0
        """Bars that are open within the bracket; between them `|` closes."""
        self.in_braces = False
        """Directly in a set, where a colon means "such that"."""

    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def take(self, *texts: str) -> str:
        token = self.tokens[self.at]
        if token is _END or (texts and token.text not in texts):
            raise UnreadableError
        self.at += 1
        return token.text

    def nested(self, read: Callable[[], Node]) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UnreadableError
        node = read()
        self.depth -= 1
        return node

    def items(self, closers: Collection[str] = _CLOSERS) -> Node:
        """Items between separators up to a closing token, which is left there."""
        outer = self.bars, self.in_braces
        self.bars, self.in_braces = 0, self.tokens[self.at - 1].text == r"\{"
        items: list[Node] = []
        signs: set[str] = set()
        is_between = False
        while self.next.text not in closers:
            sign = _separator(self.next)
            if sign:
                if not items or (is_between and sign == ","):
                    raise UnreadableError
                signs.add(sign)
                self.at += 1
            elif self.next.text in _INFIX and len(items) == 1:
                kind = _INFIX[self.take()]
                items = [Node(kind, parts=(bare(items[0]), bare(self.relation())))]
            elif items and not is_between:
                raise UnreadableError
            else:
                items.append(self.relation())
            is_between = bool(sign)
        self.bars, self.in_braces = outer
        if len(items) == 1:
            return items[0]
        return Node("list", signs.pop() if len(signs) == 1 else ",", tuple(items))

    def relation(self) -> Node:
        """Sides and the signs between them; the first side may be missing, as in `= 5`."""
        sides, signs = [ZERO_WIDTH if self.next.text in _RELATIONS - {"|"} else self.sets()], []
        while (self.next.text in _RELATIONS and not (self.next.text == "|" and self.bars)) or (
            self.next.text == ":" and self.in_braces
        ):
            signs.append(self.take())
            sides.append(self.sets())
        return Node("rel", " ".join(signs), tuple(sides)) if signs else sides[0]

    def sets(self) -> Node:
        left = self.sum()
        while self.next.text in _SET_SIGNS and not (self.next.text == ":" and self.in_braces):
            sign, right = self.take(), self.sum()
            is_longer = (left.kind, left.text) == ("setop", sign) and sign != r"\setminus"
            left = Node("setop", sign, (*(left.parts if is_longer else (left,)), right))
        return left

    def sum(self) -> Node:
        terms: list[Node] = []
        while not terms or self.next.text in _SIGNS:
            kind = _SIGNS[self.take()] if self.next.text in _SIGNS else ""
            term = self.term()
            terms.append(Node(kind, parts=(term,)) if kind else term)
        return terms[0] if len(terms) == 1 else Node("sum", parts=tuple(terms))

    def term(self) -> Node:
        """Factors and quotients; `row` or `over` where no sign says how they are tied."""
        factors = [self.factor()]
        is_row = is_slashed = is_over = False
        while True:
            token, before = self.next, factors[-1]
            if token.text == r"\cdot":
                self.at += 1
                factors.append(self.signed_factor())
                is_slashed = False
            elif token.text == "/":
                self.at += 1
                # `\sin x/2`: the slash may stand within the argument.
                is_over = is_over or (before.kind == "func" and before.text.endswith("~"))
                factors = [Node("div", parts=(bare(_prod(factors)), bare(self.signed_factor())))]
                is_slashed = True
            elif self.starts_unit(factors):
                factors = [self.unit(_tied(factors, is_row, is_over))]
                is_row = is_over = is_slashed = False
            elif self.starts_factor():
                right = self.mixed(before) if token.type == "num" else self.factor()
                marked = right.parts[0] if right.kind == "post" else right
                if len(factors) == 1 and before.kind == "num" and _is_proper(marked):
                    whole = Node("mixed", parts=(before, marked))
                    factors = [right._replace(parts=(whole,)) if right.kind == "post" else whole]
                    continue
                is_row = is_row or (token.type == "num" and before.text != "!")
                is_row = is_row or "word" in (right.kind, before.kind) or before.kind == "unit"
                is_over = is_over or is_slashed
                factors.append(right)
            else:
                break
        return _tied(factors, is_row, is_over)

    def mixed(self, whole: Node) -> Node:
        """`4/5` behind a whole number and a space, or the number that stands there."""
        start, top = self.at, self.factor()
        if whole.kind == "num" and self.next.text == "/" and self.tokens[self.at + 1].type == "num":
            self.at += 1
            quotient = Node("div", parts=(top, self.factor()))
            if _is_proper(quotient):
                return quotient
            self.at = start + 1
        return top

    def starts_factor(self) -> bool:
        token = self.next
        if token.text in ("|", r"\|"):
            return not self.bars and self.n_bars(token.text) % 2 == 0
        if token.text in _NO_FACTOR or _separator(token):
            return False
        return (
            token.type != "op"
            or token.text in ("(", "[", "{", r"\{", r"\|")
            or (token.text.startswith(r"\begin"))
        )

    def n_bars(self, bar: str) -> int:
        """Bars from here on to the end of the bracket; an odd number of them starts with a sign."""
        level = n_bars = 0
        for token in self.tokens[self.at :]:
            level += (token.text in ("{", *_PAIRS)) - (token.text in ("}", *_PAIRS.values()))
            if level < 0:
                break
            n_bars += token.text == bar and level == 0
        return n_bars

    def signed_factor(self) -> Node:
        if self.next.text == "-":
            self.at += 1
            return Node("()", parts=(Node("neg", parts=(self.factor(),)),))
        return self.factor()

    def factor(self) -> Node:
        node, n_powers = self.base(), 0
        while True:
            token = self.next
            if token.text == "^":
                self.at += 1
                exponent = self.script()
                if exponent.text == r"\circ" or exponent.text[:1] == "'":
                    node = Node("post", exponent.text, (node,))
                else:
                    node, n_powers = Node("pow", parts=(node, exponent)), n_powers + 1
            elif token.text == "_":
                self.at += 1
                index = self.script()
                if node.kind == "num" and index.text in _BASES:
                    index = Node("num", _BASES[index.text])
                if node.kind == "pow":  # `x^2_1`
                    node = Node(
                        "pow", parts=(Node("sub", parts=(node.parts[0], index)), node.parts[1])
                    )
                else:
                    node = Node("sub", parts=(node, index))
            elif token.type == "op" and token.text in ("!", "'", "%"):
                node = Node("post", self.run(token.text), (node,))
            else:
                break
        if n_powers > 1:
            raise UnreadableError
        return node

    def run(self, sign: str) -> str:
        text = ""
        while self.next.text == sign:
            text += self.take()
        return text

    def script(self) -> Node:
        """What `^` or `_` stands before: a group, or one token as TeX reads it."""
        token = self.next
        if token.text == "{":
            return self.group()
        if token.text == "(":
            return bare(self.base())
        if token.text == "-":
            self.at += 1
            return Node("neg", parts=(self.script(),))
        if token.text in ("'", "*", "+"):
            return Node("name", self.run(token.text))
        if token.type == "num" and len(token.text) > 1:
            # TeX shifts one digit; who writes without braces means all.
            return Node("row", parts=(self.base(),))
        return self.base()

    def group(self) -> Node:
        """What stands in `{...}`."""
        self.take("{")
        if self.next.text in ("'", "+", "-") and self.tokens[self.at + 1].text in ("'", "}"):
            inner = Node("name", self.run(self.next.text))
        else:
            inner = ZERO_WIDTH if self.next.text == "}" else self.nested(self.items)
        self.take("}")
        return inner

    def base(self) -> Node:
        token = self.next
        if token.type == "num":
            return self.number(self.take())
        if token.type == "let":
            return Node("name", self.take())
        if token.type == "word":
            words = []
            while self.next.type == "word" and not _separator(self.next):
                words.append(self.take())
            if not words:
                raise UnreadableError
            joined = " ".join(words)
            return Node("word" if len(joined) > 1 else "name", joined)
        if token.text == "{":
            inner = self.group()
            return Node("()", parts=(inner,)) if inner.kind in _LOOSE else inner
        if token.text in _PAIRS:
            return self.nested(self.bracket)
        if token.text in ("|", r"\|"):
            return self.nested(self.between_bars)
        if token.text.startswith(r"\begin"):
            return self.nested(self.environment)
        if token.type == "cmd" and token.text not in _NO_FACTOR:
            return self.nested(self.command)
        raise UnreadableError

    def number(self, digits: str) -> Node:
        r"""A number, with the period of a repeating decimal: `0.1\overline{6}`, `0.1(6)`."""
        period = ""
        while "." in digits and self.next.text in (r"\overline", r"\dot", "("):
            texts = [token.text for token in self.tokens[self.at : self.at + 4]]
            is_braced = texts[1] == "{"
            n_taken = 4 if is_braced else 3 if texts[0] == "(" else 2
            more = texts[1 + is_braced]
            if not more.isdigit() or (n_taken > 2 and texts[n_taken - 1] not in (")", "}")):
                break
            self.at += n_taken
            period += more
            # Between two dots all digits are repeated: `0.\dot{1}2\dot{3}`.
            if texts[0] == r"\dot" == self.tokens[self.at + 1].text and self.next.text.isdigit():
                period += self.take()
        if period:
            return Node("num", rf"{_plain(digits, '')}\overline{{{period}}}")
        mantissa, mark, power = digits.lower().partition("e")
        return Node("num", _plain(mantissa, "0") + (f"e{int(power)}" if mark else ""))

    def bracket(self) -> Node:
        opener = self.take()
        inner = ZERO_WIDTH if self.next.text in _PAIRS.values() else self.items()
        closer = self.take(_PAIRS[opener], *((")", "]") if opener in ("(", "[") else ()))
        parts = inner.parts if (inner.kind, inner.text) == ("list", ",") else (inner,)
        if opener + closer in ("(]", "[)") and len(parts) != 2:
            raise UnreadableError
        return Node(opener + closer, parts=() if inner == ZERO_WIDTH else parts)

    def between_bars(self) -> Node:
        bar = self.take()
        self.bars += 1
        inner = self.sum()
        self.bars -= 1
        self.take(bar)
        return Node(bar + bar, parts=(inner,))

    def argument(self) -> Node:
        """One argument of a command: a group, or the next digit, letter, word or command."""
        token = self.next
        if token.text == "{":
            return bare(self.group())
        if token.type == "num" and len(token.text) > 1 and token.text.isdigit():
            self.tokens[self.at] = Token("num", token.text[1:])
            return Node("num", token.text[0])
        return bare(self.base())

    def command(self) -> Node:
        name = self.take()
        if name in (r"\frac", r"\binom"):
            kind = "div" if name == r"\frac" else "binom"
            return Node(kind, parts=(self.argument(), self.argument()))
        if name in (r"\sqrt", r"\cbrt"):
            index = Node("num", "2" if name == r"\sqrt" else "3")
            if self.next.text == "[":
                self.at += 1
                index = self.items()
                self.take("]")
            return Node("root", parts=(self.argument(), index))
        if name[1:] in FUNCTIONS:
            return self.function(name[1:])
        if name in _SPELT and self.next.text == "(":
            return Node(_SPELT[name], parts=(bare(self.base()),))
        if name in (r"\angle", r"\triangle") and self.next.type in ("let", "word"):
            corners = []
            while self.next.type in ("let", "word"):
                corners.append(self.take())
            return Node("cmd", name, (Node("word", "".join(corners)),))
        if name in _ONE_ARGUMENT:
            return Node("cmd", name, (self.argument(),))
        arguments = []
        while self.next.text == "{" and name not in _PLAIN_NAMES:
            arguments.append(self.group())
        return Node("cmd" if arguments or name in _BIG else "name", name, tuple(arguments))

    def function(self, name: str) -> Node:
        r"""`\sin^2 2x`, `\log_2(x)`, `\ln x`; the name alone where no argument follows."""
        power = index = None
        while self.next.text in ("^", "_"):
            if self.take() == "^":
                power = self.script()
            else:
                index = self.script()
        node = Node("name", "\\" + name)
        if self.next.text == "(":
            bracket = self.base()
            if bracket.kind != "()" or len(bracket.parts) != 1:
                raise UnreadableError
            node = Node("func", name, bracket.parts)
        elif self.starts_factor() and self.next.type != "word":
            factors = [self.factor()]
            while self.starts_factor() and self.next.text[1:] not in FUNCTIONS and (
                self.next.type == "cmd" or (self.next.type == "let" and not self.next.is_text)
            ):  # fmt: skip
                factors.append(self.factor())
            # ~ marks an argument without brackets.
            node = Node("func", f"{name}~", (bare(_prod(factors)),))
        if index is not None:
            is_func = node.kind == "func"
            node = (
                node._replace(parts=(*node.parts, index))
                if is_func
                else Node("sub", parts=(node, index))
            )
        if power == Node("neg", parts=(Node("num", "1"),)) and name in ("sin", "cos", "tan"):
            return node._replace(text=node.text.replace(name, f"arc{name}"))
        return node if power is None else Node("pow", parts=(node, power))

    def environment(self) -> Node:
        name = self.take()[len(r"\begin{") : -1]
        if name == "array" and self.next.text == "{":
            while self.take() != "}":
                pass
        end = rf"\end{{{name}}}"
        rows: list[Node] = []
        cells: list[Node] = []
        sign = ""
        while sign != end:
            is_empty = self.next.text in ("&", r"\\", end)
            cells.append(ZERO_WIDTH if is_empty else self.items(("&", r"\\", end)))
            sign = self.take("&", r"\\", end)
            if sign != "&":
                if sign != end or cells != [ZERO_WIDTH]:
                    rows.append(Node("cells", parts=tuple(cells)))
                cells = []
        return Node("env", _SAME_ENVIRONMENT.get(name, name), tuple(rows))

    def starts_unit(self, factors: list[Node]) -> bool:
        token, following = self.next, self.tokens[self.at + 1]
        if token.type == "word" and len(token.text) > 1:
            return not _separator(token) and not any(f.kind in ("word", "unit") for f in factors)
        if token.type not in ("let", "word") or factors[-1].kind not in (
            "num",
            "div",
            "mixed",
            "root",
            "pow",
            "()",
        ):
            return False
        if token.is_text or token.type == "word":
            return token.text in "mshgLNJWV"
        raw, after = token.text + following.text, self.tokens[self.at + 2]
        ends = after.text in ("^", ",", "/", *_CLOSERS) or after.type == "word"
        return token.spaced and following.type == "let" and raw in RAW_UNITS and ends

    def unit(self, quantity: Node) -> Node:
        """Words behind a quantity, with their powers and slashes."""
        words: list[str] = []
        while True:
            token = self.next
            if token.type == "word" and not _separator(token):
                words.append(self.take())
            elif token.type == "let" and (not words or words[-1] in "/*" or token.is_text):
                words.append(self.take())
                if not token.is_text and self.next.type == "let" and not self.next.spaced:
                    words[-1] += self.take()
            elif token.text in ("/", r"\cdot") and self.tokens[self.at + 1].type in ("word", "let"):
                words.append("/" if self.take() == "/" else "*")
            elif token.text == "^" and words:
                self.at += 1
                words.append("^" + write(self.script()))
            else:
                return Node("unit", " ".join(words), (quantity,))


_LOOSE = words("sum neg pm mp prod over list rel setop mixed pow sub row unit")
_PLAIN_NAMES = words(r"""\pi \alpha \beta \gamma \delta \epsilon \zeta \eta \theta \vartheta
    \iota \kappa \lambda \mu \nu \xi \rho \sigma \tau \upsilon \phi \varphi \chi \psi \omega
    \Gamma \Delta \Theta \Lambda \Xi \Pi \Sigma \Phi \Psi \Omega \infty \emptyset \circ \ldots
    \ell""")  # fmt: skip


def _separator(token: Token) -> str:
    is_one = token.type in ("op", "word") and token.text in _SEPARATORS
    return _SEPARATORS[token.text] if is_one else ""


def _plain(digits: str, least: str) -> str:
    """Digits without the zeros at either end that say nothing."""
    whole, _, tail = digits.partition(".")
    tail = tail.rstrip("0") if least else f"{tail}"
    return (whole.lstrip("0") or "0") + (f".{tail}" if tail or not least else "")


def _is_proper(node: Node) -> bool:
    """A fraction of two whole numbers that is less than one."""
    if node.kind != "div" or any(
        part.kind != "num" or not part.text.isdigit() for part in node.parts
    ):
        return False
    return int(node.parts[0].text) < int(node.parts[1].text)


def _prod(factors: list[Node]) -> Node:
    return factors[0] if len(factors) == 1 else Node("prod", parts=tuple(factors))


def _tied(factors: list[Node], is_row: bool, is_over: bool) -> Node:
    if is_over:
        return Node("over", parts=(*factors[0].parts, *factors[1:]))
    return Node("row", parts=tuple(factors)) if is_row else _prod(factors)


CONSTANTS = (r"\pi", "e", "i")
_NO_LETTER = words(r"\infty \emptyset \ldots \circ \max \min \gcd \lcm \det \arg").union(
    CONSTANTS, (f"\\{name}" for name in FUNCTIONS)
)
_MARKS = (r"\vec", r"\hat", r"\tilde")


def is_name(node: Node) -> bool:
    """A letter or command that has no value of its own, perhaps with an index or a mark."""
    while node.kind == "sub" or node.text[:1] == "'" or node.text in _MARKS:
        node = node.parts[0]
    is_known = node.text in _NO_LETTER or node.text.startswith(r"\mathbb")
    return node.kind == "name" and not is_known


def bare(node: Node) -> Node:
    """The node without brackets that only group it."""
    while node.kind == "()" and len(node.parts) == 1:
        node = node.parts[0]
    return node


def _is_open(node: Node) -> bool:
    """A function whose argument has no brackets, so that it would take in a further factor."""
    return node.text.endswith("~") or (node.kind == "pow" and _is_open(node.parts[0]))


def read(folded_text: str) -> Node:
    """The tree of a folded text; UnreadableError where it follows no grammar."""
    reader = _Reader(tokens(folded_text))
    node = reader.items(("",))
    if reader.next is not _END:
        raise UnreadableError
    return node


_TEMPLATES = {
    "neg": "-{0}", "pm": r"\pm {0}", "mp": r"\mp {0}", "div": r"\frac{{{0}}}{{{1}}}",
    "binom": r"\binom{{{0}}}{{{1}}}", "mixed": "{0}{1}",
}  # fmt: skip
_JOINTS = {"row": r"\quad ", "cells": "&"}


def write(node: Node) -> str:
    """The text of a tree; reading it gives the tree again."""
    kind, text, parts = node
    inner = [write(part) for part in parts]
    if kind in ("num", "name"):
        return text
    if kind in _TEMPLATES:
        return _TEMPLATES[kind].format(*inner)
    if kind in _JOINTS:
        return _JOINTS[kind].join(inner)
    if kind == "word":
        return text if is_word(text) else rf"\text{{{text}}}"
    if kind == "sum":
        signs = ["" if p.kind in ("neg", "pm", "mp") else "+" for p in parts]
        return inner[0] + "".join(map("".join, zip(signs[1:], inner[1:], strict=True)))
    if kind == "prod":
        made = inner[0]
        for left, right, text in zip(parts, parts[1:], inner[1:], strict=False):
            is_tied = text[0].isdigit() or (left.kind == "num" and right.kind == "div")
            if is_tied or _is_open(left) or "word" in (left.kind, right.kind):
                made += r"\cdot "
            made += text if not (made[-1].isalpha() and text[0].isalpha()) else f" {text}"
        return made
    if kind == "over":
        return f"{inner[0]}/{' '.join(inner[1:])}"
    if kind in ("pow", "sub"):
        is_short = (len(inner[1]) == 1 and inner[1].isalnum()) or parts[1].kind == "row"
        shifted = ("^" if kind == "pow" else "_") + (inner[1] if is_short else f"{{{inner[1]}}}")
        if parts[0].kind != "func":
            return inner[0] + shifted
        at = next(i for i, c in enumerate(inner[0]) if c in "_( ")  # behind the function's name
        return inner[0][:at] + shifted + inner[0][at:]
    if kind == "root":
        return rf"\sqrt{'' if inner[1] == '2' else f'[{inner[1]}]'}{{{inner[0]}}}"
    if kind == "func":
        name = rf"\{text.rstrip('~')}" + "".join(f"_{{{index}}}" for index in inner[1:])
        return f"{name} {inner[0]}" if text[-1] == "~" else f"{name}({inner[0]})"
    if kind == "cmd":
        return text + "".join(f"{{{part}}}" for part in inner)
    if kind == "post":
        return inner[0] + (r"^{\circ}" if text == r"\circ" else text)
    if kind == "unit":
        return inner[0] + rf"\text{{ {text}}}"
    if kind == "list":
        return (", " if text == "," else rf"\text{{ {text} }}").join(inner)
    if kind in ("rel", "setop"):
        signs = text.split() if kind == "rel" else [text] * (len(parts) - 1)
        spaced = (sign if len(sign) == 1 else f"{sign} " for sign in signs)
        return inner[0] + "".join(map("".join, zip(spaced, inner[1:], strict=True)))
    if kind == "env":
        return rf"\begin{{{text}}}" + r"\\".join(inner) + rf"\end{{{text}}}"
    half = len(kind) // 2
    return kind[:half] + (" " if half > 2 else "") + ",".join(inner) + kind[half:]
