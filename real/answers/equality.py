r"""Equality of two answers: the one rule for votes, rewards and truth.

1. Equal canonical strings are equal.
2. Plain numbers are compared as exact fractions: `1/2`, `0.5` and `2/4` are equal, `0.33` and
   `1/3` are not.
3. Sets, tuples, intervals, unions and matrices are equal part by part (`forms`).
4. Scalar formulas and equations are equal if math-verify says so with either one as the
   reference, and their values at fixed points agree (`child`).

What step 4 cannot do within its limits counts as unequal: it is counted, and remembered so that it
stays so. The limits are CPU seconds, hence do not depend on the load of the machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from real.answers.checker import Checker
from real.answers.forms import NUMBER, Form, exact, form_of, keyed_leaves

MAX_FORMULA = 200
"""Characters."""
MAX_POWER = 10_000
"""Bound on what exponents amount to, hence on the digits of the numbers that they make."""

_FUNCTIONS = (
    "frac|sqrt|cdot|log|ln|exp|binom|lfloor|rfloor|lceil|rceil"
    "|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh"
)
_LETTERS = (
    "pi|alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau"
    "|phi|varphi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega"
)
_FORMULA = re.compile(
    rf"(?:\\(?:{_FUNCTIONS}|{_LETTERS})(?![A-Za-z])|[0-9A-HJ-Za-z+\-/^_(){{}}.|!=\[\] ])+"
)
_COMMAND = re.compile(r"\\[A-Za-z]+")
_UNCLEAR = re.compile(
    # One letter, a word, `q1`, `52_8`, `2^10`, `2^3^4`, runs of signs, and `1/2x`: half of x or
    # one over 2x.
    r"^[A-Za-z]$|[A-Za-z]{3}|[A-Za-z)}@]\d|[\d)]_|\^\d\d|\^[^{(]\^|[+*-]{3}|\*\*|\|\||\}\^.\^"
    r"|/(?:\d+|[A-Za-z@]|\\ ?(?:\{[^{}]*\})?)[A-Za-z@(\\]"
)
_NUMBER = re.compile(r"\d+")
_POWER = re.compile(r"\^.")
_MAX_DIGITS, _MAX_COUNTED, _MAX_CALLS = 40, 170, 3
_MAX_ROUND, _MAX_CURLY = 4, 8
"""Depths of brackets: the parser's time grows with them, to half a second for ten parentheses."""
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def formula(text: str) -> str | None:
    r"""A canonical scalar as the checker reads it.

    `i` becomes the imaginary unit `I`, and `\log_23` gets the braces that LaTeX implies.

    Returns:
        The formula; None for what must not reach the checker.
    """
    if len(text) > MAX_FORMULA or not _FORMULA.fullmatch(text) or text.count("=") > 1:
        return None
    if _UNCLEAR.search(_COMMAND.sub(_mark, text)) or not _is_small(text):
        return None
    text = re.sub(r"_(\w)", r"_{\1}", text)
    return re.sub(r"\\[A-Za-z]+|i", lambda m: "I" if m[0] == "i" else m[0], text)


def _mark(command: re.Match[str]) -> str:
    """One character for a command, so that its letters are not taken for a word."""
    if command[0] == r"\cdot":
        return "*"
    return "@" if re.fullmatch(_LETTERS, command[0][1:]) else "\\"


def _is_small(text: str) -> bool:
    """No power tower, no huge power or factorial, no long number, no deep parentheses."""
    numbers = _NUMBER.findall(text)
    if any(len(number) > _MAX_DIGITS for number in numbers) or not _is_flat(text):
        return False
    if "!" in text or r"\binom" in text:
        few = text.count("!") + text.count(r"\binom") <= _MAX_CALLS
        largest = max(map(int, numbers), default=0)
        if not few or largest > _MAX_COUNTED or "^" in text or re.search(r"!\W*!", text):
            return False
    return _power(text) <= MAX_POWER


def _power(text: str) -> int:
    """Largest power that the text can amount to; beyond `MAX_POWER` for a tower of numbers."""
    largest, product = 1, 1
    for match in _POWER.finditer(text):
        exponent = _group(text, match.end()) if match[0][1] in _CLOSING else match[0][1:]
        if "^" in exponent and not re.search("[a-z]", _COMMAND.sub("", exponent)):
            return MAX_POWER + 1
        power = math.prod(min(int(n), MAX_POWER + 1) or 1 for n in _NUMBER.findall(exponent)[:9])
        if text[match.start() - 1] in ")}]":  # of a group, which can hold powers itself
            product = min(product * power, MAX_POWER + 1)
        largest = max(largest, power)
    return largest * product


def _is_flat(text: str) -> bool:
    """Brackets match and are not deep."""
    waiting: list[str] = []
    for character in text:
        if character in _CLOSING:
            waiting.append(_CLOSING[character])
            curly = waiting.count("}")
            if curly > _MAX_CURLY or len(waiting) - curly > _MAX_ROUND:
                return False
        elif character in ")]}" and (not waiting or waiting.pop() != character):
            return False
    return not waiting


