"""pass@1 and the majority's accuracy from sampled answers."""

from __future__ import annotations

import numpy as np
import pytest

from real.answers import AnswerBook
from real.evaluation import evaluate


def book_of(truths: list[str | None], texts: list[list[str]]) -> tuple[AnswerBook, np.ndarray]:
    book = AnswerBook(truths)
    ids = [
        book.ids(i, [f"\\boxed{{{t}}}" if t else "" for t in row]) for i, row in enumerate(texts)
    ]
    return book, np.stack(ids)


def test_mean_over_problems_and_responses_with_shared_ties():
    book, answers = book_of(
        ["1", "2", "3"],
        [["1", "1", "5", ""], ["2", "2", "9", "9"], ["4", "4", "4", "4"]],
    )
    found = evaluate(answers, book, with_majority=True)
    assert found.pass_at_1 == pytest.approx((0.5 + 0.5 + 0.0) / 3)
    assert found.maj_accuracy == pytest.approx((1 + 0.5 + 0) / 3)


def test_problems_without_truth_do_not_count():
    book, answers = book_of(["1", None], [["1", "1"], ["7", "7"]])
    found = evaluate(answers, book, with_majority=True)
    assert found.pass_at_1 == 1.0 and found.maj_accuracy == 1.0


def test_nothing_known_is_nan_and_no_majority_is_nan():
    book, answers = book_of([None], [["1", "1"]])
    assert np.isnan(evaluate(answers, book, with_majority=True).pass_at_1)
    book, answers = book_of(["1"], [["1", "1"]])
    assert np.isnan(evaluate(answers, book, with_majority=False).maj_accuracy)


def test_nothing_parseable_is_never_right():
    book, answers = book_of(["1"], [["", ""]])
    found = evaluate(answers, book, with_majority=True)
    assert found.pass_at_1 == 0.0 and found.maj_accuracy == 0.0
