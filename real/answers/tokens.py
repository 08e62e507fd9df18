r"""Tokens of an answer's text: Unicode folded, looks dropped, digits of one number joined.

Types: `num`, `let` (one letter), `word` (letters of text, which are no product), `cmd`, `op`.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from real.answers.notation import (
    BARE,
    FUNCTIONS,
    GREEK,
    LOOKS,
    SHORT_WORDS,
    SIGNS,
    SYNONYMS,
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
    r"""It stands in `\text{...}`, where one letter may be a unit."""


_ROOT = re.compile("([\u221a\u221b]) ?(\\d+)")
"""A root of Unicode, which is over all digits behind it."""
_RAISED, _LOWERED = "[\u00b2\u00b3\u00b9\u2070-\u207f]+", "[\u2080-\u208e]+"


_MARKS_BEHIND = re.compile(r"(?:\\[,;:!. ]|[\s.,;:~]|(?<!\\)\\)+$")


def folded(text: str) -> str:
    """Text in which Unicode's variants of a sign are one, without Markdown's marks around it."""
    text = text.replace("...", r"\ldots ")
    if not text.isascii() or '"' in text or "`" in text:
        text = _ROOT.sub(r"\1{\2}", unicodedata.normalize("NFC", text))
        for mark, shifted in (("^", _RAISED), ("_", _LOWERED)):
            text = re.sub(shifted, lambda m, mark=mark: f"{mark}{{{_plain(m[0])}}}", text)
        text = "".join(c if c.isascii() else _fold(c) for c in text.translate(SIGNS))
    text = _MARKS_BEHIND.sub("", _DOUBLED.sub(r"\\", " ".join(text.split())))
    for mark in ("**", "__", "*"):
        if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
            return folded(text[len(mark) : -len(mark)])
    return text


def _plain(text: str) -> str:
    plain = unicodedata.normalize("NFKC", text).translate(SIGNS)
    return "".join(c for c in plain if unicodedata.category(c) not in ("Cf", "Mn"))


def _fold(character: str) -> str:
    """LaTeX for a character beyond ASCII."""
    plain = _plain(character)
    if unicodedata.decomposition(character).startswith("<fraction") and plain.count("/") == 1:
        return r"\frac{{{}}}{{{}}}".format(*plain.split("/"))
    if len(plain) != 1:
        return plain
    name = unicodedata.name(plain[0], "").replace("LAMDA", "LAMBDA").split()
    if name[:1] == ["GREEK"] and name[-1].lower() in GREEK:
        letter = name[-1].lower()
        return f"\\{letter.capitalize() if name[1] == 'CAPITAL' else letter} "
    return plain


_SPACES = "quad|qquad|enspace|thinspace|space"
_BETWEEN = r"(?:\{,\}|,\\!\ ?|\\(?:[,!:;>\ ]|thinspace\ ?)|[\ ~])"
_TOKEN = re.compile(
    rf"""(?P<space>(?:\s|~|\\[,!;:>\ ]|\\(?:{_SPACES})(?![A-Za-z]))+)
    |(?P<comma>(?<![\d,])(?<!\d\ )[1-9]\d{{0,2}}(?:,\d{{3}})+(?![\d,]|\.\d+\.)(?:\.\d+)?)
    |(?P<group>[1-9]\d{{0,2}}(?:{_BETWEEN}\d{{3}}(?!\d))+(?:\.\d+)?)
    |(?P<tail>\d+\.\d{{3}}(?:\\,\d{{3}})*\\,\d{{1,3}}(?!\d))
    |(?P<odd>\d+(?:\.\d+){{2,}})
    |(?P<num>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{{1,3}}(?![\d.A-Za-z]))?)
    |(?P<env>\\(?:begin|end)\s*\{{\s*[A-Za-z]+\*?\s*\}})
    |(?P<double>\\mathbb\s*(?:\{{\s*[A-Z]\s*\}}|[A-Z]))
    |(?P<cmd>\\[A-Za-z]+\*?)
    |(?P<let>(?:[ap]\.\ ?m\b\.?)|[A-Za-z]+)
    |(?P<op>\*\*|<=|>=|(?<=\s)!=|\\\\|\\.|.)
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_LETTERS = re.compile(r"(?:[.'-]?[^\W\d_])*\.?")
_DOUBLED = re.compile(
    rf"(?<!\\)\\\\(?=(?:[dt]?frac|sqrt|text|mathrm|left|right|cdot|times|pi|boxed|le|ge|infty|cup"
    rf"|{'|'.join(sorted(FUNCTIONS))})(?![A-Za-z]))"
)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_AS_COMMANDS = {"<=": r"\le", ">=": r"\ge", "!=": r"\ne", "**": "^", "*": r"\cdot", r"\%": "%"}
_SHIFTS = ("$", r"\$", r"\(", r"\)", r"\[", r"\]")


