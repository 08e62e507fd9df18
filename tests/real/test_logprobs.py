import copy
from functools import partial
from unittest.mock import Mock

import pytest
import small_models
import torch
from live_tensors import LiveTensors
from random_groups import logprobs_of
from torch._dynamo.utils import counters
from transformers import LlamaConfig, LlamaForCausalLM

from real.engines.rollouts import Sampling
from real.engines.transformers_engine import TransformersEngine
from real.model.policy import WideHead, load_policy, wide_product
from real.model.prepare import prepare_training
from real.settings.groups import MemorySettings
from real.tiny import CHECKPOINT
from real.update.logprobs import CHUNK_ELEMENTS, Head, Scorer, find_head, head_scores, score_logits
from real.update.packing import PackedRows

VOCABULARY = 50
SIZES = small_models.decoder_sizes(
    VOCABULARY, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2
)
PROMPT = torch.tensor([3, 5, 7, 9])
TOKENS = torch.randint(0, VOCABULARY, (6, 10), generator=torch.Generator().manual_seed(0))
INPUTS = torch.cat([PROMPT.expand(6, -1), TOKENS[:, :-1]], dim=1)
ROWS = PackedRows(INPUTS, None, 10, TOKENS.flatten())


class Odd(LlamaForCausalLM):
    """Its logits are modified in a way that no setting describes."""

    def forward(self, *args, **options):
        found = super().forward(*args, **options)
        found.logits = found.logits + found.logits**2
        return found


causal = partial(small_models.causal, seed=1, **SIZES)


def phi():
    """Its head has a bias, here one that matters."""
    model = causal("Phi")
    torch.nn.init.normal_(model.lm_head.bias)
    return model


MODELS = {
    "plain": lambda: causal("Llama"),
    "tied": lambda: causal("Llama", tie_word_embeddings=True),
    "bias": phi,
    "multiplied": lambda: causal("Cohere", logit_scale=0.25),
    "divided": lambda: causal("Granite", logits_scaling=4.0),
    "capped": lambda: causal("Gemma2", head_dim=8, final_logit_softcapping=2.0),
    "unknown": lambda: Odd(LlamaConfig(**SIZES)),
}


def make(name):
    torch.manual_seed(1)
    return MODELS[name]().eval()


def whole_logprobs(model):
    """From all logits, as the definition has it."""
    rows = torch.cat([PROMPT.expand(6, -1), TOKENS], dim=1)
    logits = model(input_ids=rows, use_cache=False).logits[:, len(PROMPT) - 1 : -1]
    found = torch.log_softmax(logits.double() / 0.6, dim=-1)
    return found.gather(-1, TOKENS[..., None]).squeeze(-1)


def scores_of(model, chunk_elements, stats=False):
    return Scorer(model, chunk_elements)(ROWS, 0.6, stats)


