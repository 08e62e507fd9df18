import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from peft import PeftModel
from random_groups import random_rows
from small_models import causal, decoder_sizes, save_model
from transformers import GPT2Config, GPT2LMHeadModel

from lab.base.errors import UserError
from real.model.policy import load_policy
from real.model.prepare import (
    adapted_layers,
    adapter_config,
    adapter_weights,
    add_lora,
    merged_weights,
    prepare_training,
)
from real.plan import PlannedModel
from real.record.checkpoint import save_model as save_run
from real.settings.groups import MemorySettings, UpdateSettings
from real.update.grpo import initial_reference
from real.update.logprobs import Scorer
from real.update.optimizer import PolicyOptimizer
from real.update.packing import PackedRows

LORA = MemorySettings(lora_rank=2, lora_alpha=8.0)

IDS = torch.randint(0, 30, (3, 8), generator=torch.Generator().manual_seed(0))
ROWS = PackedRows(IDS[:, :-1], None, 4, IDS[:, -4:].flatten())


def small_model(tied=False, vocabulary=30):
    sizes = decoder_sizes(vocabulary, num_key_value_heads=2, initializer_range=0.2)
    return causal("Llama", **sizes, tie_word_embeddings=tied)


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


def trained(model, kl_coef=0.0):
    config = UpdateSettings(temperature=1.0, kl_coef=kl_coef, lr=1e-2, warmup_ratio=0.0)
    scorer = Scorer(model)
    optimizer = PolicyOptimizer(scorer, config, 3, reference=initial_reference(scorer))
    g = torch.Generator().manual_seed(1)
    for seed in range(3):
        group = random_rows(4, [5, 4, 3, 2, 1, 5], 30, seed, majority_K=torch.randn(6, generator=g))
        assert optimizer.step([group]).taken
    return optimizer


def test_adapters_start_as_nothing_and_train_alone():
    model = small_model()
    before, names = logits(model), dict(model.named_parameters())
    frozen = {name: p.detach().clone() for name, p in names.items()}
    add_lora(model, LORA)
    torch.testing.assert_close(logits(model), before)
    optimizer = trained(model)
    n_adapters = 2 * 7  # every linear layer but the head
    assert len(optimizer.parameters) == 2 * n_adapters
    assert not torch.allclose(logits(model), before, atol=1e-3)
    for name, value in merged_weights(model, merge=False):
        assert torch.equal(value, frozen[name])


TARGETS = ["all-linear", "q_proj, v_proj", "down_proj", "lm_head", "lm_head,o_proj", "embed_tokens"]


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("tied", [False, True])
def test_the_reloaded_model_is_the_trained_one_for_every_choice_of_layers(tied, targets, tmp_path):
    """And an engine that merges nothing gets the list of those very layers."""
    save_model(tmp_path / "start", lambda *_: small_model(tied, vocabulary=103))
    policy = load_policy(tmp_path / "start", "cpu")
    config = replace(LORA, lora_targets=targets)
    if "embed" in targets or (tied and "lm_head" in targets):
        with pytest.raises(UserError, match=f"lora_targets = {targets}: "):
            add_lora(policy.model, config)
        return
    names = [name for name, _ in policy.model.named_parameters()]
    layers = adapted_layers(policy.model, targets)
    expected = {name for name, module in policy.model.named_modules() if module in layers}
    add_lora(policy.model, config)
    trained(policy.model)
    merged = dict(merged_weights(policy.model))
    assert list(merged) == names
    after = logits(policy.model)
    save_run(policy, tmp_path)
    base = load_policy(tmp_path / "start", "cpu").model
    adapted = PeftModel.from_pretrained(base, str(tmp_path / "adapters"))
    for again in (load_policy(tmp_path / "model", "cpu").model, adapted):
        torch.testing.assert_close(logits(again), after, atol=1e-5, rtol=1e-5)
    assert torch.equal(logits(policy.model), after)  # nothing was merged into the model itself
    sent = {name.partition(".lora_")[0] for name, _ in adapter_weights(policy.model)}
    assert {name.removeprefix("base_model.model.") for name in sent} == expected
    ends = {name.rpartition(".")[2] for name in expected}
    told = adapter_config(policy.model)
    assert (told["r"], told["lora_alpha"], told["target_modules"]) == (2, 8.0, sorted(ends))


EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}


