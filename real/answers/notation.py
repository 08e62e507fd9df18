"""One notation: what is a sign, a synonym, a matter of looks, a function, a unit."""

from __future__ import annotations

import re
from html.entities import html5
from itertools import groupby
from unicodedata import category, decomposition, normalize


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


GREEK = words("""alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron
    pi rho sigma tau upsilon phi chi psi omega""")  # fmt: skip
_REWRITTEN = {
    r"\le": "leq leqslant leqq <=", r"\ge": "geq geqslant geqq >=", r"\ne": "neq !=",
    r"\binom": "dbinom tbinom", r"\frac": "dfrac tfrac cfrac sfrac nicefrac", r"\to": "rightarrow",
    r"\Rightarrow": "implies Longrightarrow", r"\iff": "Leftrightarrow",
    r"\cdot": "times ast cdotp bullet * \u2715 \u2a2f \u00b7 \u22c5 \u2219 \u2217", "^": "**",
    r"\pm": "+/-", r"\emptyset": "varnothing empty \u2300 \u00d8", r"\overline": "bar",
    r"\circ": "\u2218", r"\ldots": "dots cdots dotsc dotsb hdots \u2026 \u22ef",
    r"\infty": "infinity infin inf oo", r"\cap": "bigcap intersection", r"\cup": "bigcup union",
    r"\angle": "measuredangle", r"\setminus": "backslash smallsetminus", r"\vec": "overrightarrow",
    r"\mathbb": "Bbb mathds", r"\hat": "widehat", r"\tilde": "widetilde", r"\arcsin": "asin",
    r"\arccos": "acos", r"\arctan": "atan arctg", r"\tan": "tg", r"\cot": "ctg", r"\csc": "cosec",
    r"\epsilon": "varepsilon", "|": "lvert rvert vert \u2223 \u01c0 \u2502", r"\{": "lbrace",
    r"\}": "rbrace", "[": "lbrack", "]": "rbrack", "/": "div \u2215 \u2044", "<": "lt", ">": "gt",
    r"\|": "lVert rVert Vert", "'": "prime \u2019 \u2018 \u00b4", ":": "colon ratio",
    "=": ":= coloneqq", ".": "\u3002", "%": r"\%", "-": "\u2212 \u2012 \u2013 \u2014 \u2010 \u2011",
    ",": "\u3001", r"\mathbb{C}": "C complexes", r"\neg": "lnot \u00ac", r"\sqrt": "\u221a",
    r"\sqrt[3]": "\u221b", r"\sqrt[4]": "\u221c", r"\partial": "\u2202",
    r"\triangle": "\u25b3 \u2206", r"^{\circ}": "degree \u00b0 \u00ba \u02da", "T": "top intercal",
    r"\mod": "bmod pmod pod", r"\text{ or }": "或", r"\text{ and }": "且 和 与", r"\lor": "vee",
    r"\land": "wedge", r"\mathbb{R}": "R reals Reals", r"\mathbb{Z}": "Z integers",
    r"\mathbb{N}": "N naturals", r"\mathbb{Q}": "Q rationals", r"\quad": "hfill newline",
    "": """displaystyle textstyle scriptstyle footnotesize scriptsize limits nolimits left right
    middle mleft mright rm bf it sf tt cal em mathstrut strut boldmath tiny small normalsize large
    Large LARGE huge Huge boxed fbox boldsymbol mathbf mathit mathsf mathtt bm pmb mathnormal
    mathcal mathscr mathfrak underline emph ensuremath mathop mathrel mathbin mathord big Big bigg
    Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr bigm Bigm pounds euro textdollar textcent
    rmfamily bfseries itshape framebox nonumber notag smash uline bold relax noindent \u00a3 \u00a5
    \u00a2 \u20b9 \u201c \u201d \u300c \u300d \u2713 \u2714 \u2705 \u2234 \ufe0e \ufe0f""",
}  # fmt: skip
REWRITTEN = {name: new for new, names in _REWRITTEN.items() for name in names.split()}
"""What is written for commands and signs: their synonyms, and nothing for those of looks."""
_COMMANDS = {*GREEK, *map(str.capitalize, GREEK), *REWRITTEN} | words("""le ge ne approx equiv sim
    cong propto infty cup cap in notin setminus subset supset subseteq supseteq angle pm mp lfloor
    rfloor lceil rceil langle rangle sum prod int parallel perp Rightarrow iff""")  # fmt: skip
