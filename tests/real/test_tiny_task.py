"""The arithmetic of the tiny task: its rules, shapes and tokens, and what is kept apart."""

from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from real.tiny import ARITHMETIC, CHECKPOINT, arithmetic, build_tokenizer, tasks
from real.tiny.arithmetic import N_DIGITS, OPERATORS, PROMPT_TOKENS, RESPONSE_TOKENS, EvaluationRule
from real.tiny.tasks import encode, is_held_out

digits, signs = st.sampled_from("0123456789"), st.sampled_from(OPERATORS)
expressions = st.tuples(digits, *[signs, digits] * (N_DIGITS - 1)).map("".join)
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


@settings(deadline=None)
@given(expressions, rules)
def test_every_step_is_the_one_of_its_rule_and_keeps_the_value(expression, rule):
    *scratch, box = arithmetic.response_text(arithmetic.steps(expression, rule)).split(">")
    shown = [expression, *scratch, box.removeprefix("\\boxed{").removesuffix("}")]
    assert len({VALUES[rule](step) % 10 for step in shown}) == 1
    assert [len(step) for step in shown] == [9, 7, 5, 3, 1]
    for before, after in pairwise(shown):
        if rule is EvaluationRule.LEFT_TO_RIGHT:
            assert after[1:] == before[3:]
        elif rule is EvaluationRule.RIGHT_TO_LEFT:
            assert after[:-1] == before[:-3]
        else:
            place = max(before.find("*"), 1)
            assert after[: place - 1] + after[place:] == before[: place - 1] + before[place + 2 :]


@settings(deadline=None)
@given(expressions, rules, seeds)
def test_a_slip_writes_a_wrong_digit_and_goes_on_from_it(expression, rule, seed):
    trace = arithmetic.steps(expression, rule, 1.0, np.random.default_rng(seed))
    for before, after in pairwise([expression, *trace]):
        place = arithmetic.reduction_index(before, rule)
        faultless = arithmetic.reduce_once(before, place)
        wrong = [a != b for a, b in zip(after, faultless, strict=True)]
        assert [i for i, differs in enumerate(wrong) if differs] == [2 * place]
    assert len(encode(f"{expression}=")) == PROMPT_TOKENS
    assert len(encode(arithmetic.response_text(trace))) + 1 == RESPONSE_TOKENS


def test_what_is_an_expression():
    for text in ("3", "3+0-1*6+0", "3+4="):
        assert arithmetic.is_expression(text)
    for text in ("", "3+", "+3", "3/4", "33", "3 + 4", "²+1", "3+4=="):
        assert not arithmetic.is_expression(text)


def test_shares_are_a_distribution_that_covers_the_range_and_plants_both_misconceptions():
    patterns = ["".join(p) for p in np.stack(np.meshgrid(*[list("+-*")] * 4), -1).reshape(-1, 4)]
    written = ["".join(f"0{sign}" for sign in pattern) + "0" for pattern in patterns]
    found = np.array([list(arithmetic.shares(expression).values()) for expression in written])
    right, left_first, right_first = found.T
    assert found.shape == (81, 3) and found.min() >= 0
    assert found.sum(1) == pytest.approx(1) and right.min() >= 0.15
    assert np.all(np.histogram(right, bins=5, range=(0.15, 1))[0] >= 8)
    assert 20 <= (left_first > right_first).sum() <= 61


def test_problem_sets_are_fixed_distinct_and_true():
    records = ARITHMETIC.problems(200, seed=5)
    assert records == ARITHMETIC.problems(200, seed=5)
    assert records[:64] == ARITHMETIC.problems(64, seed=5)
    assert [p.prompt for p in records] != [p.prompt for p in ARITHMETIC.problems(200, seed=6)]
    assert len({p.prompt for p in records}) == len({p.id for p in records}) == 200
    for record in records:
        assert record.prompt.endswith("=")
        assert record.answer == str(school_value(record.prompt[:-1]) % 10)


def test_one_expression_in_eight_is_held_out_of_pretraining():
    rng = np.random.default_rng(0)
    trained_on = ARITHMETIC.sample_distinct(5000, rng, held_out=False)
    assert not any(is_held_out(expression) for expression in trained_on)
    assert all(is_held_out(p.prompt[:-1]) for p in ARITHMETIC.problems(500))
    share = np.mean([is_held_out(arithmetic.sample_expression(rng)) for _ in range(8000)])
    # Four standard errors of a share of 1/8 over 8000.
    assert abs(share - 1 / 8) < 0.015


shipped = AutoTokenizer.from_pretrained(CHECKPOINT, local_files_only=True)
# AutoTokenizer takes the class from the model's type; other readers use the generic one.
generic = PreTrainedTokenizerFast.from_pretrained(CHECKPOINT, local_files_only=True)
in_code = build_tokenizer()


@settings(deadline=None)
@given(expressions, rules)
def test_every_tokenizer_gives_the_same_ids(expression, rule):
    text = f"{expression}={arithmetic.response_text(arithmetic.steps(expression, rule))}"
    ids = encode(text)
    assert in_code.encode(text) == generic.encode(text) == shipped.encode(text) == ids
    assert len(ids) == PROMPT_TOKENS + RESPONSE_TOKENS - 1
    assert in_code.decode(ids) == generic.decode(ids) == shipped.decode(ids) == text
    ends = [*ids, tasks.EOS_ID, tasks.PAD_ID]
    assert shipped.decode(ends, skip_special_tokens=True) == text


def test_the_vocabulary_has_32_tokens_and_the_box_is_one():
    assert len(tasks.TOKENS) == len(set(tasks.TOKENS)) == len(shipped) == 32
    assert shipped.convert_tokens_to_ids(list(tasks.TOKENS)) == list(range(32))
    assert shipped.convert_ids_to_tokens(shipped.encode("\\boxed{7}")) == ["\\boxed{", "7", "}"]


def test_a_tokenizer_built_and_saved_again_is_the_shipped_one(tmp_path):
    build_tokenizer().save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert isinstance(again, PreTrainedTokenizerFast)
    assert (tmp_path / "tokenizer.json").read_text() == (CHECKPOINT / "tokenizer.json").read_text()
    assert (again.pad_token_id, again.eos_token_id) == (tasks.PAD_ID, tasks.EOS_ID)
    assert again.chat_template is None and again.padding_side == "left"


def test_characters_outside_the_task_are_refused_in_code_and_dropped_by_the_tokenizer():
    for text in ("3 + 4", "x", "\\boxed", "<eos>", "B"):
        with pytest.raises(KeyError):
            encode(text)
    assert shipped.encode("x 3 \\boxed") == encode("3")
