import copy
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from drawn import check_ends, logprob_gap
from small_models import causal, decoder_sizes, seeded

from lab.base.errors import UserError
from real.engines.rollouts import (
    EngineError,
    SampledResponse,
    Sampling,
    request_params,
    request_seeds,
    to_rollouts,
)
from real.engines.transformers_engine import TransformersEngine, draw
from real.problems.problem import Problem, PromptSet
from real.settings.seeds import Stream, generator, torch_generator
from real.vote.sample import Sampler

VOCABULARY = 13
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11], [3, 2, 1]]
SHARED = {"bos_token_id": None, "eos_token_id": None, "vocab_size": VOCABULARY}
WIDER = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
OWN = {
    "Qwen2": {"tie_word_embeddings": True},
    "Llama": {},
    "Mistral": {"sliding_window": 4},  # keys older than the window leave the cache
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.3},
}


def make(kind):
    shape = decoder_sizes(VOCABULARY, num_key_value_heads=2, pad_token_id=0, **WIDER)
    return causal(kind, **(shape if kind != "GPT2" else {}) | SHARED | OWN[kind])


@pytest.fixture(scope="module")
def qwen():
    return make("Qwen2")


@pytest.fixture
def passes(qwen, monkeypatch):
    """Rows and columns of the model's forward passes, and whether they have a mask."""
    seen, forward = [], qwen.forward

    def recording(**arguments):
        seen.append((*arguments["input_ids"].shape, "attention_mask" in arguments))
        return forward(**arguments)

    monkeypatch.setattr(qwen, "forward", recording)
    return seen


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("prompts", [PROMPTS, [[1, 2, 3, 4], [5, 6, 7, 8]]])
@pytest.mark.parametrize("shares_rows", [False, True])
def test_logprobs_equal_a_full_forward_pass(kind, prompts, shares_rows):
    model = make(kind)
    engine = TransformersEngine(model, eos_token_ids=[12, 7])
    engine.shares_rows = shares_rows
    rollouts = engine.sample(prompts, 6, Sampling(9, 0.7), seeded())
    assert (rollouts.tokens_PNT.dtype, rollouts.logprobs_PNT.dtype) == (torch.int64, torch.float32)
    assert logprob_gap(model, prompts, rollouts, 0.7) < 1e-5


def test_responses_end_at_their_end_token(qwen):
    engine = TransformersEngine(qwen, eos_token_ids=[5, 6], pad_token_id=0)
    rollouts = engine.sample(PROMPTS, 32, Sampling(8), seeded())
    check_ends(rollouts, (5, 6), 8)
    assert (rollouts.logprobs_PNT[rollouts.mask_PNT()] < 0).all()


def test_same_seed_same_tokens(qwen):
    engine, generator = TransformersEngine(qwen), seeded(3)
    draws = (generator, seeded(3), seeded(4), generator)
    first, same, other, later = (engine.sample(PROMPTS, 16, Sampling(8), each) for each in draws)
    assert torch.equal(same.tokens_PNT, first.tokens_PNT)
    assert not torch.equal(other.tokens_PNT, first.tokens_PNT)
    assert not torch.equal(later.tokens_PNT, first.tokens_PNT)


@pytest.mark.parametrize("max_rows", [5, 1000])
def test_batching_does_not_change_the_samples(qwen, max_rows):
    alone, parts = (TransformersEngine(qwen, [5, 6], max_rows=rows) for rows in (1, max_rows))
    found, expected = (e.sample(PROMPTS, 8, Sampling(8), seeded()) for e in (parts, alone))
    torch.testing.assert_close(found.tensors(), expected.tensors(), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("end_ids", "top_p"), [([], 1.0), ([5], 0.7), ([5, 6, 7, 8], 1.0)])
def test_responses_alike_so_far_are_one_row(qwen, passes, end_ids, top_p):
    """Up to a quarter of the rows may be left over from responses that ended."""
    how = Sampling(12, 0.3, top_p, stats=True)
    own, shared = (TransformersEngine(qwen, end_ids) for _ in range(2))
    shared.shares_rows = True
    expected = own.sample(PROMPTS, 32, how, seeded())
    passes.clear()
    found = shared.sample(PROMPTS, 32, how, seeded())
    torch.testing.assert_close(found.tensors(), expected.tensors(), atol=1e-5, rtol=1e-5)
    tokens_PNT, lengths_PN = found.tokens_PNT.tolist(), found.lengths_PN.tolist()
    for (size, *_), t in zip(passes, range(len(tokens_PNT[0][0])), strict=True):
        alike = {
            (p, tuple(tokens[:t]))
            for p, rows in enumerate(tokens_PNT)
            for tokens, length in zip(rows, lengths_PN[p], strict=True)
            if length > t
        }
        assert len(alike) <= size < len(alike) / 0.75