@pytest.mark.parametrize("kind", ["Mixtral", "Llama4Text"])
def test_experts_and_their_routers_are_no_linear_layers(kind, tmp_path):
    """Merged weights would lack adapters of experts; a router with adapters gives no pair."""
    make = partial(causal, kind, **decoder_sizes(103), **EXPERTS)
    save_model(tmp_path / "start", lambda *_: make())
    policy = load_policy(tmp_path / "start", "cpu")
    add_lora(policy.model, LORA)
    trained(policy.model)
    save_run(policy, tmp_path)
    after = logits(policy.model)
    again = logits(load_policy(tmp_path / "model", "cpu").model)
    torch.testing.assert_close(again, after, atol=1e-5, rtol=1e-5)
    assert not any(
        "experts" in name or "router" in name for name, _ in adapter_weights(policy.model)
    )


def test_layers_that_peft_takes_for_experts_are_refused():
    model = causal("Glm4Moe", **decoder_sizes(30), **EXPERTS, moe_intermediate_size=24)
    with pytest.raises(UserError, match=r"= all-linear: peft adapts .*experts.* q_proj,v_proj"):
        add_lora(model, LORA)


@pytest.mark.parametrize("targets", ["all-linear", "c_attn,c_proj"])
def test_the_plan_counts_the_adapters_of_gpt2_s_transposed_layers(targets):
    config = replace(LORA, lora_targets=targets)
    sizes = {"vocab_size": 30, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    planned = PlannedModel(GPT2Config(**sizes)).size(config)
    model = GPT2LMHeadModel(GPT2Config(**sizes))
    add_lora(model, config)
    assert planned.n_adapters == sum(p.numel() for p in model.parameters() if p.requires_grad) > 0


def test_reference_is_the_model_with_its_adapters_off():
    model = small_model()
    before = Scorer(model)(ROWS, 1.0).logprobs_n
    add_lora(model, LORA)
    reference = initial_reference(Scorer(model))
    optimizer = trained(model, kl_coef=0.1)
    torch.testing.assert_close(reference(ROWS, 1.0), before)
    assert not torch.allclose(optimizer.scorer(ROWS, 1.0).logprobs_n, before, atol=1e-3)


def test_seed_fixes_the_adapters_and_leaves_other_randomness_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    models = [small_model() for _ in range(3)]
    torch.manual_seed(5)
    for model, seed in zip(models, (1, 1 + 2**64, 2), strict=True):
        add_lora(model, LORA, seed)
    assert torch.equal(torch.rand(1), expected)
    adapters = [[p.flatten() for p in m.parameters() if p.requires_grad] for m in models]
    first, same, other = map(torch.cat, adapters)
    assert torch.equal(first, same) and not torch.equal(first, other)


def test_names_of_no_layers_are_refused_and_a_missing_package_is_named(monkeypatch):
    for targets in ("no_such", "q_proj,v_porj", "q_proj,"):
        with pytest.raises(UserError, match=f"lora_targets = {targets}: the model has no such"):
            add_lora(small_model(), replace(LORA, lora_targets=targets))
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"lora_rank = 2: needs the package peft; pip install"):
        add_lora(small_model(), LORA)


def test_a_layer_within_another_is_computed_again_with_it_alone():
    """Zamba's have one, and twice over it saved other tensors for the gradient."""
    kinds = ["linear_attention"] * 2 + ["hybrid"] * 2
    sizes = decoder_sizes(30, num_hidden_layers=4, num_key_value_heads=2, pad_token_id=1)
    sizes |= {"mamba_d_state": 4, "mamba_dt_rank": 2, "n_mamba_heads": 2, "attention_head_dim": 16}
    found = []
    for again in (False, True):
        model = causal("Zamba", **sizes, layers_block_type=kinds)
        prepare_training(model, MemorySettings(gradient_checkpointing=again))
        Scorer(model)(ROWS, 1.0).logprobs_n.sum().backward()
        found.append([p.grad for p in model.parameters()])
    for plain, checkpointed in zip(*found, strict=True):
        torch.testing.assert_close(checkpointed, plain)


def test_checkpointing_of_a_model_that_cannot_is_refused(monkeypatch):
    model = small_model()
    monkeypatch.setattr(type(model), "supports_gradient_checkpointing", False)
    with pytest.raises(UserError, match="gradient_checkpointing = true: LlamaForCausalLM has no"):
        prepare_training(model, MemorySettings(gradient_checkpointing=True))
