"""The generator of the tiny task: arithmetic, shape, and what is kept apart."""

from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from real.tiny import ARITHMETIC, arithmetic
from real.tiny.arithmetic import PROMPT_TOKENS, RESPONSE_TOKENS, EvaluationRule, Expression
from real.tiny.task import is_held_out
from real.tiny.vocabulary import encode

expressions = st.builds(
    Expression,
    st.tuples(*[st.integers(0, 9)] * arithmetic.N_DIGITS),
    st.text(
        arithmetic.OPERATORS, min_size=arithmetic.N_DIGITS - 1, max_size=arithmetic.N_DIGITS - 1
    ),
)
rules = st.sampled_from(list(EvaluationRule))
seeds = st.integers(0, 2**32 - 1)

WHOLE = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


def left_to_right(text: str) -> int:
    pairs = zip(text[1::2], text[2::2], strict=True)
    return reduce(lambda value, pair: WHOLE[pair[0]](value, int(pair[1])), pairs, int(text[0]))


def right_to_left(text: str) -> int:
    if len(text) == 1:
        return int(text)
    return WHOLE[text[1]](int(text[0]), right_to_left(text[2:]))


def school_value(text: str) -> int:
    """Multiplication first, in whole numbers: a sum of signed products."""
    terms = text.replace("-", "+-").split("+")
    products = [np.prod([int(d) for d in term.lstrip("-").split("*")]) for term in terms]
    signed = zip(terms, products, strict=True)
    return int(sum(-p if term.startswith("-") else p for term, p in signed))


VALUES = {
    EvaluationRule.RIGHT: school_value,
    EvaluationRule.LEFT_TO_RIGHT: left_to_right,
    EvaluationRule.RIGHT_TO_LEFT: right_to_left,
}


def scratch_steps(response: str) -> list[str]:
    """The expressions that a response shows, the boxed digit last."""
    *steps, box = response.split(">")
    assert box.startswith("\\boxed{")
    return [*steps, box.removeprefix("\\boxed{").removesuffix("}")]


def test_the_example_of_the_design():
    expression = Expression.parse("3+0-1*6+0=")
    assert arithmetic.solution(expression) == "3+0-6+0>3-6+0>7+0>\\boxed{7}"
    assert arithmetic.evaluate(expression, EvaluationRule.RIGHT) == 7
    assert arithmetic.evaluate(expression, EvaluationRule.LEFT_TO_RIGHT) == 2


@settings(deadline=None)
@given(expressions, rules)
def test_every_step_keeps_the_value_that_its_own_rule_gives(
    expression: Expression, rule: EvaluationRule
):
    value = VALUES[rule]
    shown = scratch_steps(arithmetic.solution(expression, rule))
    assert [value(step) % 10 for step in shown] == [value(str(expression)) % 10] * 4
    assert [len(step) for step in shown] == [7, 5, 3, 1]


@settings(deadline=None)
@given(expressions, rules)
def test_every_step_reduces_where_its_rule_says(expression: Expression, rule: EvaluationRule):
    shown = [str(expression), *scratch_steps(arithmetic.solution(expression, rule))]
    for before, after in pairwise(shown):
        if rule is EvaluationRule.LEFT_TO_RIGHT:
            assert after[1:] == before[3:]
        elif rule is EvaluationRule.RIGHT_TO_LEFT:
            assert after[:-1] == before[:-3]
        else:
            place = max(before.find("*"), 1)
            assert after[: place - 1] + after[place:] == before[: place - 1] + before[place + 2 :]


@settings(deadline=None)
@given(expressions, rules, st.floats(0, 1), seeds)
def test_all_lengths_are_fixed(
    expression: Expression, rule: EvaluationRule, slip_rate: float, seed: int
):
    trace = arithmetic.steps(expression, rule, slip_rate, np.random.default_rng(seed))
    assert len(encode(f"{expression}=")) == PROMPT_TOKENS
    assert len(encode(arithmetic.response_text(trace))) + 1 == RESPONSE_TOKENS


@settings(deadline=None)
@given(expressions, rules, seeds)
def test_a_slip_writes_a_wrong_digit_and_goes_on_from_it(
    expression: Expression, rule: EvaluationRule, seed: int
):
    trace = arithmetic.steps(expression, rule, 1.0, np.random.default_rng(seed))
    for before, after in pairwise([expression, *trace]):
        place = arithmetic.reduction_index(before.operators, rule)
        faultless = arithmetic.reduce_once(before, place)
        assert after.operators == faultless.operators
        wrong = [a != b for a, b in zip(after.digits, faultless.digits, strict=True)]
        assert [i for i, differs in enumerate(wrong) if differs] == [place]