def gradient(model, logprobs):
    model.zero_grad()
    (logprobs.flatten() * torch.linspace(-1, 1, 60)).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_head(name):
    """Seven tokens a chunk, the last chunk smaller, against the whole in double precision."""
    model = make(name)
    head = Scorer(model).head
    assert (head is None) == (name == "unknown")
    assert head is None or head.plain == (name != "capped")
    expected, found = whole_logprobs(model), scores_of(model, 7 * VOCABULARY).logprobs_n
    torch.testing.assert_close(found.view(6, 10).double(), expected, rtol=1e-5, atol=1e-5)
    found_KT = logprobs_of(Scorer(model), PROMPT, TOKENS, 0.6)
    torch.testing.assert_close(found_KT, found.view(6, 10))
    first = gradient(model, expected).clone()
    second = gradient(model, scores_of(model, 7 * VOCABULARY).logprobs_n)
    assert (second - first).norm() / first.norm() < 1e-5
    assert (second - first).abs().max() / first.abs().max() < 1e-5


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_chunks_hold_an_eighth_of_the_memory(softcap):
    """A 64th of 32 rows x 512 tokens x 32k words, with chunks a 64th of the usual."""
    n_tokens, vocabulary, width = 32 * 512 // 64, 32768, 8
    g = torch.Generator().manual_seed(0)
    linear = torch.nn.Linear(width, vocabulary, bias=False)
    hidden = torch.randn(n_tokens, width, generator=g, requires_grad=True)
    targets = torch.randint(0, vocabulary, (n_tokens,), generator=g)

    def peak(chunk_elements):
        linear.zero_grad()
        hidden.grad = None
        with LiveTensors() as live:
            head = Head(linear, softcap=softcap)
            scores = head_scores(head, hidden, targets, 0.6, chunk_elements=chunk_elements)
            (scores.logprobs_n * torch.linspace(-1, 1, n_tokens)).sum().backward()
        return live.peak

    whole, chunked = peak(n_tokens * vocabulary), peak(CHUNK_ELEMENTS // 64)
    assert whole > 2 * n_tokens * vocabulary * 4
    assert chunked <= whole / 8


@pytest.mark.parametrize("chunk_elements", [2**20, 7 * VOCABULARY])
@pytest.mark.parametrize("name", ["capped", "unknown"])
def test_entropy_and_self_certainty_come_with_the_same_pass(name, chunk_elements):
    model = make(name)
    calls = []
    scorer = Scorer(model, chunk_elements)
    hook = model.base_model.register_forward_hook(lambda *_: calls.append(1))
    found = scorer(ROWS, 0.6, True)
    hook.remove()
    assert len(calls) == 1
    logits = model(input_ids=INPUTS).logits[:, -10:].detach().flatten(0, 1) / 0.6
    logp = torch.log_softmax(logits.double(), dim=-1)
    entropy = -(logp.exp() * logp).sum(-1)
    torch.testing.assert_close(found.entropy_n.double(), entropy, rtol=1e-4, atol=1e-5)
    certainty = found.self_certainty_n.double()
    torch.testing.assert_close(certainty, -logp.mean(-1), rtol=1e-4, atol=1e-5)
    assert found.logprobs_n.requires_grad
    assert not found.entropy_n.requires_grad and not found.self_certainty_n.requires_grad
    plain = scores_of(model, chunk_elements)
    assert plain.entropy_n is None and torch.equal(plain.logprobs_n, found.logprobs_n)


def test_entropy_of_a_distribution_with_impossible_tokens():
    logits = torch.tensor([[0.0, 0.0, -torch.inf]])
    _, entropy_n, _ = score_logits(logits, torch.tensor([0]), 1.0, stats=True)
    assert entropy_n.item() == pytest.approx(torch.log(torch.tensor(2.0)).item())


@pytest.mark.parametrize(
    ("name", "dropout"),
    [
        ("Llama", {"attention_dropout": 0.5}),
        ("OPT", {"dropout": 0.5, "ffn_dim": 24, "word_embed_proj_dim": 16}),  # by its layers
    ],
)
def test_checkpointed_layers_do_without_dropout_and_sampling_keeps_its_cache(name, dropout):
    model = causal(name, **dropout)
    expected = scores_of(model, 2**20).logprobs_n
    slopes = gradient(model, expected).clone()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    scores = scores_of(model, 2**20).logprobs_n
    torch.testing.assert_close(scores, expected)
    torch.testing.assert_close(gradient(model, scores), slopes)
    assert not any(module.training for module in model.modules())
    cached = model(input_ids=PROMPT[None], use_cache=True).past_key_values
    assert cached.get_seq_length() == len(PROMPT)


def draws(bias):
    """Hidden states and a head in bfloat16 with logits of about 16, and target tokens."""
    g = torch.Generator().manual_seed(0)
    head = torch.nn.Linear(64, VOCABULARY, bias=bias)
    with torch.no_grad():
        head.weight.copy_(2 * torch.randn(VOCABULARY, 64, generator=g))
    hidden = torch.randn(300, 64, generator=g).bfloat16()
    return hidden, head.bfloat16(), torch.randint(0, VOCABULARY, (300,), generator=g)


def widened(head):
    wide = copy.deepcopy(head)
    wide.__class__ = WideHead
    return wide


def scored(head, hidden, targets, chunk):
    """Log-probs, and gradients of the hidden states, the weights and the bias."""
    hidden = hidden.clone().requires_grad_()
    scores = head_scores(Head(head), hidden, targets, 0.6, chunk_elements=chunk)
    scores.logprobs_n.sum().backward()
    grads = [p.grad for p in head.parameters()]
    return scores.logprobs_n.detach(), hidden.grad, *grads


def test_a_kept_layer_runs_once_and_the_gradient_is_the_same():
    model, runs = make("plain"), [0, 0]
    for layer, block in enumerate(model.model.layers):
        block.self_attn.register_forward_hook(
            lambda *_, layer=layer: runs.__setitem__(layer, runs[layer] + 1)
        )
    found, scorer = [], Scorer(model)
    for kept in (0, 1):
        prepare_training(model, MemorySettings(gradient_checkpointing=True, kept_layers=kept))
        runs[:] = 0, 0
        found.append(gradient(model, scorer(ROWS, 0.6).logprobs_n).clone())
        assert runs == [2, 2 - kept]
    assert torch.equal(*found)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_layers_give_the_same_gradient_and_decode_as_they_are(backend, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    counted = counters["frames"]
    model, frames = make("plain"), []
    engine, scorer = TransformersEngine(model, pad_token_id=0), Scorer(model)
    gradients, drawn = [], []
    for compiles in (False, True):
        prepare_training(model, MemorySettings(compile_layers=compiles))
        gradients.append(gradient(model, scorer(ROWS, 0.6).logprobs_n).clone())
        frames.append(counted["total"])
        sampled = engine.sample([[1, 2, 3], [4]], 2, Sampling(6), torch.manual_seed(0))
        drawn.append(sampled.tokens_PNT)
        assert counted["total"] == frames[-1]
    assert frames[1] > frames[0]
    eager, compiled = gradients
    assert (eager - compiled).norm() <= 1e-4 * eager.norm()  # inductor adds in another order
    assert torch.equal(*drawn)


def test_logits_follow_weights_that_change(monkeypatch):
    """By an optimizer, and by FSDP2, which fills weights without moving their version counter.

    A head that is constant meanwhile widens its weights once, others at no time.
    """
    product = Mock(side_effect=wide_product)
    monkeypatch.setattr("real.model.policy.wide_product", product)
    hidden, head, _ = draws(bias=False)
    wide = widened(head)
    before = wide(hidden)
    wide.weight.detach().mul_(2)
    torch.testing.assert_close(wide(hidden), 2 * before, rtol=0, atol=0)
    with torch.autograd._unsafe_preserve_version_counter(wide.weight):
        wide.weight.detach().mul_(2)
    torch.testing.assert_close(wide(hidden), 4 * before, rtol=0, atol=0)
    for factor in (4, 8):
        product.reset_mock()
        with torch.no_grad(), WideHead.constant(wide):
            for _ in range(2):
                torch.testing.assert_close(wide(hidden), factor * before, rtol=0, atol=0)
        first, second = (call.args[1] for call in product.call_args_list)
        assert first is second and first.dtype == torch.float32
        wide.weight.detach().mul_(2)
    wide(hidden)
    assert product.call_args.args[1].dtype == torch.bfloat16


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("chunk", [2**20, 16 * VOCABULARY])
def test_log_probs_are_those_of_double_precision(bias, chunk):
    """And gradients of low-precision weights, which are summed over chunks in single precision."""
    hidden, head, targets = draws(bias)
    exact = scored(copy.deepcopy(head).double(), hidden.double(), targets, chunk)
    wide = scored(widened(head), hidden, targets, chunk)
    narrow = scored(copy.deepcopy(head), hidden, targets, chunk)
    assert wide[0].dtype == narrow[0].dtype == torch.float32
    assert (wide[0] - exact[0]).abs().max() < 1e-4
    assert (narrow[0] - exact[0]).abs().max() > 0.05
    for found, expected in zip(wide[1:], exact[1:], strict=True):
        assert found.dtype == torch.bfloat16
        assert (found.double() - expected).norm() / expected.norm() < 0.003


@pytest.mark.parametrize(("head_dtype", "dtype"), [("float32", "float32"), ("model", "bfloat16")])
def test_the_setting_decides(head_dtype, dtype):
    plain = load_policy(CHECKPOINT, "cpu", "bfloat16", head_dtype="model").model
    model = load_policy(CHECKPOINT, "cpu", "bfloat16", head_dtype=head_dtype).model
    assert model(input_ids=torch.arange(5)[None]).logits.dtype == getattr(torch, dtype)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert model.lm_head.weight is model.model.embed_tokens.weight
    head = find_head(model)
    assert head is not None and head.plain
