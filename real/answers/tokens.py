r"""Tokens of an answer's text: Unicode folded, commands spelt one way, digits of a number joined.

Kinds: `num`, `name` (one letter), `word` (letters of text, which are no product), `cmd`, `sep` (a
comma, `or`, `and`), `begin` and `end` of an environment, `op`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from itertools import groupby, takewhile
from typing import NamedTuple

from real.answers.notation import BARE, BARE_UNITS, REWRITTEN, SHORT_WORDS, TEXTS, UNITS, is_unit


class Node(NamedTuple):
    """A node of an answer's structure; without parts it may be a token."""

    kind: str
    text: str = ""
    parts: tuple[Node, ...] = ()


_BETWEEN = r"(?:'|(?:\ |\\,)?\{,\ ?\}(?:\ |\\,)?|,\\!\ ?|\ ?\\(?:[,!:;>\ ]\ ?|thinspace\ ?)|[\ ~])"
_CLOSED = r"(?:[^()\[\]\\]|\\\{[^{}]*\}|\\[^}]|\([^()]*\)|\[[^\[\]]*\])*+(?:[)\]]|\\\})"
"""What is behind a number in brackets: (1,234) is a pair."""
_DOT = r"\\dot\ ?(?:\{\d\}|\d)"
_GROUP = r"[^{}\\]|\\."
_INNER = rf"(?:{_GROUP}|\{{(?:{_GROUP}|\{{(?:{_GROUP})*+\}})*+\}})*+"
_PATTERN = rf"""(?P<space>(?:\s|~|\\[,!;:>\ ]|\\(?:q?quad|enspace|(?:thin)?space)(?![A-Za-z]))*+)
    (?:(?P<grouped>(?<![\d,])(?<!\d\ )[1-9]\d{{0,2}}(?:(?:,0\d\d)+|(?:,\d{{3}})+(?!{_CLOSED}))
            (?!,?\d|\.\d+\.)(?:\.\d+)?
        |[1-9]\d{{0,2}}(?:{_BETWEEN}\d{{3}}(?!\d))+(?:\.\d+)?
        |\d+\.\d{{3}}(?:\\,\d{{3}})*\\,\d{{1,3}}(?!\d))
    |(?P<period>\d*\.\d*\ ?(?:\\overline\ ?(?:\{{\ ?\d+\ ?\}}|\d+)|\(\d+\)|{_DOT}(?:\d*{_DOT})?))
    |(?P<word>\d+(?:\.\d+){{2,}}|\d\d?\ ?:\ ?0\d(?:\ ?:\ ?\d\d)?
        |\d{{4}}-\d\d-\d\d(?!\d)|\d\d?/\d\d?/\d{{4}}(?!\d))
    |(?P<num>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{{1,3}}(?![\d.A-Za-z]))?)
    |(?P<begin>\\begin\s*\{{\s*[A-Za-z]+\*?\s*\}})(?:\s*[\[{{](?:[lcr|\s]|@\{{\}})+[\]}}])?
    |(?P<end>\\end\s*\{{\s*[A-Za-z]+\*?\s*\}})
    |(?P<text>\\(?:{"|".join(sorted(TEXTS))})\s*\{{(?P<inner>{_INNER})\}})
    |(?P<cmd>\\[A-Za-z]+)
    |(?P<unit>(?:{"|".join(unit for unit in sorted(BARE_UNITS) if len(unit) == 2)})
        (?=\s*(?:$|[\^,/)}}]|\\text|\\\}})))
    |(?P<let>[ap]\.\ ?m\b\.?|LETTERS[^\W\d_](?:[.'-]?[^\W\d_])*\.?)
    |(?P<op>\*\*|<=|>=|:=|\+/-|(?<=\s)!=|'+|!+|\\\\|\\.|.|\Z))
    """
_TOKEN = re.compile(_PATTERN.replace("LETTERS", "[A-Za-z]+|"), re.VERBOSE | re.DOTALL)
_TEXT_TOKEN = re.compile(_PATTERN.replace("LETTERS", ""), re.VERBOSE | re.DOTALL)
_SIDE = re.compile(r"(?:[A-Za-z]|\\(?!pi)[a-z]+)(?:_(?:\w|\{\w+\}))? ?(?:[=<>]|\\[gl]e )")
"""A name and the sign behind it."""
_SKIPPED = ("", "$", r"\$", r"\(", r"\)", r"\[", r"\]")