@settings(deadline=None)
@given(expressions)
def test_rules_agree_where_they_must(expression: Expression):
    left = arithmetic.solution(expression, EvaluationRule.LEFT_TO_RIGHT)
    n_products = len(expression.operators) - len(expression.operators.lstrip("*"))
    if "*" not in expression.operators[n_products:]:
        assert arithmetic.solution(expression) == left
    if len(set(expression.operators)) == 1 and "-" not in expression.operators:
        answers = {arithmetic.evaluate(expression, rule) for rule in EvaluationRule}
        assert len(answers) == 1


@pytest.mark.parametrize(
    ("text", "answers"),
    [("1+2*3-4*5", [7, 5, 7]), ("2*3-4+5*6", [2, 2, 8]), ("2-1*3-4+1", [6, 0, 4])],
)
def test_rules_part_where_they_should(text: str, answers: list[int]):
    assert [arithmetic.evaluate(Expression.parse(text), rule) for rule in EvaluationRule] == answers


@settings(deadline=None)
@given(expressions)
def test_an_expression_is_read_back_from_its_text(expression: Expression):
    assert Expression.parse(str(expression)) == expression
    assert Expression.parse(f"{expression}=") == expression


@pytest.mark.parametrize("text", ["", "3+", "+3", "3/4", "33", "3 + 4", "²+1", "3+4=="])
def test_what_is_no_expression_is_refused(text: str):
    with pytest.raises(ValueError, match="digits with one of"):
        Expression.parse(text)


def test_an_unknown_operator_is_refused():
    with pytest.raises(ValueError, match="operator '/'"):
        arithmetic.apply(1, "/", 2)


def test_slips_need_a_generator():
    with pytest.raises(ValueError, match="needs rng"):
        arithmetic.steps(Expression.parse("1+2*3-4*5"), EvaluationRule.RIGHT, slip_rate=0.1)


@settings(deadline=None)
@given(st.text(arithmetic.OPERATORS, min_size=4, max_size=4))
def test_shares_are_a_distribution_fixed_by_the_pattern(operators: str):
    shares = arithmetic.shares(operators)
    assert set(shares) == set(EvaluationRule)
    assert sum(shares.values()) == pytest.approx(1)
    assert 0.15 <= shares[EvaluationRule.RIGHT] <= 1
    assert min(shares.values()) >= 0
    assert arithmetic.shares(operators) == shares


def test_shares_cover_the_range_and_plant_both_misconceptions():
    patterns = ["".join(p) for p in np.stack(np.meshgrid(*[list("+-*")] * 4), -1).reshape(-1, 4)]
    right = np.array([arithmetic.shares(p)[EvaluationRule.RIGHT] for p in patterns])
    assert len(patterns) == 81
    assert np.all(np.histogram(right, bins=5, range=(0.15, 1))[0] >= 8)
    left_first = [
        arithmetic.shares(p)[EvaluationRule.LEFT_TO_RIGHT]
        > arithmetic.shares(p)[EvaluationRule.RIGHT_TO_LEFT]
        for p in patterns
    ]
    assert 20 <= sum(left_first) <= 61


def test_problem_sets_are_fixed_distinct_and_true():
    records = ARITHMETIC.problems(200, seed=5)
    assert records == ARITHMETIC.problems(200, seed=5)
    assert records[:64] == ARITHMETIC.problems(64, seed=5)
    assert [p.prompt for p in records] != [p.prompt for p in ARITHMETIC.problems(200, seed=6)]
    assert len({p.prompt for p in records}) == len({p.id for p in records}) == 200
    for record in records:
        assert record.prompt.endswith("=")
        assert record.answer == str(school_value(record.prompt[:-1]) % 10)


def test_problems_are_held_out_of_pretraining():
    rng = np.random.default_rng(0)
    trained_on = ARITHMETIC.sample_distinct(5000, rng, held_out=False)
    assert not any(is_held_out(expression) for expression in trained_on)
    assert all(is_held_out(Expression.parse(p.prompt)) for p in ARITHMETIC.problems(500))


def test_one_expression_in_eight_is_held_out():
    rng = np.random.default_rng(1)
    share = np.mean([is_held_out(arithmetic.sample_expression(rng)) for _ in range(8000)])
    # Four standard errors of a share of 1/8 over 8000.
    assert abs(share - 1 / 8) < 0.015