_NAMED = {sign: name.rstrip(";") for name, sign in html5.items() if name.rstrip(";") in _COMMANDS}
_NEW = {sign: f"\\{name}" for sign, name in _NAMED.items()} | REWRITTEN
_SIGNS = [sign for sign in _NEW if len(sign) == 1 and not sign.isascii()]
_TABLE = str.maketrans({sign: _NEW[sign] + " " * _NEW[sign][-1:].isalpha() for sign in _SIGNS})
"""LaTeX for signs and letters of Unicode: names of HTML that are commands, and others."""
WITH_ARGUMENT = r"color|textcolor|colorbox|[hv]?phantom|[hv]space\*?|label|tag"
"""Looks whose first argument is no part of the answer."""
TEXTS = words("""text mbox textbf textit textrm textsf texttt textsc textsl textnormal textup textmd
    hbox mathrm operatorname""")  # fmt: skip
FUNCTIONS = words("""sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh
    tanh arcsinh arccosh arctanh ln log exp lg""")  # fmt: skip
BARE = words("""sqrt infinity infty inf oo cup union cap cdot choose asin acos atan leq geq neq cbrt
    abs floor ceil emptyset frac binom setminus mod tg ctg arctg cosec""")  # fmt: skip
BARE |= FUNCTIONS - {"sec"} | GREEK - words("mu nu xi eta chi")
"""Commands that are known without their backslash, too."""
SHORT_WORDS = words("or no if of is to it on am pm be")
BARE_UNITS = words("""unit inch inche in foot feet ft yard yd mile mi mph kph kmh m cm mm km dm nm
    atm meter metre centimeter centimetre millimeter millimetre kilometer kilometre g gram kg mg
    kilogram milligram lb pound ounce oz ton tonne s sec second min minute h hr hour day week month
    year yr ms l liter litre ml milliliter millilitre gallon gal quart pint acre hectare ha dollar
    cent usd euro rupee yen yuan peso newton joule watt volt kw kwh hz hertz ampere ohm pascal
    kelvin knot point pt bit byte way person people L N J W V percent pct degree deg mol mole kPa
    keV MeV GeV kHz MHz GHz erg calorie kcal cup tablespoon teaspoon decade parsec
    celsius 元 角 分 厘米 毫米 米 千米 公里 平方厘米 平方米 立方厘米 立方米 克 千克 公斤 吨 升 毫升
    秒 分钟 时 小时 天 月 年 岁 度""")  # fmt: skip
UNITS = BARE_UNITS | words("K A T C eV Pa AU pc ly kJ MB GB cc amp kmph")
"""Outside of text the latter are products."""
_LINKS = words("square squared cubic cubed sq cu fl per / * light nautical rad radian radians old")


def is_unit(text: str) -> bool:
    """A unit that answers have or lack by chance, in any number: `square inches`, `km / h`."""
    named = [word for word in text.split() if word[0] != "^" and word.lower() not in _LINKS]
    if re.search("[A-Za-z]{2,} [NSWE]$", text):  # `km N`
        return False
    forms = ((one, one.lower(), one.lower().removesuffix("s")) for one in named)
    return bool(named) and not any(map(UNITS.isdisjoint, forms))