def _group(text: str, start: int) -> str:
    """From `start` to the bracket that closes there, or to the end."""
    depth = 1
    for i in range(start, len(text)):
        depth += (text[i] in _CLOSING) - (text[i] in ")]}")
        if depth == 0:
            return text[start:i]
    return text[start:]


_SHARE = 4
"""One question may take this part of a group's seconds, and none starts once the rest is spent."""
_MAX_CACHED = 100_000


@dataclass(slots=True)
class Budget:
    """CPU seconds that one group of answers may still cost."""

    left: float


class Equality:
    """Compares canonical strings; caches what it found, keeps count of what it gave up."""

    def __init__(
        self,
        seconds: float = 2.0,
        checker: Checker | None = None,
        screen: Callable[[str], str | None] = formula,
    ) -> None:
        """Start no process yet: plain numbers and words never need one.

        Args:
            seconds: CPU time that the answers of one group may cost; one comparison a quarter.
            checker: runs math-verify; an own one if None.
            screen: a scalar as the checker reads it, None to compare it as a string.
        """
        self.checker = Checker() if checker is None else checker
        self._seconds = seconds
        self._screen = screen
        self._keys: dict[str, str] = {}
        self._verdicts: dict[tuple[str, str], bool] = {}
        self._given_up: set[tuple[str, ...]] = set()
        self._n_postponed = 0

    @property
    def n_given_up(self) -> int:
        """Formulas and pairs that hit a limit, or that a spent budget left unread."""
        return len(self._given_up) + self._n_postponed

    def budget(self) -> Budget:
        """For one group of answers."""
        return Budget(self._seconds)

    def key(self, text: str, budget: Budget) -> str:
        """A string that equal answers share; answers that share it need not be equal."""
        value = exact(text)
        if value is not None:
            return _number_key(value)
        return keyed_leaves(form_of(text), lambda leaf: self._leaf_key(leaf, budget))[0]

    def same(self, one: str, other: str, budget: Budget) -> bool:
        """True if two canonical strings are one answer; symmetric in them."""
        if one == other:
            return True
        (key, leaves), (other_key, other_leaves) = (
            keyed_leaves(form_of(text), lambda leaf: self._leaf_key(leaf, budget))
            for text in (one, other)
        )
        if key != other_key or len(leaves) != len(other_leaves):
            return False
        pairs = zip(leaves, other_leaves, strict=True)
        return all(self._same_leaves(a, b, budget) for a, b in pairs)

    def close(self) -> None:
        """End the checker's process."""
        self.checker.close()

    def to_values(self) -> dict[str, object]:
        """The comparisons that were given up, as plain JSON types."""
        return {"given_up": sorted(map(list, self._given_up)), "postponed": self._n_postponed}

    def restore(self, given_up: Sequence[Sequence[str]], postponed: int) -> None:
        """Take over what `to_values` wrote."""
        self._given_up.update(map(tuple, given_up))
        self._n_postponed += postponed

    def _leaf_key(self, leaf: Form, budget: Budget) -> str:
        if leaf.kind == NUMBER:
            return _number_key(Fraction(leaf.text))
        known = self._keys.get(leaf.text)
        if known is not None:
            return known
        readable = self._screen(leaf.text)
        value = None if readable is None else self._ask("key", (readable,), budget)
        # Without a value it is equal to its own string alone.
        key = f"s:{leaf.text}" if value is None else f"e:{value}"
        if len(self._keys) >= _MAX_CACHED:
            self._keys.clear()
        self._keys[leaf.text] = key
        return key

    def _same_leaves(self, one: Form, other: Form, budget: Budget) -> bool:
        if one == other:
            return True
        if one.kind == other.kind == NUMBER:
            return False
        a, b = sorted((self._formula(one), self._formula(other)))
        if not a or (_letters(a) != _letters(b) and _folded(a) == _folded(b)):
            return False  # math-verify takes R for r
        known = self._verdicts.get((a, b))
        if known is None:
            known = a == b or bool(self._ask("same", (a, b), budget))
            if len(self._verdicts) >= _MAX_CACHED:
                self._verdicts.clear()
            self._verdicts[a, b] = known
        return known

    def _formula(self, leaf: Form) -> str:
        return leaf.text if leaf.kind == NUMBER else self._screen(leaf.text) or ""

    def _ask(self, do: str, texts: tuple[str, ...], budget: Budget) -> str | bool | None:
        question = (do, *texts)
        if question in self._given_up:
            return None
        limit = self._seconds / _SHARE
        if budget.left < limit:
            self._n_postponed += 1
            return None
        reply = self.checker.ask(do, texts, limit)
        budget.left -= reply.cpu
        if reply.given_up:
            self._given_up.add(question)
        return reply.value


def _number_key(value: Fraction) -> str:
    """As the child writes it, for a formula can have a plain number as its value."""
    try:
        return f"e:{float(value):.8e}"
    except OverflowError:
        return f"n:{value}"


def _letters(text: str) -> set[str]:
    return set(_COMMAND.sub("", text))


def _folded(text: str) -> set[str]:
    return {letter.lower() for letter in _letters(text)}
