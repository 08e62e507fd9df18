import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_groups import random_rows
from small_models import causal, decoder_sizes
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from real.settings.groups import UpdateSettings
from real.update.logprobs import CHUNK_ELEMENTS, GPU_CHUNK_ELEMENTS, Scorer, group_scores
from real.update.packing import micro_batch, plan

VOCABULARY = 40


def make_group(prompt, lengths, seed=0):
    return random_rows(prompt, lengths, VOCABULARY, seed)


def passes_of(groups, budget, layout="padded", world=1):
    return plan(groups, [g.row_counts for g in groups], budget, layout, world=world)[0]


def sizes(groups, places):
    return [len(groups[g].prompt_L) + int(groups[g].lengths_K[k]) - 1 for g, k in places]


rows_of_groups = st.lists(
    st.tuples(st.integers(1, 30), st.lists(st.integers(1, 60), min_size=1, max_size=12)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=25, deadline=None)
@given(
    rows_of_groups, st.integers(1, 400), st.sampled_from(["padded", "packed"]), st.integers(1, 4)
)
def test_every_row_once_within_the_budget_on_ranks_in_step(rows, budget, layout, world):
    groups = [make_group(prompt, lengths) for prompt, lengths in rows]
    passes = passes_of(groups, budget, layout, world)
    assert passes == passes_of(groups, budget, layout, world)
    assert len(passes) % world == 0
    everything = [(g, k) for g, (_, lengths) in enumerate(rows) for k in range(len(lengths))]
    assert sorted(place for places in passes for place in places) == everything
    for places in passes:
        assert places == sorted(places)
        used = sizes(groups, places)
        filled = sum(used) if layout == "packed" else len(used) * max(used, default=0)
        assert filled <= budget or len(used) == 1


def test_little_padding_at_heterogeneous_lengths():
    """32 responses of 100 to 3,000 tokens: stacked as they are, 45 % of the tokens are padding."""
    lengths = torch.randint(100, 3001, (32,), generator=torch.Generator().manual_seed(0)).tolist()
    groups = [make_group(150, lengths)]
    every = sizes(groups, [(0, k) for k in range(32)])
    assert 1 - sum(every) / (32 * max(every)) > 0.4

    def waste(layout):
        passes = passes_of(groups, 16384, layout)
        assert len(passes) <= 12
        batches = [micro_batch(groups, places, layout) for places in passes]
        filled = sum(batch.rows.input_ids_BS.numel() for batch in batches)
        return 1 - sum(every) / filled

    assert waste("padded") < 0.08
    assert waste("packed") == 0


SIZES = decoder_sizes(VOCABULARY)
# Every layer looks back five tokens only.
WINDOW = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
MODELS = {"Llama": SIZES, "Qwen2": SIZES | WINDOW, "Qwen3": SIZES | {"head_dim": 8}, "GPT2": GPT2}


def decoder(kind, **changes):
    return causal(kind, **MODELS[kind], **changes)


def within(max_tokens):
    return UpdateSettings(temperature=0.6, max_tokens_per_microbatch=max_tokens)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", list(MODELS))
def test_packed_rows_have_the_log_probs_of_padded_rows(kind, attention):
    """Rows see nothing of their neighbours, whichever way they lie: each is as if alone."""
    groups = [make_group(4, [9, 3, 1, 12, 7], 1), make_group(11, [2, 20, 6], 2)]
    scorer = Scorer(decoder(kind, attn_implementation=attention))
    alone = [group_scores(scorer, [g], within(1))[0][0] for g in groups]
    assert len(passes_of(groups, budget=1)) == 8
    for layout in ("padded", "packed"):
        scorer.layout = layout
        for budget in (16384, 60):
            found = group_scores(scorer, groups, within(budget))
            for group, (mine,), expected in zip(groups, found, alone, strict=True):
                real = group.real_KT
                assert mine[~real].isnan().all()
                torch.testing.assert_close(mine[real], expected[real], rtol=1e-5, atol=1e-5)


def test_the_chunk_of_the_head_is_that_of_the_device_that_trains():
    model = decoder("Llama")
    assert Scorer(model).chunk_elements == CHUNK_ELEMENTS
    assert Scorer(model, device=torch.device("cuda", 3)).chunk_elements == GPU_CHUNK_ELEMENTS
    assert Scorer(model, 77, torch.device("cuda")).chunk_elements == 77


def test_layout_follows_the_attention_kernel(monkeypatch):
    """Only flash attention learns from positions where rows end; recurrent layers never do."""
    model, plain = decoder("Qwen3"), decoder("Llama")
    assert Scorer(model).layout == Scorer(plain).layout == "padded"

    def on_a_gpu_alone(*_, **__):
        raise RuntimeError("FlashAttention only supports CUDA tensors")

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "flash_attention_2", on_a_gpu_alone)
    for either in (model, plain):
        either.config._attn_implementation = "flash_attention_2"
        scorer = Scorer(either)  # as several ranks make it, before the weights reach a GPU
        assert scorer.head is not None and scorer.head.plain and scorer.layout == "packed"
        assert either.config._attn_implementation == "flash_attention_2"
    starcoder = causal("GPTBigCode", **GPT2)  # takes positions, and hands none on to the kernel
    starcoder.config._attn_implementation = "flash_attention_2"
    assert Scorer(starcoder).layout == "padded"
    monkeypatch.setattr("real.update.logprobs.find_head", lambda model: None)
    model.config.layer_types = ["full_attention", "linear_attention"]
    assert Scorer(model).layout == "padded"