def tokenized(text: str, before: Sequence[Node] = (), in_text: bool = False) -> list[Node]:
    """The tokens of a folded text, or of a part of it, and those before it."""
    tokens = list(before)
    for match in (_TEXT_TOKEN if in_text else _TOKEN).finditer(text):
        kind, space, start = str(match.lastgroup), match["space"], len(tokens)
        piece = match[kind]
        if space and _SIDE.match(text, match.end("space")) and _has_side(tokens, space):
            tokens.append(Node("sep", ","))
        if kind in ("grouped", "period", "num"):
            tokens.append(Node("num", _number(kind, piece)))
        elif kind in ("word", "begin", "end", "cmd"):
            kind = "sep" if piece in (r"\lor", r"\land") else kind
            tokens.append(Node(kind, re.sub(r"[\s*]|\bd(?=cases)|small(?=matrix)", "", piece)))
        elif kind == "text":
            is_behind = _is_quantity(tokens) and not text.startswith("_", match.end())
            tokens = tokenized(match["inner"], tokens, in_text=True)
            tokens[start:] = _of_text(tokens[start:], is_behind)
        elif kind == "unit" and _is_quantity(tokens) and _is_unit(match, tokens):
            tokens.append(Node("word", piece))
        elif kind in ("unit", "let"):
            tokens += _letters(re.sub("[. ]", "", piece), in_text)
        elif piece not in _SKIPPED:
            sign = REWRITTEN.get(piece, piece)
            kind = "sep" if sign in (",", ";") else "cmd" if sign[1:].isalpha() else "op"
            tokens.append(Node(kind, sign))
    return tokens


def _has_side(tokens: list[Node], space: str) -> bool:
    r"""An equation ends before the space, and another one starts: `x=3\quad y=4`, `m=3 n=4`."""
    if "quad" not in space and not (tokens and tokens[-1].kind == "num"):
        return False
    item = takewhile(lambda t: t.kind != "sep" and t.text not in ("&", r"\\"), reversed(tokens))
    return any(token.text in ("=", "<", ">", r"\le", r"\ge") for token in item)


def _is_quantity(tokens: list[Node]) -> bool:
    """What stands last may have a unit behind it."""
    kind, text, _ = tokens[-1] if tokens else Node("op")
    is_closed = text in (")", "}") or (kind == "word" and text in BARE_UNITS)
    return is_closed or kind in ("num", "cmd")


def _is_unit(match: re.Match[str], tokens: list[Node]) -> bool:
    """Two letters behind a quantity are one unit and no product."""
    is_number = tokens[-1].kind == "num" and tokens[-2:-1] != [Node("cmd", r"\sqrt")]
    if not match["space"].strip(r"\!"):
        return is_number and match["unit"] in ("cm", "mm", "kg")
    return is_number or match["unit"] in ("cm", "mm", "km", "kg")  # but `\mu mg`


def _number(kind: str, piece: str) -> str:
    """Digits without marks and the zeros at either end that say nothing."""
    if kind == "period":
        whole, tail, *period = re.split(r"\.|[^0-9.]+", piece)
        return rf"{whole.lstrip('0') or '0'}.{tail}\overline{{{''.join(period)}}}"
    if piece.isdigit():
        return piece.lstrip("0") or "0"
    plain = f"{Decimal(re.sub(r'[^0-9.]', '', piece) if kind == 'grouped' else piece):f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def is_word(run: str) -> bool:
    """Letters that are a word also outside of text: three or more, but no `xyz`, `mgh`, `mgR`."""
    if len(run) < 3 or not (run.isascii() and run.isalpha()) or run.lower() in BARE:
        return False
    is_cased = run in (run.lower(), run.upper(), run.capitalize())
    is_spoken = not run.islower() or len(run) > 4 or not set("aeiouy").isdisjoint(run)
    is_product = set(run) <= set("xyz") or set(run) <= set("abc")
    return is_unit(run) or (is_cased and is_spoken and not is_product)


def _letters(run: str, in_text: bool) -> list[Node]:
    if run.lower() in BARE and not (in_text and run in UNITS):  # `\text{cup}`
        return [Node("cmd", REWRITTEN.get(run.lower(), "\\" + run.lower()))]
    in_text = in_text or is_word(run) or run.lower() in SHORT_WORDS or not run.isascii()
    if len(run) == 1 or not in_text:
        return [Node("name", letter) for letter in run]
    return [Node("sep" if run in ("or", "and") else "word", run)]


def _of_text(tokens: list[Node], is_behind: bool) -> list[Node]:
    """Only a letter that stands alone is one: the `a` of `a cat` is a word; `II` are two."""
    items: list[Node] = []
    for _, group in groupby(tokens, lambda token: token.kind == "sep"):
        item = list(group)
        if len(item) == 1 and re.fullmatch("[A-Z]{2}", item[0].text) and not is_behind:
            item = _letters(item[0].text, False)
        elif any(t.kind == "word" for t in item) or (is_behind and item[0].text in UNITS):
            item = [t._replace(kind="word") if t.kind == "name" else t for t in item]
        items += item
        is_behind = False
    return items
