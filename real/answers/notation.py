"""Tables of notation: what is a sign, a synonym, a matter of looks, a function, a unit."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


_SIGNS = {
    "-": "\u2212\u2012\u2013\u2014\u2010\u2011", "'": "\u2032\u2019\u2018\u00b4",
    "|": "\u2223\u01c0\u2502", "": "\u20ac\u00a3\u00a5\u201c\u201d\"`", "/": "\u00f7\u2215\u2044",
    ":": "\u2236", r"\|": "\u2016", r"\cdot ": "\u00d7\u00b7\u22c5\u2219\u2022\u2217",
    r"\emptyset ": "\u2205\u2300\u00d8", r"^{\circ}": "\u00b0\u00ba", r"\le ": "\u2264\u2a7d",
    r"\ge ": "\u2265\u2a7e", r"\ne ": "\u2260", r"\approx ": "\u2248", r"\equiv ": "\u2261",
    r"\sqrt ": "\u221a", r"\sqrt[3]": "\u221b", r"\infty ": "\u221e", r"\cup ": "\u222a",
    r"\cap ": "\u2229", r"\in ": "\u2208", r"\notin ": "\u2209", r"\setminus ": "\u2216",
    r"\angle ": "\u2220", r"\pm ": "\u00b1", r"\mp ": "\u2213", r"\lfloor ": "\u230a",
    r"\rfloor ": "\u230b", r"\lceil ": "\u2308", r"\rceil ": "\u2309", r"\langle ": "\u27e8",
    r"\rangle ": "\u27e9", r"\to ": "\u2192", r"\ldots ": "\u2026", r"\triangle ": "\u25b3",
    r"\circ ": "\u2218", r"\sum ": "\u2211", r"\int ": "\u222b", r"\parallel ": "\u2225",
    r"\perp ": "\u22a5", r"\mathbb{R}": "\u211d", r"\mathbb{Z}": "\u2124",
    r"\mathbb{Q}": "\u211a", r"\mathbb{N}": "\u2115", r"\mathbb{C}": "\u2102",
}  # fmt: skip
SIGNS = str.maketrans({one: sign for sign, others in _SIGNS.items() for one in others})
"""LaTeX for mathematical signs of Unicode."""
GREEK = words("""alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi
    omicron pi rho sigma tau upsilon phi chi psi omega""")  # fmt: skip
_SYNONYMS = {
    "le": "leq leqslant leqq", "ge": "geq geqslant geqq", "ne": "neq", "binom": "dbinom tbinom",
    "frac": "dfrac tfrac cfrac sfrac nicefrac", "cdot": "times ast cdotp bullet",
    "to": "rightarrow", "emptyset": "varnothing empty", "overline": "bar",
    "ldots": "dots cdots dotsc dotsb", "infty": "infinity infin inf",
    "cap": "bigcap intersection", "cup": "bigcup union", "setminus": "backslash smallsetminus",
    "angle": "measuredangle", "arcsin": "asin", "arccos": "acos", "arctan": "atan arctg",
    "tan": "tg", "cot": "ctg", "csc": "cosec", "epsilon": "varepsilon", "|": "lvert rvert vert",
    "\\|": "lVert rVert Vert", "{": "lbrace", "}": "rbrace", "[": "lbrack", "]": "rbrack",
    "/": "div", "<": "lt", ">": "gt", "'": "prime", ":": "colon ratio",
}  # fmt: skip
SYNONYMS = {new: name for name, others in _SYNONYMS.items() for new in others.split()}
LOOKS = words("""displaystyle textstyle scriptstyle limits nolimits left right middle mleft
    mright rm bf it sf tt cal em mathstrut strut boldmath tiny small normalsize large Large
    LARGE huge Huge boxed fbox boldsymbol mathbf mathit mathsf mathtt bm pmb mathnormal mathcal
    mathscr mathfrak underline emph ensuremath mathop mathrel mathbin mathord big Big bigg Bigg
    bigl bigr Bigl Bigr biggl biggr Biggl Biggr bigm Bigm pounds euro textdollar rmfamily
    bfseries itshape""")  # fmt: skip
WITH_ARGUMENT = words("color textcolor colorbox phantom hspace vspace label tag")
"""Looks whose first argument is no part of the answer."""
TEXTS = words("""text mbox textbf textit textrm textsf texttt textnormal textup hbox mathrm
    operatorname""")  # fmt: skip
FUNCTIONS = words("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp lg")
_BARE = words("""sqrt infinity infty inf cup union cap cdot choose asin acos atan leq geq neq
    cbrt abs floor ceil emptyset frac binom pi alpha beta gamma delta epsilon theta lambda rho
    sigma tau phi psi omega setminus""")  # fmt: skip
BARE = _BARE | (FUNCTIONS - {"sec"})
"""Commands that are known without their backslash, too."""
SHORT_WORDS = words("or no if of is to it on am pm")
_UNITS = words("""unit inch inche in foot feet ft yard yd mile mi mph kph kmh m cm mm km dm nm
    meter metre centimeter centimetre millimeter millimetre kilometer kilometre g gram kg mg
    kilogram milligram lb pound ounce oz ton tonne s sec second min minute h hr hour day week
    month year yr ms l liter litre ml milliliter millilitre gallon gal quart pint acre hectare
    ha dollar cent usd euro rupee newton joule watt volt kw kwh hz hertz ampere ohm pascal
    kelvin knot bit byte way person people L N J W V percent pct degree deg""")  # fmt: skip
_LINKS = words("square squared cubic cubed sq cu per / *")
RAW_UNITS = words("cm mm km kg ft lb hr ml yd oz")
"""Units of two letters that are known behind a number and a space outside of text, too."""


def is_unit(text: str) -> bool:
    """A unit that answers have or lack by chance, in any number: `square inches`, `km / h`."""
    named = [word for word in text.split() if word[0] != "^" and word.lower() not in _LINKS]
    return bool(named) and all(
        not _UNITS.isdisjoint((one, one.lower(), one.lower().removesuffix("s"))) for one in named
    )