_MARKS = {"\u0304": r"\overline", "\u0305": r"\overline", "\u0302": r"\hat", "\u20d7": r"\vec"}
_UNICODE = (
    (rf"(?:[A-Za-z0-9]([{''.join(_MARKS)}]))+", lambda m: f"{_MARKS[m[1]]}{{{m[0][::2]}}}"),
    ("([\u221a-\u221c]) ?(\\d+(?:\\.\\d+)?)", r"\1{\2}"),  # such a root is over all digits
    ("^(\\d+)\u2013(\\d+)$", r"\1\\text{ to }\2"),
    ("(?s).+", lambda m: _plain(m[0])),
)
_COMPATIBLE = {"<super>": "^{%s}", "<sub>": "_{%s}", "<fraction>": r"\frac{%s}", "<circle>": "%s,"}


def _plain(text: str) -> str:
    """What Unicode calls compatible with the text, without marks and invisible characters."""
    made = ""
    for tag, run in groupby(text.translate(_TABLE), lambda c: decomposition(c).split(" ")[0]):
        between = "," if tag == "<circle>" else ""  # choices: 1 in a circle and so on
        plain = between.join(normalize("NFKC", sign) for sign in run)
        made += _COMPATIBLE.get(tag, "%s") % plain.replace("\u2044", "}{").translate(_TABLE)
    return "".join(c for c in made if category(c) not in ("Cf", "Me"))


def _rewritten(match: re.Match[str]) -> str:
    name, brace = match[1], match[2] or ""
    if name in TEXTS and not brace:
        return ""
    return REWRITTEN.get(name, f"\\{name}") + brace if name else match[0]


