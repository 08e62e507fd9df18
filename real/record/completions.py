"""A few responses of each evaluation, written down for people to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real.answers import UNPARSEABLE, AnswerBook
from real.problems.prompts import PromptSet

PER_PROBLEM = 4
"""Responses of each chosen problem: the first ones, as they came."""


class Completions:
    """Collects responses of the same few problems in every evaluation."""

    def __init__(self, prompts: PromptSet, n_problems: int) -> None:
        """Choose problems evenly spread over the set, which may be sorted by difficulty."""
        self._prompts = prompts
        n = min(n_problems, len(prompts))
        self._chosen = {int(i) for i in np.linspace(0, len(prompts) - 1, n).round()} if n else set()
        self._rows: list[dict[str, Any]] = []

    def see(
        self,
        problem: int,
        texts: Sequence[str],
        answers_N: NDArray[np.int64],
        finished_N: Sequence[bool],
        book: AnswerBook,
    ) -> None:
        """Take in one problem's responses; those of problems not chosen are passed over."""
        if problem not in self._chosen:
            return
        row = self._prompts.problems[problem]
        for sample, text in enumerate(texts[:PER_PROBLEM]):
            answer = int(answers_N[sample])
            self._rows.append(
                {
                    "problem": row.id,
                    "prompt": row.prompt,
                    "sample": sample,
                    "response": text,
                    "answer": None if answer == UNPARSEABLE else book.text(problem, answer),
                    "truth": row.answer,
                    "right": answer == book.truth_id(problem) if book.has_truth(problem) else None,
                    "finish": "end" if finished_N[sample] else "length",
                }
            )

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row per response kept, in the order of the problems."""
        return self._rows