def test_a_large_model_on_a_cpu_computes_a_row_for_responses_that_are_alike():
    large = make("GPT2")
    assert not TransformersEngine(large).shares_rows
    large.resize_token_embeddings(2**18)
    assert TransformersEngine(large).shares_rows


def test_prompts_are_read_once_with_a_mask_only_for_unequal_lengths(qwen, passes):
    engine = TransformersEngine(qwen, max_rows=20)
    engine.sample([[1, 2, 3], [4] * 7, [11], [3, 2, 1], [5] * 7], 6, Sampling(2), seeded())
    # Prompts of 1, 3, 3, 7 and 7 tokens, by their lengths.
    first, second = [(3, 3, True), (18, 1, True)], [(2, 7, False), (12, 1, False)]
    assert passes == first + second


@pytest.mark.parametrize(
    ("prompts", "n", "settings", "expected"),
    [
        ([[1]], 4, {"top_p": 1.1}, "top_p = 1.1: must lie in"),
        ([], 4, {}, "none given"),
        ([[1], []], 4, {}, "prompt 2: no tokens"),
        ([[1]], 0, {}, "samples per prompt: 0"),
        ([[1], [1] * 61], 4, {}, "prompt 2: 61 tokens and 4 new ones exceed the model's 64 pos"),
    ],
)
def test_wrong_requests_are_refused(qwen, prompts, n, settings, expected):
    with pytest.raises(UserError, match=expected):
        sampling = Sampling(**({"max_tokens": 4} | settings))
        TransformersEngine(qwen).sample(prompts, n, sampling, seeded())


def test_samples_name_the_weights_that_drew_them(qwen):
    engine = TransformersEngine(qwen)
    old = engine.sample(PROMPTS, 2, Sampling(2), seeded())
    engine.update_weights(qwen, version=7)
    new = engine.sample(PROMPTS, 2, Sampling(2), seeded())
    assert (old.version, new.version) == (0, 7)
    assert new.of_version(7) is new
    with pytest.raises(EngineError, match=r"drawn by version 0 of the weights in place of 7"):
        old.of_version(7)


def test_a_model_of_its_own_gets_the_trained_weights(qwen):
    """As on several ranks; those that are not trained stay."""
    trained, own = make("Qwen2"), copy.deepcopy(qwen)
    frozen = own.model.norm.weight.detach().clone().fill_(3.0)
    with torch.no_grad():
        own.model.norm.weight.copy_(frozen)
        trained.lm_head.weight.add_(0.5)
    trained.model.norm.requires_grad_(False)
    TransformersEngine(own).update_weights(trained, version=8)
    assert torch.equal(own.model.norm.weight, frozen)
    assert torch.equal(own.lm_head.weight, trained.lm_head.weight)


def test_a_response_ends_with_the_token_that_completes_a_text():
    model, characters = make("Qwen2"), "abcdefghijkl "
    stops = ["ab", "c", " d"]

    def decode(tokens_BT, skip_special_tokens):
        assert not skip_special_tokens  # one may be a stop text
        texts = ["".join(characters[t] for t in row) for row in tokens_BT.tolist()]
        return [text.removeprefix(" ") for text in texts]  # as SentencePiece does it

    engine = TransformersEngine(model, (), 0, tokenizer=SimpleNamespace(batch_decode=decode))
    free = engine.sample(PROMPTS, 64, Sampling(20, 1.5), seeded())
    found = engine.sample(PROMPTS, 64, Sampling(20, 1.5, stop=stops), seeded())
    assert found.finished_PN.any() and not found.finished_PN.all()
    for place in range(len(PROMPTS)):
        for n in range(64):
            whole = "".join(characters[t] for t in free.tokens_PNT[place, n].tolist())
            places = [(whole.find(t, t[0] == " "), len(t)) for t in stops]
            ends = [start + n_letters for start, n_letters in places if start >= 0]
            assert int(found.lengths_PN[place, n]) == min([20, *ends])
            assert bool(found.finished_PN[place, n]) == bool(ends)
    mask_PNT = found.mask_PNT()
    same_PNT = free.tokens_PNT[..., : mask_PNT.shape[-1]]
    assert torch.equal(found.tokens_PNT[mask_PNT], same_PNT[mask_PNT])


def test_draw_inverts_the_cumulative_distribution():
    probs = torch.tensor([0.25, 0.0, 0.5, 0.25, 0.0])
    uniforms = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-24])
    tokens, logprobs = draw(probs.log().expand(6, -1), uniforms, 1.0)
    assert tokens.tolist() == [0, 0, 2, 2, 3, 3]
    assert torch.allclose(logprobs.exp(), probs[tokens])


