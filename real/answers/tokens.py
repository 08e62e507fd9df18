r"""Tokens of an answer's text: Unicode folded, commands spelt one way, digits of a number joined.

Types: `num`, `let` (one letter), `word` (letters of text, which are no product), `cmd`, `sep` (a
comma, `or`, `and`), `op`.
"""

from __future__ import annotations

import re
from decimal import Decimal
from itertools import groupby
from typing import NamedTuple

from real.answers.notation import BARE, BARE_UNITS, REWRITTEN, SHORT_WORDS, TEXTS, UNITS, is_unit


class Token(NamedTuple):
    """A piece of LaTeX."""

    type: str
    text: str


_BETWEEN = r"(?:'|\{,\}|,\\!\ ?|\\(?:[,!:;>\ ]|thinspace\ ?)|[\ ~])"
_DOT = r"\\dot\ ?(?:\{\d\}|\d)"
_TOKEN = re.compile(
    rf"""(?P<space>(?:\s|~|\\[,!;:>\ ]|\\(?:quad|qquad|enspace|thinspace|space)(?![A-Za-z]))+)
    |(?P<grouped>(?<![\d,])(?<!\d\ )[1-9]\d{{0,2}}(?:,\d{{3}})+(?!,?\d|\.\d+\.)(?:\.\d+)?
        |[1-9]\d{{0,2}}(?:{_BETWEEN}\d{{3}}(?!\d))+(?:\.\d+)?
        |\d+\.\d{{3}}(?:\\,\d{{3}})*\\,\d{{1,3}}(?!\d))
    |(?P<period>\d*\.\d*\ ?(?:\\overline\ ?(?:\{{\ ?\d+\ ?\}}|\d+)|\(\d+\)|{_DOT}(?:\d*{_DOT})?))
    |(?P<word>\d+(?:\.\d+){{2,}}|\d\d?\ ?:\ ?0\d(?:\ ?:\ ?\d\d)?
        |\d{{4}}-\d\d-\d\d(?!\d)|\d\d?/\d\d?/\d{{4}}(?!\d))
    |(?P<num>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{{1,3}}(?![\d.A-Za-z]))?)
    |(?P<env>\\(?:begin|end)\s*\{{\s*[A-Za-z]+\*?\s*\}})(?:\s*\{{[lcr|\s]+\}})?
    |(?P<text>\\(?:{"|".join(sorted(TEXTS))})\s*\{{)
    |(?P<cmd>\\[A-Za-z]+)
    |(?P<let>(?:[ap]\.\ ?m\b\.?)|[A-Za-z]+)
    |(?P<op>\*\*|<=|>=|\+/-|(?<=\s)!=|'+|!+|\\\\|\\.|.)
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_LETTERS = re.compile(r"(?:[.'-]?[^\W\d_])*\.?")
_SHIFTS = ("$", r"\$", r"\(", r"\)", r"\[", r"\]")
_BEHIND_UNIT = re.compile(r"\s*(?:$|[\^,/)}]|\\text|\\\})")


def tokenized(text: str) -> list[Token]:
    """The tokens of a folded text; linear in it."""
    tokens: list[Token] = []
    position = depth = braces = 0
    spaced = is_next_unit = False
    texts: list[tuple[int, int, bool]] = []
    """Of texts that are open: their first token, braces around them, whether a number is before."""
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match is not None
        kind, piece, position = str(match.lastgroup), match.group(), match.end()
        if kind == "space":
            spaced = spaced or piece.strip(r"\!") != ""
            continue
        is_behind = bool(tokens) and (tokens[-1].type in ("num", "cmd") or tokens[-1].text in ")}")
        is_behind, is_next_unit = is_behind or is_next_unit, False
        if kind == "grouped" and depth and re.search(r"(?<!\\),[1-9]", piece):  # (1,234) is a pair
            piece = piece.partition(",")[0]
            position = match.start() + len(piece)
        if kind in ("grouped", "period", "num"):
            tokens.append(Token("num", _number(kind, piece)))
        elif kind in ("word", "env", "cmd"):
            made = re.sub(r"[\s*]", "", match[kind])
            tokens.append(Token("op" if kind == "env" else kind, made))
        elif kind == "text":
            texts.append((len(tokens), braces, is_behind))
        elif kind == "let" or piece.isalpha():
            rest = _LETTERS.match(text, position) if texts or not piece.isascii() else None
            if rest is not None:
                piece, position = piece + rest[0], rest.end()
            is_unit = len(piece) == 2 and piece in BARE_UNITS and spaced and is_behind
            is_unit = is_unit and _BEHIND_UNIT.match(text, position) is not None
            run = re.sub("[. ]", "", piece)
            tokens += [Token("word", run)] if is_unit else _letters(run, bool(texts))
        elif piece == "}" and texts and texts[-1][1] == braces:
            start, _, is_behind = texts.pop()
            is_behind = is_next_unit = is_behind and not text.startswith("_", position)
            tokens[start:] = _of_text(tokens[start:], is_behind)
        elif piece not in _SHIFTS:
            depth += (piece in ("(", "[", r"\{")) - (piece in (")", "]", r"\}"))
            braces += (piece == "{") - (piece == "}")
            sign = REWRITTEN.get(piece, piece)
            kind = "sep" if sign in (",", ";") else "cmd" if sign[1:].isalpha() else "op"
            tokens.append(Token(kind, sign))
        spaced = False
    return tokens


def _number(kind: str, piece: str) -> str:
    """Digits without marks and the zeros at either end that say nothing."""
    if kind == "period":
        whole, tail, *period = re.split(r"\.|[^0-9.]+", piece)
        return rf"{whole.lstrip('0') or '0'}.{tail}\overline{{{''.join(period)}}}"
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


def _letters(run: str, in_text: bool) -> list[Token]:
    if run.lower() in BARE and not (in_text and run in UNITS):  # `\text{cup}`
        return [Token("cmd", REWRITTEN.get(run.lower(), "\\" + run.lower()))]
    in_text = in_text or is_word(run) or run.lower() in SHORT_WORDS or not run.isascii()
    if len(run) == 1 or not in_text:
        return [Token("let", letter) for letter in run]
    return [Token("sep" if run in ("or", "and") else "word", run)]


def _of_text(tokens: list[Token], is_behind: bool) -> list[Token]:
    """Only a letter that stands alone is one: the `a` of `a cat` is a word; `II` are two."""
    items: list[Token] = []
    for _, group in groupby(tokens, lambda token: token.type == "sep"):
        item = list(group)
        if len(item) == 1 and re.fullmatch("[A-Z]{2}", item[0].text) and not is_behind:
            item = _letters(item[0].text, False)
        elif any(t.type == "word" for t in item) or (is_behind and item[0].text in UNITS):
            item = [t._replace(type="word") if t.type == "let" else t for t in item]
        items += item
        is_behind = False
    return items
