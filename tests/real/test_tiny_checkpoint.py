"""The shipped checkpoint: it loads from safetensors alone and starts where the design says."""

import json

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from real.tiny import ARITHMETIC, CHECKPOINT
from real.tiny.measure import Accuracy, boxed_number, measure, sample_answers

RECORD = json.loads((CHECKPOINT / "recipe.json").read_text())


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(
        CHECKPOINT, local_files_only=True, use_safetensors=True
    ).eval()


@pytest.fixture(scope="module")
def accuracy(model) -> Accuracy:
    return measure(model, seed=1)


def test_the_folder_holds_safetensors_and_no_pickle():
    names = {path.name for path in CHECKPOINT.iterdir()}
    assert names == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "recipe.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert (CHECKPOINT / "model.safetensors").stat().st_size < 500_000


def test_the_model_is_the_one_of_the_design(model):
    assert model.config.model_type == "qwen2"
    assert sum(p.numel() for p in model.parameters()) == 109_248
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_responses_are_well_formed(accuracy: Accuracy):
    assert accuracy.parseable > 0.95


def test_the_start_lies_in_the_stated_band(accuracy: Accuracy):
    assert 0.55 <= accuracy.pass_at_1 <= 0.65
    assert accuracy.pass_at_1 == pytest.approx(RECORD["measured"]["pass_at_1"], abs=0.02)
    assert 0.7 <= accuracy.maj_accuracy <= 0.85
    assert 0.25 <= accuracy.strong_rivals <= 0.45


def test_the_start_is_spread_over_the_whole_range(model):
    records = ARITHMETIC.problems()
    answers_NV = sample_answers(model, [p.prompt for p in records], 64, seed=1)
    truth_N = np.array([int(p.answer) for p in records])
    share_N = (answers_NV == truth_N[:, None]).mean(1)
    fifths = np.histogram(share_N, bins=5, range=(0, 1))[0]
    assert fifths.min() >= 3, f"problems per fifth of pass@1: {fifths}"


def test_samples_follow_their_seed_and_leave_the_global_one_alone(model):
    prompts = [p.prompt for p in ARITHMETIC.problems(4)]
    first = sample_answers(model, prompts, 16, seed=3)
    assert first.shape == (4, 16)
    np.testing.assert_array_equal(first, sample_answers(model, prompts, 16, seed=3))
    assert (first != sample_answers(model, prompts, 16, seed=4)).any()


@pytest.mark.parametrize(
    ("response", "digit"),
    [
        ("3+4>\\boxed{7}", 7),
        ("\\boxed{1}>\\boxed{0}", 0),
        ("3+4>7", -1),
        ("\\boxed{", -1),
        ("\\boxed{7", -1),
        ("\\boxed{12}", 12),
        ("\\boxed{012}", 12),
        ("\\boxed{+}", -1),
        ("\\boxed{7}>", -1),
        ("", -1),
    ],
)
def test_the_boxed_number_is_read_only_from_a_whole_box(response: str, digit: int):
    assert boxed_number(response) == digit