_ESCAPED_TWICE = "[dt]?frac|sqrt|text|mathrm|left|right|cdot|times|pi|boxed|le|ge|infty|cup"
_ONE = r" ?(?:\{ ?(\w+) ?\}|(\d+|\w))"
_C = r"(?:\\mathrm ?\{ ?C ?\}|C)"
_BEFORE_SET = r"\\(?:cup|cap|in|setminus)(?![A-Za-z])"
_LATEX = (
    (r"& ?(?==)|^&", ""),  # alignment
    (r"(?<=\\\\) ?\[[\d. -]+[a-z]{2} ?\]|\\renewcommand ?\{?\\arraystretch\}? ?\{[\d.]*\}", ""),
    (r"& ?\\text ?\{ ?(?:if|for|when) ?\}", "& "),
    (r"\^\{(\d+)\} ?/ ?_\{(\d+)\}", r"\\frac{\1}{\2}"),  # raised and lowered digits
    (r"\.\.\.", r"\\ldots "),
    (r"(\.\d{0,9}?)(\d{1,6}?)\2\2+ ?\\ldots(?= ?$)", r"\1\\overline{\2}"),
    (r"^(?:\\left)? ?<([^<>]*,[^<>]*?)(?:\\right)? ?>$", r"\\langle \1\\rangle "),
    (r"\\not ?(?:=|\\(in)(?![A-Za-z]))", lambda m: r"\notin " if m[1] else r"\ne "),
    (r"(?<=[)\]]) ?U ?(?=[(\[])", r"\\cup "),
    (r"\\cup(?= ?[a-z] ?(?:[<>]|\\[gl]eq?(?![a-z])))", r"\\text{ or }"),
    (r"^([a-z]) in (?=[({\[\\])", r"\1\\in "),
    (r"(?<![A-Za-z\\])d([a-z])/d([a-z])(?![A-Za-z])", r"\\frac{d\1}{d\2}"),
    (r"\b([a-z])\\text ?\{ ?-", r"\\text{\1-"),  # `x\text{-axis}`
    (r"(\\[a-z]+ ?\{ ?)?(?<![\\A-Za-z])(gcd|lcm|max|min)(?(1) ?\})(?= ?\()", r"\\\2 "),
    (r"(?<![\\A-Za-z])sqrt ?(\d+)", r"\\sqrt{\1}"),
    (r"\{ ?\\rm(?![A-Za-z])|\\rm ?\{", r"\\text{"),
    (r"(?<=[\w}])(?:\\ )? ?\(([a-z] ?\\in(?![a-z]) ?[^()]*)\)$", r", \1"),  # `k\pi\ (k\in S)`
    (r"(?<=\d) ?x ?(?=10 ?\^)", r"\\cdot "),
    (rf"(?<!\\)\\\\(?=(?:{_ESCAPED_TWICE}|{'|'.join(sorted(FUNCTIONS))})(?![A-Za-z]))", r"\\"),
    (rf"\\(?:{WITH_ARGUMENT})\s*\{{[^{{}}]*\}}|\\(?:boxed|fbox)\s*\{{\s*\}}", r"\\quad "),
    (r"(?<![\^_])\{ ?([:;=<>+-]|\\pm) ?\}|(?<=\d)\{ ?\}(?= ?\^)", r"\1"),
    (r"\\m?(?:left|right)\s*\.|[\"`]", ""),
    (r"\\(?!times\s*\\(?:vec|hat|over))(?:\\|([A-Za-z]+)\*?(\s*\{)?)", _rewritten),
    (r"\^ ?(?:\{ ?('+) ?\}|('+))", r"\1\2"),
    (r"\( ?(?:\\[a-z]+ ?\{ ?)?\\?mod[ }]*([^()]*)\)", r"\\mod {\1}"),
    (r"\\text\s*\{\s*\(?(?:in )?base(?:[ -]?(\d+)\)?\s*\}|\s*\}[\\ ]*(\d+))$", r"_{\1\2}"),
    (rf"(?:\{{ ?\}}|(?<![^-(+*={{,/])) ?[_^]{_ONE} ?{_C} ?_{_ONE}", r"\\binom{\1\2}{\3\4}"),
    (rf"(?<![\w}}]){_C} ?_(?! ?\{{? ?[12] ?\}}? ?\^){_ONE} ?\^{_ONE}", r"\\binom{\1\2}{\3\4}"),
    (
        r"(?<=\d)(\^ ?\{ ?)?(\\text ?\{ ?)?(st|nd|rd|th)(?![a-z])(?(2) ?\})(?(1) ?\})",
        r"\\text{ \3}",
    ),
    (r"\\mathbb\{R\} ?[\^_] ?(?:\+|\{ ?(?:\+|> ?0) ?\})", r"(0,\\infty)"),
    (r"\\mathbb\{R\} ?_ ?\{ ?\\ge ?0 ?\}", r"[0,\\infty)"),
    (r"(?<=\\mathbb\{R\}) ?- ?(?=\\?\{)", r"\\setminus "),
    (rf"((?:^|=|{_BEFORE_SET}) ?)\](?=.*[,;])", r"\1("),  # `]1,2[`
    (rf"(?<=\S) ?\[(?= ?(?:$|{_BEFORE_SET}))", ")"),
    (r"^(?:\\(?:therefore|implies|Rightarrow|to)(?![A-Za-z])|[& ])+", ""),
    (r"(?<![^\s,;])\(([ivx]{2,4})\)", r"\\text{\1}"),
    (r"^(?:([A-J])(?:\)|\.(?= ))|\\text ?\{ ?([A-J])\) ?\})", r"(\1\2)"),
    (r"(?:\\[,;:!. ]|\\text\s*\{[\s.,;]*\}|\\(?:checkmark|(?:black)?square)|[\s.,;:~\\])+$", ""),
    (r"\\\{ ?\\begin ?\{(?:array|aligned|matrix)\}(.*\\end) ?\{\w+\}$", r"\\begin{cases}\1{cases}"),
    (r"^\s*(\*{1,3}|__?|')(?=\S)(.+?)[\s.,;:]*\1$", r"\2"),
)


_RULES, _UNICODE_RULES = ([(re.compile(p), n) for p, n in rules] for rules in (_LATEX, _UNICODE))


def folded(text: str) -> str:
    """Text in which variants of a sign or command are one, without Markdown's marks around it."""
    text = " ".join(normalize("NFC", text).split())
    for pattern, new in _RULES if text.isascii() else (*_UNICODE_RULES, *_RULES):
        if pattern.search(text):
            text = pattern.sub(new, text)
    return " ".join(text.split())
