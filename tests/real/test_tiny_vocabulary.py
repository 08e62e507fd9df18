"""The 32 tokens: the tokenizer that is shipped in a folder and the one in code are one."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from real.tiny import CHECKPOINT, arithmetic, build_tokenizer, vocabulary
from real.tiny.arithmetic import EvaluationRule, Expression

shipped = AutoTokenizer.from_pretrained(CHECKPOINT, local_files_only=True)
# AutoTokenizer takes the class from the model's type; other readers use the generic one.
generic = PreTrainedTokenizerFast.from_pretrained(CHECKPOINT, local_files_only=True)
in_code = build_tokenizer()

expressions = st.builds(
    Expression,
    st.tuples(*[st.integers(0, 9)] * arithmetic.N_DIGITS),
    st.text(arithmetic.OPERATORS, min_size=4, max_size=4),
)


@settings(deadline=None)
@given(expressions, st.sampled_from(list(EvaluationRule)))
def test_text_survives_encoding_and_decoding(expression: Expression, rule: EvaluationRule):
    text = f"{expression}={arithmetic.solution(expression, rule)}"
    ids = shipped.encode(text)
    assert ids == vocabulary.encode(text)
    assert len(ids) == arithmetic.PROMPT_TOKENS + arithmetic.RESPONSE_TOKENS - 1
    assert shipped.decode([*ids, vocabulary.EOS_ID], skip_special_tokens=True) == text
    assert vocabulary.decode([*ids, vocabulary.EOS_ID, vocabulary.PAD_ID]) == text


@settings(deadline=None)
@given(st.lists(st.integers(0, 19), max_size=30))
def test_any_ids_decode_without_extra_spaces(ids: list[int]):
    text = shipped.decode(ids, skip_special_tokens=True)
    assert text == vocabulary.decode(ids)
    assert " " not in text


def test_the_box_is_one_token():
    assert shipped.convert_ids_to_tokens(shipped.encode("\\boxed{7}")) == ["\\boxed{", "7", "}"]


def test_the_vocabulary_has_32_distinct_tokens():
    assert len(vocabulary.TOKENS) == len(set(vocabulary.TOKENS)) == len(shipped) == 32
    assert shipped.convert_tokens_to_ids(list(vocabulary.TOKENS)) == list(range(32))


def test_characters_of_other_tasks_are_dropped():
    assert shipped.encode("x 3 \\boxed") == vocabulary.encode("3")


@settings(deadline=None)
@given(expressions, st.sampled_from(list(EvaluationRule)))
def test_every_class_that_reads_the_folder_gives_the_same_ids(
    expression: Expression, rule: EvaluationRule
):
    text = f"{expression}={arithmetic.solution(expression, rule)}"
    assert in_code.encode(text) == generic.encode(text) == shipped.encode(text)
    ids = shipped.encode(text)
    assert in_code.decode(ids) == generic.decode(ids) == shipped.decode(ids) == text


def test_a_tokenizer_built_and_saved_again_is_the_shipped_one(tmp_path: Path):
    build_tokenizer().save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert isinstance(again, PreTrainedTokenizerFast)
    assert (tmp_path / "tokenizer.json").read_text() == (CHECKPOINT / "tokenizer.json").read_text()
    assert (again.pad_token_id, again.eos_token_id) == (vocabulary.PAD_ID, vocabulary.EOS_ID)
    assert again.chat_template is None
    assert again.padding_side == "left"


@pytest.mark.parametrize("text", ["3 + 4", "x", "\\boxed", "<eos>", "B"])
def test_text_outside_the_task_is_refused(text: str):
    with pytest.raises(ValueError, match="no token of the tiny task"):
        vocabulary.encode(text)