def tokens(text: str, depth: int = 0, in_text: bool = False) -> list[Token]:
    """The tokens of a folded text within so many brackets; linear in the text."""
    found: list[Token] = []
    position, spaced = 0, False
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match is not None
        kind, piece = str(match.lastgroup), match.group()
        if kind == "comma" and depth and ",0" not in piece:  # (1,234) is a pair
            kind, piece = "num", piece.partition(",")[0]
        position += len(piece)
        if kind == "space":
            spaced = spaced or piece.strip(r"\!") != ""
            continue
        made: list[Token] = []
        if kind in ("comma", "group", "tail"):
            made = [Token("num", re.sub(r"[^\d.]", "", piece))]
        elif kind in ("num", "odd"):
            made = [Token("num" if kind == "num" else "word", piece)]
        elif kind == "env":
            made = [Token("op", re.sub(r"[\s*]", "", piece))]
        elif kind == "double":
            made = [Token("cmd", rf"\mathbb{{{piece.rstrip(' }')[-1]}}}")]
        elif kind == "cmd":
            made, position = _command(piece[1:].rstrip("*"), text, position, depth)
        elif piece.isalpha() or len(piece) > 2:
            if in_text or not piece.isascii():
                rest = _LETTERS.match(text, position)
                assert rest is not None
                position += len(rest[0])
                piece += rest[0]
            made = _letters(piece.replace(".", "").replace(" ", ""), in_text)
        elif piece not in _SHIFTS:
            depth += (piece in ("(", "[", r"\{")) - (piece in (")", "]", r"\}"))
            sign = _AS_COMMANDS.get(piece, piece)
            made = [Token("cmd" if sign[1:].isalpha() else "op", sign)]
        if made:
            found.append(made[0]._replace(spaced=spaced or made[0].spaced))
            found.extend(made[1:])
            spaced = False
    return found


def is_word(run: str) -> bool:
    """Letters that are a word also outside of text: three or more, but no `xyz` or `abc`."""
    is_product = len(run) < 3 or set(run) <= set("xyz") or set(run) <= set("abc")
    return run.isascii() and run.isalpha() and run.lower() not in BARE and not is_product


def _letters(run: str, in_text: bool) -> list[Token]:
    if run.lower() in BARE:
        return [Token("cmd", "\\" + SYNONYMS.get(run.lower(), run.lower()))]
    in_text = in_text or is_word(run) or run.lower() in SHORT_WORDS or not run.isascii()
    if len(run) == 1 or not in_text:
        return [Token("let", letter, is_text=in_text) for letter in run]
    return [Token("word", run.lower() if run in ("AM", "PM") else run)]


def _command(name: str, text: str, position: int, depth: int) -> tuple[list[Token], int]:
    """Tokens of a command, and where the text goes on."""
    start = len(text) - len(text[position:].lstrip())
    is_opened = text.startswith("{", start)
    if name in TEXTS or name in WITH_ARGUMENT:
        if not is_opened:
            return [], position
        end = _closing(text, start + 1)
        inside = text[start + 1 : end]
        made = tokens(inside, depth, in_text=True) if name in TEXTS else []
        if made and inside[:1] == " ":
            made[0] = made[0]._replace(spaced=True)
        own, behind = inside.strip(), text[end + 1 : end + 2]
        if name == "operatorname" and len(made) == 1 and (own in BARE or behind in (*"([{_\\",)):
            made = [Token("cmd", "\\" + SYNONYMS.get(own, own))]
        # Only a letter that stands alone is one: the `a` of `a cat` is a word.
        if any(t.type == "word" and t.text not in ("and", "or") for t in made):
            made = [t._replace(type="word") if t.type == "let" else t for t in made]
        return made, end + 1
    if name in LOOKS:
        hides = name in ("left", "right", "mleft", "mright") and text.startswith(".", start)
        return [], start + 1 if hides else position
    if name in ("R", "Z", "N", "Q", "C"):
        return [Token("cmd", rf"\mathbb{{{name}}}")], position
    if name in ("lor", "vee", "land", "wedge"):
        return [Token("word", "or" if name in ("lor", "vee") else "and")], position
    if name == "degree":
        return [Token("op", "^"), Token("cmd", r"\circ")], position
    name = SYNONYMS.get(name, name)
    if name in "{}":
        return [Token("op", "\\" + name)], position
    return [Token("cmd", "\\" + name) if name.isalpha() else Token("op", name)], position


def _closing(text: str, start: int) -> int:
    """Where the brace closes that opened before `start`; the end of the text if nowhere."""
    level = 1
    for match in _BRACE.finditer(text, start):
        level += {"{": 1, "}": -1}.get(match.group(), 0)
        if level == 0:
            return match.start()
    return len(text)
