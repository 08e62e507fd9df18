import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from real.tiny import ARITHMETIC, CHECKPOINT, arithmetic, build_tokenizer, tasks
from real.tiny.arithmetic import EvaluationRule, steps
from real.tiny.tasks import encode, is_held_out, response_text


def school_value(text):
    """Multiplication first, in whole numbers: a sum of signed products."""
    terms = text.replace("-", "+-").split("+")
    products = [np.prod([int(d) for d in term.lstrip("-").split("*")]) for term in terms]
    signed = zip(terms, products, strict=True)
    return int(sum(-p if term.startswith("-") else p for term, p in signed))


def test_what_is_an_expression():
    for text in ("3", "3+0-1*6+0", "3+4="):
        assert arithmetic.is_expression(text)
    for text in ("", "3+", "+3", "3/4", "33", "3 + 4", "²+1", "3+4=="):
        assert not arithmetic.is_expression(text)


def test_problem_sets_are_fixed_distinct_true_and_held_out_of_pretraining():
    records = ARITHMETIC.problems(200, seed=5)
    assert records == ARITHMETIC.problems(200, seed=5)
    assert records[:64] == ARITHMETIC.problems(64, seed=5)
    assert [p.prompt for p in records] != [p.prompt for p in ARITHMETIC.problems(200, seed=6)]
    assert len({p.prompt for p in records}) == len({p.id for p in records}) == 200
    for record in records:
        assert record.prompt.endswith("=") and is_held_out(record.prompt[:-1])
        assert record.answer == str(school_value(record.prompt[:-1]) % 10)
    trained_on = ARITHMETIC.sample_distinct(5000, np.random.default_rng(0), held_out=False)
    assert not any(is_held_out(expression) for expression in trained_on)


def test_every_tokenizer_gives_the_ids_of_the_code():
    # AutoTokenizer takes the class from the model's type; other readers use the generic one.
    shipped = AutoTokenizer.from_pretrained(CHECKPOINT, local_files_only=True)
    generic = PreTrainedTokenizerFast.from_pretrained(CHECKPOINT, local_files_only=True)
    for problem in ARITHMETIC.problems(20):
        text = problem.prompt + response_text(steps(problem.prompt[:-1], EvaluationRule.RIGHT))
        ids = encode(text)
        for tokenizer in (shipped, generic, build_tokenizer()):
            assert tokenizer.encode(text) == ids and tokenizer.decode(ids) == text
    assert len(tasks.TOKENS) == len(set(tasks.TOKENS)) == len(shipped) == 32
    for text in ("3 + 4", "x", "\\boxed", "<eos>", "B"):
        with pytest.raises(KeyError):
            encode(text)
    assert shipped.encode("x 3 \\boxed") == encode("3")
