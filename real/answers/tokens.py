r"""Tokens of an answer's text: Unicode folded, commands spelt one way, digits of a number joined.

Types: `num`, `let` (one letter), `word` (letters of text, which are no product), `cmd`, `op`.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from real.answers.notation import (
    BARE,
    FUNCTIONS,
    RAW_UNITS,
    REWRITTEN,
    SHORT_WORDS,
    SIGNS,
    TEXT_UNITS,
    TEXTS,
    WITH_ARGUMENT,
)


class Token(NamedTuple):
    """A piece of LaTeX."""

    type: str
    text: str
    spaced: bool = False
    """A space stands before it."""
    is_text: bool = False
    r"""It stands in `\text{...}`."""


_ROOT = re.compile("([\u221a\u221b]) ?(\\d+)")
"""A root of Unicode, which is over all digits behind it."""
_SHIFTED = {"^": "[\u00b2\u00b3\u00b9\u2070-\u207f]+", "_": "[\u2080-\u208e]+"}
_FRACTION = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_MARKS_BEHIND = re.compile(r"(?:\\[,;:!. ]|[\s.,;:~]|(?<!\\)\\)+$")
_DOUBLED = re.compile(
    rf"(?<!\\)\\\\(?=(?:[dt]?frac|sqrt|text|mathrm|left|right|cdot|times|pi|boxed|le|ge|infty|cup"
    rf"|{'|'.join(sorted(FUNCTIONS))})(?![A-Za-z]))"
)
_HIDDEN = re.compile(
    rf"\\(?:{WITH_ARGUMENT.replace(' ', '|')})\s*\{{[^{{}}]*\}}"
    r"|\\(?:boxed|fbox)\s*\{\s*\}|\\m?(?:left|right)\s*\."
)
_UNION = re.compile(r"(?<=[)\]])\s*U\s*(?=[(\[])")
_POWER_OF_TEN = re.compile(r"(?<=\d) ?x ?(?=10 ?\^)")
_COMMAND = re.compile(r"\\(?!times\s*\\(?:vec|hat|over))(?:\\|([A-Za-z]+)\*?(\s*\{)?)")


def folded(text: str) -> str:
    """Text in which variants of a sign or command are one, without Markdown's marks around it."""
    if not text.isascii() or '"' in text or "`" in text:
        text = _ROOT.sub(r"\1{\2}", unicodedata.normalize("NFC", text))
        text = _FRACTION.sub(lambda m: r"\frac{{{}}}{{{}}}".format(*_plain(m[0]).split("/")), text)
        for mark, shifted in _SHIFTED.items():
            text = re.sub(shifted, lambda m, mark=mark: f"{mark}{{{_plain(m[0])}}}", text)
        text = _plain(text.translate(SIGNS))
    text = _DOUBLED.sub(
        r"\\", " ".join(_UNION.sub(r"\\cup ", text.replace("...", r"\ldots ")).split())
    )
    text = _POWER_OF_TEN.sub(r"\\cdot ", text)
    text = _MARKS_BEHIND.sub("", _COMMAND.sub(_rewritten, _HIDDEN.sub("", text)))
    for mark in ("**", "__", "*"):
        if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
            return folded(text[len(mark) : -len(mark)])
    return " ".join(text.split())


def _plain(text: str) -> str:
    """What Unicode calls compatible with the text, without marks and invisible characters."""
    plain = unicodedata.normalize("NFKC", text).translate(SIGNS)
    return "".join(c for c in plain if unicodedata.category(c) not in ("Cf", "Mn"))


def _rewritten(match: re.Match[str]) -> str:
    name, brace = match[1], match[2] or ""
    if name is None:  # the end of a row
        return match[0]
    if name in TEXTS and not brace:
        return ""
    return REWRITTEN.get(name, f"\\{name}") + brace