def test_tokens_of_no_probability_are_never_drawn():
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(200, 1000, generator=generator) * 4
    banned = torch.rand(logits.shape, generator=generator) < 0.5
    logits[banned] = -torch.inf
    for uniform in (0.0, 2**-24, 0.5, 1 - 2**-24):
        tokens, logprobs = draw(logits, torch.full((200,), uniform), 0.8)
        assert not banned[range(200), tokens].any()
        assert logprobs.isfinite().all()


def test_top_p_keeps_the_smallest_likely_set():
    probs = torch.tensor([0.1, 0.4, 0.2, 0.3])
    uniforms = torch.linspace(0, 0.999, 1000)
    tokens, logprobs = draw(probs.log().expand(1000, -1), uniforms, 1.0, top_p=0.6)
    counts = torch.bincount(tokens, minlength=4) / 1000
    assert torch.allclose(counts, torch.tensor([0.0, 4 / 7, 0.0, 3 / 7]), atol=2e-3)
    assert torch.allclose(logprobs.exp(), probs[tokens])
    likeliest, _ = draw(probs.log().expand(1000, -1), uniforms, 1.0, top_p=1e-6)
    assert (likeliest == 1).all()


def test_nan_logits_are_seen_in_the_logprobs():
    tokens, logprobs = draw(torch.full((2, 4), torch.nan), torch.tensor([0.0, 0.9]), 1.0)
    assert ((tokens >= 0) & (tokens < 4)).all() and logprobs.isnan().all()


N = 3


class Echo:
    """Response i to prompt [p] is p, p + i times."""

    def __init__(self):
        self.calls = []

    def sample(self, prompts, n, sampling, generator):
        self.calls.append([prompt[0] for prompt in prompts])
        rows = [
            [SampledResponse([p] * (p + i), [-1.0] * (p + i), "stop", {"4"}) for i in range(n)]
            for (p,) in prompts
        ]
        return to_rollouts(rows, n, 0, 4)


@pytest.mark.parametrize(
    ("queues", "calls"), [(True, [[1, 2, 3, 4, 5, 6, 7]]), (False, [[1, 2], [3, 4], [5, 6], [7]])]
)
def test_an_engine_with_a_queue_gets_all_prompts_at_once(queues, calls):
    engine, policy = Echo(), SimpleNamespace(device="cpu")
    sampler = Sampler(engine, policy, 0, 2 * N, queues)
    problems = [Problem(f"{number}", "", None) for number in range(1, 8)]
    prompts = PromptSet("seven", problems, tokens=[[number] for number in range(1, 8)])
    parts = list(sampler.sample_all(prompts, N, Sampling(20), 4, torch.Generator()))
    assert engine.calls == calls
    assert [list(part.problems) for part in parts] == [[0, 1], [2, 3], [4, 5], [6]]
    for part in parts:
        for place, problem in enumerate(part.problems):
            p = problem + 1
            assert part.prompts[place] == [p]
            assert part.rollouts.lengths_PN[place].tolist() == [p, p + 1, p + 2]
            assert (part.rollouts.tokens_PNT[place] == p).sum() == 3 * p + 3
        assert part.rollouts.tokens_PNT.shape[-1] == part.rollouts.lengths_PN.max()


def test_texts_that_end_a_response_are_asked_for_with_its_text():
    params = request_params(1, Sampling(2, stop=("\n\n",)), 0, ())
    texts = {"stop": ["\n\n"], "include_stop_str_in_output": True, "detokenize": True}
    texts["skip_special_tokens"] = False  # a special token may be such a text
    assert params == request_params(1, Sampling(2), 0, ()) | texts


P, V, STEPS = 8, 64, 40


def test_no_two_responses_share_a_seed_in_a_batch_and_across_batches():
    for run_seed in range(3):
        seen = set()
        for stream, step in itertools.product((Stream.VOTES, Stream.EVALUATION), range(STEPS)):
            # vLLM draws response i with the prompt's seed plus i. A generator on a CPU looks at
            # the lowest 32 bits alone.
            seeds = request_seeds(torch_generator(run_seed, stream, step), P, V)
            seen |= {(seed + i) % 2**32 for seed in seeds for i in range(V)}
        assert len(seen) == 2 * STEPS * P * V


def test_seeds_follow_from_the_generator_and_move_it_on():
    generator = torch_generator(0, Stream.VOTES, 1)
    first, second = request_seeds(generator, P, V), request_seeds(generator, P, V)
    assert first == request_seeds(torch_generator(0, Stream.VOTES, 1), P, V)
    assert first != second
    assert first[:3] == request_seeds(torch_generator(0, Stream.VOTES, 1), 3, V)
    assert max(first) + V < 2**63


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**40 + 3])
def test_generators_are_numpys_of_the_same_numbers(seed):
    expected = np.random.default_rng([seed, 3, 5, 2]).random(4)
    assert generator(seed, Stream.GUARD, 5, 2).random(4).tolist() == expected.tolist()
