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

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from real.answers.checker import Checker
from real.answers.exact import exact
from real.answers.forms import NUMBER, Form, form_of, keyed_leaves
from real.answers.screen import formula

_SHARE = 4
"""One question may take this part of a group's seconds, and none starts once the rest is spent."""
_MAX_CACHED = 100_000
_COMMAND = re.compile(r"\\[A-Za-z]+")


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
