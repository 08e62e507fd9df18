"""Prefixes computed once for several responses: equal to rounding, chosen where they pay."""

from dataclasses import replace
from functools import partial

import pytest
import small_models
import torch
from random_groups import CONFIG, gradient, random_rows

from real.model.prepare import add_lora
from real.settings.groups import MemorySettings
from real.update import packing
from real.update.grpo import backward
from real.update.logprobs import EntropyScorer, Scorer
from real.update.packing import plan

VOCABULARY = 30
DECODER = small_models.decoder_sizes(VOCABULARY, head_dim=8)


causal = partial(small_models.causal, seed=3)
llama, qwen3 = partial(causal, "Llama", **DECODER), partial(causal, "Qwen3", **DECODER)
sliding = partial(causal, "Mistral", **DECODER, sliding_window=5)
half_sliding = partial(causal, "Gemma2", **DECODER, sliding_window=5)
SMALL = {"vocab_size": VOCABULARY, "initializer_range": 0.3, "n_head": 2}
linear_biases = partial(causal, "Bloom", **SMALL, hidden_size=16, n_layer=2)
"""Its positions are counted from the mask."""
NEO = {"num_heads": 2, "num_layers": 2, "hidden_size": 16, "window_size": 12}
half_local = partial(causal, "GPTNeo", **SMALL, **NEO, attention_types=[[["global", "local"], 1]])


def gpt2(**changes):
    """In double precision throughout, which models with rotary positions are not."""
    return causal("GPT2", **SMALL, n_embd=16, n_layer=2, n_positions=64, **changes).double()


def make_group(seed, n_prompt=25, rows=7, **changes):
    g = torch.Generator().manual_seed(seed)
    lengths = [6, *torch.randint(1, 7, (rows - 1,), generator=g).tolist()]
    old = -3 * torch.rand((rows, 6), generator=g)
    old[rows // 2, 0] = torch.nan  # a token that is out of the loss
    majority, minority = torch.randn((2, rows), generator=g)
    changes = {"old_KT": old, "majority_K": majority, "minority_K": minority, **changes}
    return random_rows(n_prompt, lengths, VOCABULARY, seed, **changes)


def groups():
    """The second one's responses begin alike."""
    correction = torch.rand((7, 6), generator=torch.Generator().manual_seed(5))
    second = make_group(2, n_prompt=31, correction_KT=correction)
    return [make_group(1, weight=0.6), replace(second, tokens_KT=second.tokens_KT % 2)]


@pytest.fixture(autouse=True)
def any_saving_is_enough(monkeypatch):
    monkeypatch.setattr(packing, "PASS_TOKENS", 0)


def bundle_of(scorer, config):
    counts, most = [group.row_counts for group in groups()], config.max_tokens_per_microbatch
    return plan(groups(), counts, most, scorer.layout, scorer.bundle_width)[1]


def assert_close(scorer, config):
    assert scorer.bundle_width == 16
    assert bundle_of(scorer, config) > 1
    bundled = gradient(scorer, groups(), config)
    scorer.bundle_width = None
    alone = gradient(scorer, groups(), config)
    exact = next(scorer.parameters()).dtype == torch.float64
    near = {"rtol": 1e-9, "atol": 1e-12} if exact else {"rtol": 1e-4, "atol": 1e-5}
    assert bundled[0] == pytest.approx(alone[0], rel=near["rtol"], abs=near["atol"])
    assert alone[1].abs().max() > 1e-3
    torch.testing.assert_close(bundled[1], alone[1], **near)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("make", [llama, qwen3, gpt2])
@pytest.mark.parametrize("max_tokens_per_microbatch", [16384, 50])
def test_loss_and_gradient_are_those_of_rows_alone(make, attention, max_tokens_per_microbatch):
    config = replace(CONFIG, max_tokens_per_microbatch=max_tokens_per_microbatch)
    assert_close(Scorer(make(attn_implementation=attention)), config)


@pytest.mark.parametrize("scorer", [Scorer, EntropyScorer])
@pytest.mark.parametrize("kind", ["dapo", "grpo", "dr_grpo"])
def test_every_mean(kind, scorer):
    assert_close(scorer(gpt2()), replace(CONFIG, loss=kind, max_response_tokens=6))


def test_lora_and_gradient_checkpointing():
    model = llama()
    add_lora(model, MemorySettings(lora_rank=2, lora_alpha=4.0))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert_close(Scorer(model), CONFIG)


def test_a_broken_response_is_left_out_without_those_behind_its_prompt():
    model, batch = gpt2(), groups()
    word = VOCABULARY - 1
    tokens = torch.where(batch[0].tokens_KT == word, 0, batch[0].tokens_KT)
    tokens[2, 0] = word
    lengths = torch.full_like(batch[0].lengths_K, 3)
    prompt = batch[0].prompt_L.clamp(max=word - 1)
    group = replace(batch[0], tokens_KT=tokens, lengths_K=lengths, prompt_L=prompt)
    model.get_input_embeddings().register_forward_hook(
        lambda _, given, found: torch.where((given[0] == word)[..., None], torch.nan, found)
    )
    done = backward(Scorer(model), [group], CONFIG)
    assert done.broken == ((0, 2),)


@pytest.mark.parametrize("make", [sliding, half_sliding, half_local, linear_biases])
def test_other_attention_goes_on_row_by_row(make):
    scorer = Scorer(make())
    assert scorer.bundle_width is None
    assert bundle_of(scorer, CONFIG) == 1


@pytest.mark.parametrize("width", [64, 576, 3584])
@pytest.mark.parametrize("rows", [16, 32, 256])
def test_bundles_only_where_prompts_are_long(rows, width):
    def bundle(n_prompt, n_response):
        group = random_rows(n_prompt, [n_response] * rows, VOCABULARY)
        return plan([group], [group.row_counts], 16384, "padded", width)[1]

    assert bundle(10, 22) == 1
    assert bundle(137, 17) > 1
    assert bundle(137, 700) == 1
    assert bundle(2000, 20) > 1


def test_what_responses_share_goes_through_the_model_once():
    group = random_rows(40, [22] * 16, VOCABULARY)
    group.tokens_KT[:, :18], group.tokens_KT[:, 18] = group.tokens_KT[0, :18], torch.arange(16)
    _, bundle, n_inputs = plan([group], [group.row_counts], 16384, "padded", 576)
    assert (bundle, n_inputs) == (16, 40 + 18 + 16 * 3)  # nothing is asked for behind the last


def test_a_bundle_keeps_to_the_budget_and_leaves_no_rank_idle():
    group = random_rows(100, [10] * 16, VOCABULARY)
    counts = [group.row_counts]
    for budget in (250, 130, 60):
        found = plan([group], counts, budget, "padded", 4096)
        assert found[1] == 1 or 100 + 9 * found[1] <= budget
    assert plan([group], counts, 250, "padded", 4096)[1] == 16
    assert plan([group], counts, 16384, "padded", 4096, world=4)[1] == 4
    assert plan([group], counts, 16384, "padded", 4096, world=16)[1] == 1
