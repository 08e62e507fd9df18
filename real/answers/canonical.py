r"""One cheap spelling for an answer's many spellings: text rewriting only, nothing evaluated.

Rules that would need arithmetic are left out: `2/4` is not `1/2`, `0.5` is not `1/2`, and `1,-2`
is not `-2,1`. Units, degree and percent signs fall away, for answers have them or not by chance.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate

# One or two backslashes: models sometimes escape their LaTeX once more. Fixed repeat counts keep
# every attempt at a match constant in time, hence the whole scan linear.
_BRACES = re.compile(r"\\{1,2}(?:boxed|fbox)\s{0,8}\{|\\[\\{}]|[{}]")


def last_box(text: str) -> str | None:
    r"""Content, perhaps empty, of the last balanced `\boxed{...}` or `\fbox{...}`, if any.

    "Last" is the box that opens last among those that close, so of nested boxes it is the inner
    one. Boxes that never close and escaped braces (`\{`) are passed over. Linear in the text.
    """
    if "box" not in text:
        return None
    best, end = -1, -1
    open_braces: list[int] = []  # where a box's content starts; -1 for an ordinary brace
    for match in _BRACES.finditer(text):
        token = match.group()
        if token == "{":
            open_braces.append(-1)
        elif token == "}":
            start = open_braces.pop() if open_braces else -1
            if start > best:
                best, end = start, match.start()
        elif len(token) > 2:
            open_braces.append(match.end())
    return None if best < 0 else text[best:end]


_NUMBER = re.compile(r"-?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")


def last_number(text: str) -> str | None:
    """Return the last number, as `flexible-extract` of lm-evaluation-harness; None without one."""
    found = _NUMBER.findall(text)
    return found[-1].rstrip(",") if found else None


MAX_LENGTH = 1_000
"""Characters. A longer answer is none: it counts as unparseable. Bounds the cost of every rule."""
_MAX_PASSES = 30

Substitution = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]

_CHARACTERS = str.maketrans(
    {
        # Fullwidth forms, as Chinese and Japanese texts write digits and signs.
        **{0xFF00 + i: chr(0x20 + i) for i in range(1, 0x5F)},
        "\u2212": "-",  # minus
        "\u2013": "-",  # en dash
        "\u00b0": None,  # degree
        "\u00d7": r"\cdot ",
        "\u00b7": r"\cdot ",
        "*": r"\cdot ",
        "\u03c0": r"\pi ",
        "\u221e": r"\infty ",
        "\u222a": r"\cup ",
        "\u2264": r"\le ",
        "\u2265": r"\ge ",
        "\u221a": r"\sqrt ",
    }
)

_WRAP = r"\\(?:text|mbox|textbf|textit|textrm|mathrm|mathbf|mathit|operatorname|boxed|fbox)"
_UNIT = re.compile(r"[A-Za-z][A-Za-z./ ]*[A-Za-z.]|[mgshLJNWV]")
_UNITS = (
    r"(?:square |cubic |sq\.? )?(?:units?|inch(?:es)?|feet|foot|ft|yards?|miles?|mph|[ckm]m|kg"
    r"|(?:centi|milli|kilo)?met(?:er|re)s?|(?:kilo)?grams?|pounds?|hours?|minutes?|seconds?|days?"
    r"|years?)(?:\^ ?\{?[23]\}?)?"
)
_GROUP = r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}"
# A factor that a slash can divide without parentheses: 3, x, 3\pi, 2\sqrt{3}.
_FACTOR = r"(?:\d+(?:\\pi|\\sqrt\{\w+\}|[a-zA-Z])?|\\pi|\\sqrt\{\w+\}|[a-zA-Z])"
_OPENED = r"(?:^|(?<=[(\[{,;=&])|(?<=\\\\)|(?<=matrix\}))"
_BEFORE = rf"(?:{_OPENED}|(?<=[+-]))"
_AFTER = r"(?=$|[)\]},;=+\-&]|\\\\|\\end|\\cup|\\\})"


def _drop_unit(match: re.Match[str]) -> str:
    """Nothing for a unit at the end of a quantity, else the text without its wrapper."""
    has_number = any(map(str.isdigit, match.string[: match.start()]))
    return "" if has_number and _UNIT.fullmatch(match[1].strip()) else match[1] + match[2]


def _as_list(match: re.Match[str]) -> str:
    """`1, 234` is two numbers, `1,234` is one; without spaces only another mark separates them."""
    return re.sub(", ?", ";", match[0]) if " " in match[0] else match[0]


def _mixed(match: re.Match[str]) -> str:
    """`1 4/5` is no `14/5`; where the space groups digits, as in `10 000/3`, it stays."""
    whole, top, bottom = match.groups()
    if len(top) >= 3 or len(bottom) > 9 or int(top) >= int(bottom):
        return match[0]
    return rf"{whole}\frac{{{top}}}{{{bottom}}}"


def _rules(*pairs: tuple[str, str | Callable[[re.Match[str]], str]]) -> tuple[Substitution, ...]:
    return tuple((re.compile(pattern), replacement) for pattern, replacement in pairs)


_NO_LETTER = r"(?![A-Za-z])"
# While spaces still distinguish `1,\! 234` from `1, 234`.
_LOOSE = _rules(
    (r",\\! ?|\{,\}(?=\d)", ","),
    # Not the second half of `\\\\`, a matrix's line break.
    (r"(?<!\\)\\[!,;:> ]|~", " "),
    (rf"\\(?:q?quad|displaystyle|limits|left|right|[bB]igg?[lr]?){_NO_LETTER}\.?", " "),
    (rf"\\[dtc]frac{_NO_LETTER}", r"\\frac"),
    (
        rf"\^ ?(?:\\(?:circ|degree){_NO_LETTER}|\{{ ?\\(?:circ|degree) ?\}})|\\degree{_NO_LETTER}",
        "",
    ),
    (r"\\?[%$]|\\\(|\\\)|^\\\[|\\\]$", ""),
    (r"(?<=[^.,;: ])[.,;:]+ ?$", ""),
    (rf"\\(?:times|ast){_NO_LETTER}", r"\\cdot "),
    (rf"\\(le|ge|ne)q{_NO_LETTER}", r"\\\1 "),
    (rf"\\varnothing{_NO_LETTER}", r"\\emptyset "),
    (r"\{[bBvV]?matrix\}", "{pmatrix}"),
    (rf"{_WRAP} ?\{{([^{{}}]*)\}} ?((?:\^ ?\{{?\d\}}?)?) ?$", _drop_unit),
    (rf"(?<=[\d}}]) ?(?:degrees?|percent|dollars?|cents?)$|(?<=[\d}}]) (?:{_UNITS})$", ""),
    (rf"{_WRAP} ?\{{([^{{}}]*)\}}", r"\1"),
    (rf"{_WRAP} ?(?=\{{)", ""),
    (
        r"(?<=[\w)}\]]) *,? *(?<![A-Za-z])(?:and|or)(?![A-Za-z]) *|(?<=[A-Za-z]),? +(?:and|or) +",
        ", ",
    ),
    (r"(?<![\d./])(\d+) (\d+)/(\d+)(?![\d.])", _mixed),
    (r"^[+-]?\d{1,3}(?:, ?\d{3})+$", _as_list),
)

_TIGHT = _rules(
    # A space stays only where it ends a command's name: \pi r.
    (r"(\\[A-Za-z]+) (?=[A-Za-z])| ", lambda match: f"{match[1]} " if match[1] else ""),
    (r"\\frac ?([0-9A-Za-z]|\\pi)", r"\\frac{\1}"),
    (rf"\\frac({_GROUP})([0-9A-Za-z]|\\pi)", r"\\frac\1{\2}"),
    (r"\\sqrt ?([0-9A-Za-z])", r"\\sqrt{\1}"),
    (r"([\^_])\{([0-9A-Za-z])\}", r"\1\2"),
    (r"\\\\(?=\\end\{)", ""),
    (r"(?:[.,;:]|(?<!\\)\\)+$", ""),
    # x=5, f(x)=5, \theta=5, x\in[0,1]: the name falls away where it is the only equation.
    (r"^(?:[A-Za-z]{1,2}|\\[a-z]{2,8})(?:_\w)?(?:\([a-z]\))?(?:=|\\in(?![a-z]))([^=]+)$", r"\1"),
    (r"^[+-]?\d{1,3}(?:,\d{3})+(?=\.\d|$)", lambda match: match[0].replace(",", "")),
    (r"(?<![\d.])(?<!\d,)0+(?=\d)", ""),
    (r"(?<!\d)\.(?=\d)", "0."),
    (r"(\.\d*?[1-9])0++(?!\d|\\overline)", r"\1"),
    (r"(?<=\d)\.0++(?!\d|\\overline)", ""),
    (rf"{_OPENED}\\frac\{{-({_FACTOR})\}}", r"-\\frac{\1}"),
    (rf"{_BEFORE}\\frac\{{({_FACTOR})\}}\{{(\d+)\}}{_AFTER}", r"\1/\2"),
    (r"^\+", ""),
    (r"^-0$", "0"),
    (r"^\(?([A-Z])\)?$", r"\1"),
    (r"^[A-Za-z]{2,}$", lambda match: match[0].lower()),
)

_PLAIN_INTEGER = re.compile(r"-?[1-9][0-9]{0,30}|0")


def canonical(answer: str) -> str:
    r"""The canonical string of an answer; equal strings are equal answers.

    `025`, `25.0`, `$25$`, `25^\circ`, `x=25` give `25`; `\dfrac12` gives `1/2`; `1,234` gives
    `1234`; `\text{(C)}` gives `C`; `10\%` gives `10`, hence never equals `0.1`; spaces fall away.
    Applying it twice changes nothing. Empty where nothing is left, or the answer is longer than
    `MAX_LENGTH` characters, or nested so deeply that the rules do not come to rest.
    """
    if len(answer) > MAX_LENGTH:
        return ""
    return answer if _PLAIN_INTEGER.fullmatch(answer) else _at_rest(answer)


@lru_cache(maxsize=8192)
def _at_rest(text: str) -> str:
    for _ in range(_MAX_PASSES):
        if len(text) > MAX_LENGTH:
            return ""
        rewritten = _rewrite(text)
        if rewritten == text:
            return text
        text = rewritten
    return ""


def _rewrite(text: str) -> str:
    text = " ".join(text.translate(_CHARACTERS).split())
    for pattern, replacement in _LOOSE:
        text = pattern.sub(replacement, text)
    text = " ".join(text.split())
    for pattern, replacement in _TIGHT:
        text = pattern.sub(replacement, text)
    return _without_outer_braces(text)


def _without_outer_braces(text: str) -> str:
    depths = accumulate((character == "{") - (character == "}") for character in text)
    closes = next((i for i, depth in enumerate(depths) if depth == 0), -1)
    return text[1:-1] if text[:1] == "{" and closes == len(text) - 1 else text