_SPACES = "quad|qquad|enspace|thinspace|space"
_BETWEEN = r"(?:\{,\}|,\\!\ ?|\\(?:[,!:;>\ ]|thinspace\ ?)|[\ ~])"
_DOT = r"\\dot\ ?\{?\d\}?"
_TOKEN = re.compile(
    rf"""(?P<space>(?:\s|~|\\[,!;:>\ ]|\\(?:{_SPACES})(?![A-Za-z]))+)
    |(?P<grouped>(?<![\d,])(?<!\d\ )[1-9]\d{{0,2}}(?:,\d{{3}})+(?![\d,]|\.\d+\.)(?:\.\d+)?
        |[1-9]\d{{0,2}}(?:{_BETWEEN}\d{{3}}(?!\d))+(?:\.\d+)?
        |\d+\.\d{{3}}(?:\\,\d{{3}})*\\,\d{{1,3}}(?!\d))
    |(?P<period>\d*\.\d*\ ?(?:\\overline\ ?\{{?\ ?\d+\ ?\}}?|\(\d+\)|{_DOT}(?:\d*{_DOT})?))
    |(?P<odd>\d+(?:\.\d+){{2,}}|\d\d?\ ?:\ ?0\d(?:\ ?:\ ?\d\d)?
        |\d{{4}}-\d\d-\d\d(?!\d)|\d\d?/\d\d?/\d{{4}}(?!\d))
    |(?P<num>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{{1,3}}(?![\d.A-Za-z]))?)
    |(?P<env>\\(?:begin|end)\s*\{{\s*[A-Za-z]+\*?\s*\}})
    |(?P<text>\\(?:{"|".join(sorted(TEXTS))})\s*\{{)
    |(?P<cmd>\\[A-Za-z]+)
    |(?P<let>(?:[ap]\.\ ?m\b\.?)|[A-Za-z]+)
    |(?P<op>\*\*|<=|>=|(?<=\s)!=|\\\\|\\.|.)
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_LETTERS = re.compile(r"(?:[.'-]?[^\W\d_])*\.?")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_AS_COMMANDS = {"<=": r"\le", ">=": r"\ge", "!=": r"\ne", "**": "^", "*": r"\cdot", r"\%": "%"}
_SHIFTS = ("$", r"\$", r"\(", r"\)", r"\[", r"\]")
_BEHIND_UNIT = re.compile(r"\s*(?:$|[\^,/)}]|\\text|\\\})")


def tokens(text: str, depth: int = 0, in_text: bool = False) -> list[Token]:
    """The tokens of a folded text within so many brackets; linear in the text."""
    found: list[Token] = []
    position, spaced = 0, False
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match is not None
        kind, piece, position = str(match.lastgroup), match.group(), match.end()
        is_behind = bool(found) and (found[-1].type in ("num", "cmd") or found[-1].text in ")}")
        made: list[Token] = []
        if kind == "space":
            spaced = spaced or piece.strip(r"\!") != ""
            continue
        if kind == "grouped" and depth and re.search(r"(?<!\\),[1-9]", piece):  # (1,234) is a pair
            kind, piece = "num", piece.partition(",")[0]
            position = match.start() + len(piece)
        if kind in ("grouped", "period", "num"):
            made = [Token("num", _number(kind, piece))]
        elif kind == "odd":
            made = [Token("word", piece.replace(" ", ""))]
        elif kind == "env":
            made = [Token("op", re.sub(r"[\s*]", "", piece))]
        elif kind == "text":
            end = _closing(text, position)
            made = _text(text[position:end], depth, is_behind)
            position = end + 1
        elif kind == "cmd":
            made = [Token("cmd", piece)]
        elif piece.isalpha() or len(piece) > 2:
            rest = _LETTERS.match(text, position) if in_text or not piece.isascii() else None
            if rest is not None:
                piece, position = piece + rest[0], rest.end()
            is_unit = (
                piece in RAW_UNITS and spaced and is_behind and _BEHIND_UNIT.match(text, position)
            )
            made = (
                [Token("word", piece)] if is_unit else _letters(re.sub("[. ]", "", piece), in_text)
            )
        elif piece not in _SHIFTS:
            depth += (piece in ("(", "[", r"\{")) - (piece in (")", "]", r"\}"))
            sign = _AS_COMMANDS.get(piece, piece)
            made = [Token("cmd" if sign[1:].isalpha() else "op", sign)]
        if made:
            found.append(made[0]._replace(spaced=spaced or made[0].spaced))
            found.extend(made[1:])
            spaced = False
    return found


def _number(kind: str, piece: str) -> str:
    """Digits without marks and the zeros at either end that say nothing."""
    plain = re.sub(r"[^\d.]", "", piece) if kind == "grouped" else piece
    rest = plain.lstrip("0123456789.")
    whole, _, tail = plain[: len(plain) - len(rest)].partition(".")
    whole = whole.lstrip("0") or "0"
    if kind == "period":
        return rf"{whole}.{tail}\overline{{{re.sub(r'[^0-9]', '', rest)}}}"
    tail = tail.rstrip("0")
    return whole + (f".{tail}" if tail else "") + (f"e{int(rest[1:])}" if rest else "")


def is_word(run: str) -> bool:
    """Letters that are a word also outside of text: three or more, but no `xyz` or `abc`."""
    is_product = len(run) < 3 or set(run) <= set("xyz") or set(run) <= set("abc")
    return run.isascii() and run.isalpha() and run.lower() not in BARE and not is_product


def _letters(run: str, in_text: bool) -> list[Token]:
    if run.lower() in BARE:
        return [Token("cmd", REWRITTEN.get(run.lower(), "\\" + run.lower()))]
    in_text = in_text or is_word(run) or run.lower() in SHORT_WORDS or not run.isascii()
    if len(run) == 1 or not in_text:
        return [Token("let", letter, is_text=in_text) for letter in run]
    return [Token("word", run.lower() if run in ("AM", "PM") else run)]


def _text(inside: str, depth: int, is_behind: bool) -> list[Token]:
    made = tokens(inside, depth, in_text=True)
    if made and inside[0] == " ":
        made[0] = made[0]._replace(spaced=True)
    is_unit = is_behind and made and made[0].text in TEXT_UNITS
    # Only a letter that stands alone is one: the `a` of `a cat` is a word.
    if is_unit or any(t.type == "word" and t.text not in ("and", "or") for t in made):
        made = [t._replace(type="word") if t.type == "let" else t for t in made]
    return made


def _closing(text: str, start: int) -> int:
    """Where the brace closes that opened before `start`; the end of the text if nowhere."""
    level = 1
    for match in _BRACE.finditer(text, start):
        level += {"{": 1, "}": -1}.get(match.group(), 0)
        if level == 0:
            return match.start()
    return len(text)
