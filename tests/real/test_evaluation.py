"""pass@1 and the majority's accuracy from sampled answers."""

from __future__ import annotations

import itertools
from math import comb
from typing import Any, get_args

import numpy as np
import pytest

from lab.trace.schema import PassAt, names
from real.answers import AnswerIds
from real.record.evaluation import Evaluation, evaluate, pass_at


def book_of(truths: list[str | None], texts: list[list[str]]) -> tuple[AnswerIds, np.ndarray]:
    answer_ids = AnswerIds(truths)
    ids = [
        answer_ids.ids(i, [f"\\boxed{{{t}}}" if t else "" for t in row])
        for i, row in enumerate(texts)
    ]
    return answer_ids, np.stack(ids)


def test_mean_over_problems_and_responses_with_shared_ties():
    answer_ids, answers = book_of(
        ["1", "2", "3"],
        [["1", "1", "5", ""], ["2", "2", "9", "9"], ["4", "4", "4", "4"]],
    )
    found = evaluate(answers, answer_ids, with_majority=True)
    assert found.pass_at_1 == pytest.approx((0.5 + 0.5 + 0.0) / 3)
    assert found.maj_accuracy == pytest.approx((1 + 0.5 + 0) / 3)


def test_problems_without_truth_do_not_count():
    answer_ids, answers = book_of(["1", None], [["1", "1"], ["7", "7"]])
    found = evaluate(answers, answer_ids, with_majority=True)
    assert found.pass_at_1 == 1.0 and found.maj_accuracy == 1.0


def test_nothing_known_is_nan_and_no_majority_is_nan():
    answer_ids, answers = book_of([None], [["1", "1"]])
    assert np.isnan(evaluate(answers, answer_ids, with_majority=True).pass_at_1)
    answer_ids, answers = book_of(["1"], [["1", "1"]])
    assert np.isnan(evaluate(answers, answer_ids, with_majority=False).maj_accuracy)


@pytest.mark.parametrize("n", [4, 7])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(n: int):
    """The estimator against its meaning: all ways to choose k of the n responses."""
    for k in range(1, n + 1):
        for right in range(n + 1):
            flags = [True] * right + [False] * (n - right)
            subsets = list(itertools.combinations(flags, k))
            expected = sum(any(subset) for subset in subsets) / len(subsets)
            assert pass_at(k, np.array([right]), n)[0] == pytest.approx(expected, abs=1e-15)


def test_pass_at_k_of_many_responses_does_not_overflow():
    by_whole_numbers = 1 - comb(192, 64) / comb(256, 64)
    found = pass_at(64, np.array([64, 0, 256, 1]), 256)
    np.testing.assert_allclose(found, [by_whole_numbers, 0, 1, 0.25], rtol=1e-8)
    assert np.isnan(pass_at(8, np.array([1, 2]), 7)).all()


def test_pass_at_k_of_an_evaluation():
    answer_ids, answers = book_of(
        ["1", "2", None], [["1", "5", "5", "5"], ["2", "2", "9", ""], ["3", "3", "3", "3"]]
    )
    found = evaluate(answers, answer_ids, with_majority=False, ks=(2, 4, 8))
    # Of the six pairs, 3 hold the one right answer, 5 one of the two.
    assert found.pass_at[2] == pytest.approx((3 / 6 + 5 / 6) / 2)
    assert found.pass_at[4] == 1.0 and np.isnan(found.pass_at[8])
    assert found.n_responses == 4
    assert found.pass_at_1 == pytest.approx((1 / 4 + 2 / 4) / 2)
    answer_ids, answers = book_of([None], [["1", "1"]])
    assert np.isnan(evaluate(answers, answer_ids, True, ks=(2,)).pass_at[2])


def test_columns_are_those_of_the_trace():
    found = Evaluation(0.5, np.nan, 4, dict.fromkeys(get_args(PassAt), 0.5))
    columns: dict[str, Any] = found.columns()
    assert set(columns) < set(names("evals"))
    assert columns["pass_at_1"] == 0.5 and columns["pass_at_64"] == 0.5


def test_nothing_parseable_is_never_right():
    answer_ids, answers = book_of(["1"], [["", ""]])
    found = evaluate(answers, answer_ids, with_majority=True)
    assert found.pass_at_1 == 0.0 and found.maj_accuracy == 0.0
