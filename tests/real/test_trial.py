import errno
import json
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock, create_autospec

import pytest
import torch
from small_models import causal, decoder_sizes, save_model, seeded
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    BambaForCausalLM,
)

from lab.base.errors import UserError
from lab.trace.trace import load
from real import TrainConfig, train
from real.engines.rollouts import Sampling
from real.engines.transformers_engine import TransformersEngine
from real.model.policy import Policy, load_policy, write_model
from real.model.prepare import choose_trained, trained_parameters
from real.record.alarms import check_mismatch, watch_labels
from real.record.checkpoint import save_model as save_run_model
from real.record.trial import check_sampling, check_saving
from real.run import prepare
from real.settings.groups import MemorySettings
from real.tiny import CHECKPOINT
from real.trainer import resume

SIZES = decoder_sizes(60) | {
    "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "n_ctx": 64, "rotary_dim": 4,
    "head_dim": 8, "d_model": 16, "n_heads": 2, "n_layers": 2, "ffn_dim": 24,
    "word_embed_proj_dim": 16, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "state_size": 4, "lru_width": 16, "pad_token_id": 1,
    "eos_token_id": 2, "bos_token_id": 0, "is_decoder": True,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4, "original_max_position_embeddings": 16, "factor": 4.0,
}  # fmt: skip
PROMPTS = [[5, 6, 7, 8], [9, 10, 11, 12, 13, 14]]
LATENT = {
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 8, "head_dim": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "num_key_value_heads": 2,
}  # fmt: skip
STATES = {
    f"{prefix}{name}": value for prefix in ("", "mamba_") for name, value in
    {"n_heads": 4, "num_heads": 4, "d_head": 8, "head_dim": 8, "d_state": 4, "n_groups": 1,
     "chunk_size": 8, "d_ssm": 32, "dt_rank": 2}.items()
} | {"n_groups": 1, "chunk_size": 8}  # fmt: skip
SHARED = {
    "num_hidden_layers": 4, "layers_block_type": ["linear_attention"] * 2 + ["hybrid"] * 2,
    "head_dim": 16, "num_key_value_heads": 2, "mamba_d_state": 4,
}  # fmt: skip
MORE = {
    "bamba": STATES | {"attn_layer_indices": [1]},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "deepseek_v32": LATENT | {"index_topk": 8, "index_n_heads": 2, "index_head_dim": 8},
    "falcon_h1": STATES,
    "gemma3n_text": {
        "num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_kv_shared_layers": 2, "laurel_rank": 4, "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 60,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "granitemoehybrid": STATES
    | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 8},
    "jamba": STATES | {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": LATENT
    | {"num_hidden_layers": 6, "linear_head_dim": 8, "linear_num_heads": 2},
    "mamba2": STATES | {"head_dim": 8},
    "nemotron_h": STATES | {"layer_types": ["mamba", "attention"], "ssm_state_size": 4},
    "qwen3_next": {"num_hidden_layers": 4, "shared_expert_intermediate_size": 8},
    "zamba": SHARED | {"mamba_dt_rank": 2},
    "zamba2": SHARED | {"n_mamba_heads": 4, "chunk_size": 8, "adapter_rank": 4},
}  # fmt: skip
"""Sizes of layers that few architectures have."""
RIGHT = """
    afmoe apertus arcee aria_text bamba bert bert-generation big_bird biogpt bitnet bloom cohere
    cohere2 ctrl cwm deepseek_v2 deepseek_v3 doge ernie4_5 exaone4 falcon_h1 flex_olmo gemma
    gemma2 gemma3_text gemma3n_text glm glm4 gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss gptj
    granite granitemoe granitemoehybrid helium hunyuan_v1_dense hunyuan_v1_moe jamba jetmoe
    kimi_linear lfm2 llama llama4_text minimax_m2 ministral mistral mixtral modernbert-decoder
    mpt nemotron nemotron_h olmo olmo2 olmo3 olmo_hybrid olmoe opt persimmon phi phi3 qwen2
    qwen2_moe qwen3 qwen3_moe qwen3_next seed_oss smollm3 solar_open stablelm starcoder2 xglm
    zamba
"""
REFUSED = """
    camembert deepseek_v32 falcon_mamba mamba mamba2 minimax recurrent_gemma roberta rwkv xlstm
    zamba2
"""
"""Zamba2 bounds its time steps in the forward pass, and not where it decodes."""


def tried(kind, longest=16, prompts=PROMPTS, dtype=None, sizes=SIZES, **changes):
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **sizes | MORE.get(kind, {}) | changes)
    model = AutoModelForCausalLM.from_config(config).eval().to(dtype)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tokenizer = SimpleNamespace(name_or_path="folder")
    policy = Policy(model, tokenizer, (2,), 1, torch.device("cpu"))
    check_sampling(policy, prompts, TrainConfig(max_response_tokens=longest))
    after = model.state_dict()
    assert all(value.dtype == after[n].dtype for n, value in before.items())
    assert all(torch.equal(value, after[n]) for n, value in before.items())


@pytest.mark.slow
def test_architectures_are_sampled_as_they_are_scored_or_refused_by_name():
    said = {}
    for kind in (RIGHT + REFUSED).split():
        try:
            tried(kind)
        except UserError as error:
            said[kind] = str(error)
    assert sorted(said) == sorted(REFUSED.split()), said
    for message in said.values():
        assert "ForCausalLM" in message and "\n" not in message


@pytest.mark.parametrize("kind", ["mamba", "recurrent_gemma", "roberta", "deepseek_v32"])
def test_models_that_sample_and_score_differently_are_refused_by_name(kind):
    """In bfloat16, whose rounding moves log-probs by more than some of these faults."""
    with pytest.raises(UserError, match=r"model folder: \w+ForCausalLM.*engine = 'vllm'"):
        tried(kind, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [("xlm", {"emb_dim": 16, "causal": True}), ("xlnet", {"d_inner": 24})],
)
def test_models_that_assert_or_name_no_length_are_refused_by_name(kind, changes):
    sizes = {"n_layers": 2, "n_heads": 2, "d_model": 16, "n_layer": 2, "n_head": 2}
    with pytest.raises(UserError, match=r"model folder: XL\w+LMHeadModel"):
        tried(kind, sizes=sizes, **changes)


def test_weights_that_are_not_finite_are_named():
    policy = load_policy(CHECKPOINT, "cpu")
    policy.model.get_input_embeddings().weight.data[5] = torch.nan
    with pytest.raises(UserError, match="ForCausalLM gives log-probs that are not finite, as NaN"):
        check_sampling(policy, PROMPTS, TrainConfig())


@pytest.mark.parametrize("kind", ["llama", "mixtral", "qwen3_next"])
def test_rounding_refuses_no_model(kind):
    tried(kind, dtype=torch.bfloat16)


def test_positions_that_change_at_a_length_are_refused_where_the_run_crosses_it():
    changes = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 16}
    tried("phi3", longest=8, **changes)
    with pytest.raises(UserError, match=r"Phi3ForCausalLM.* beyond 16 tokens.*--max-response-tok"):
        tried("phi3", longest=12, **changes)
    tried("phi3", longest=12, prompts=[list(range(3, 3 + n)) for n in (17, 20)], **changes)


@pytest.mark.parametrize("table", ["dynamic", "linear", "llama3", "yarn"])
def test_tables_of_positions_that_keep_to_the_model_s_length_are_right(table):
    rope = {
        "rope_type": table, "rope_theta": 1e4, "factor": 2.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
    }  # fmt: skip
    tried("llama", longest=58, rope_parameters=rope)


@pytest.mark.parametrize("name", ["sliding_window", "attention_window_size", "index_topk"])
def test_models_are_tried_beyond_every_length_that_their_config_names(name, monkeypatch):
    sample = create_autospec(TransformersEngine.sample, side_effect=TransformersEngine.sample)
    monkeypatch.setattr(TransformersEngine, "sample", sample)
    kind = "mistral" if name == "sliding_window" else "llama"
    for longest, crosses in ((40, True), (8, False)):
        sample.reset_mock()
        tried(kind, longest=longest, **{name: 20})
        lengths = [len(prompt) for call in sample.call_args_list for prompt in call.args[1]]
        assert any(n < 20 < n + 12 for n in lengths) if crosses else max(lengths) < 14


@pytest.mark.parametrize("loses", [False, True])
def test_models_are_tried_with_a_mask_and_without(loses, monkeypatch):
    """Bamba counts positions anew at every token unless it is given them."""

    def forward(self, **named):
        if loses and "attention_mask" not in named:
            named.pop("position_ids", None)
        return plain(self, **named)

    plain = BambaForCausalLM.forward
    monkeypatch.setattr(BambaForCausalLM, "forward", forward)
    with pytest.raises(UserError, match=r"BambaFor.* differ") if loses else nullcontext():
        tried("bamba")


SHORT = {
    "n_problems": 2, "n_votes": 4, "n_samples": 2, "batch_size": 2, "epochs": 1,
    "max_response_tokens": 8, "max_unread": 1.0, "eval_every": 0, "threads": 1, "save_model": True,
}  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        {"do_sample": False, "temperature": 0.6, "top_p": 0.9},
        {"num_beams": 1, "early_stopping": True, "length_penalty": 2.0},
        {"bad_words_ids": [[5]], "suppress_tokens": [7], "begin_suppress_tokens": [8]},
        {"forced_bos_token_id": 3, "forced_eos_token_id": 2, "min_new_tokens": 4},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "top_k": 1, "max_length": 9},
    ],
    ids=" ".join,
)
def test_generation_settings_change_no_sample_and_are_saved(settings, tmp_path, monkeypatch):
    """One of them in the model's `config.json`."""
    file = "config.json" if "top_k" in settings else "generation_config.json"
    plain, folder = (save_model(tmp_path / name) for name in ("plain", "model"))
    if file == "config.json":
        (folder / "generation_config.json").unlink()
    kept = json.loads((folder / file).read_text()) | {"eos_token_id": 2} | settings
    (folder / file).write_text(json.dumps(kept))
    (tmp_path / "run").mkdir()
    policy = load_policy(folder, "cpu")
    for limit in (2**26, 0):  # whole, and without its weights as a large model
        monkeypatch.setattr("real.record.trial._WHOLE", limit)
        check_saving(policy, tmp_path / "run")
    assert not [*(tmp_path / "run").iterdir()]
    write_model(policy.model, policy.tokenizer, tmp_path / "run", folder)
    saved = json.loads((tmp_path / "run/generation_config.json").read_text())
    assert {name: saved[name] for name in settings} == settings
    again = [load_policy(f, "cpu") for f in (plain, tmp_path / "run")]
    engines = [TransformersEngine(p.model, p.eos_token_ids, p.pad_token_id) for p in again]
    drawn = [e.sample(PROMPTS, 4, Sampling(9), seeded()).tokens_PNT for e in engines]
    assert torch.equal(*drawn)


def test_a_tokenizer_with_several_templates_is_saved_with_them(tmp_path):
    folder = save_model(tmp_path / "model")
    named = [{"name": name, "template": name} for name in ("default", "tool_use")]
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": named}))
    policy = load_policy(folder, "cpu")
    (tmp_path / "run").mkdir()
    check_saving(policy, tmp_path / "run")
    save_run_model(policy, tmp_path / "run")
    again = load_policy(tmp_path / "run/model", "cpu").tokenizer
    assert again.chat_template == {"default": "default", "tool_use": "tool_use"}


def test_what_a_model_has_beside_its_text_part_is_told_or_kept(tmp_path):
    """The library loads of Llama 4 the text part alone, and knows no files for images."""
    sizes = decoder_sizes(107, head_dim=8, intermediate_size_mlp=24, num_local_experts=2)
    sight = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "image_size": 16,
        "num_attention_heads": 2, "patch_size": 8, "projector_input_dim": 16,
        "projector_output_dim": 16, "vision_output_dim": 16,
    }  # fmt: skip
    config = AutoConfig.for_model("llama4", text_config=sizes, vision_config=sight)
    folder = save_model(tmp_path / "m", lambda *_: AutoModelForImageTextToText.from_config(config))
    (folder / "preprocessor_config.json").write_text("{}")
    run = prepare(TrainConfig(model=str(folder), max_response_tokens=4).settled())
    assert any("is the text part of a llama4" in line for line in run.prompts.notices)
    save_run_model(run.policy, tmp_path)
    assert (tmp_path / "model" / "preprocessor_config.json").read_text() == "{}"
    again = prepare(TrainConfig(model=str(tmp_path / "model"), max_response_tokens=4).settled())
    assert not any("text part" in line for line in again.prompts.notices)


@pytest.mark.parametrize(
    "named", [{"output_router_logits": True}, {"return_dict": False, "output_hidden_states": True}]
)
def test_outputs_that_a_config_names_are_left_to_others(named, tmp_path):
    """As of a mixture that was trained with an auxiliary loss, of which decoding has no shapes."""

    def make(n, _):
        return causal("Mixtral", **decoder_sizes(n, head_dim=8), **named)

    policy = load_policy(save_model(tmp_path / "start", make), "cpu")
    check_sampling(policy, PROMPTS, TrainConfig(max_response_tokens=8))
    save_run_model(policy, tmp_path)
    saved = json.loads((tmp_path / "model" / "config.json").read_text())
    assert {name: saved[name] for name in named} == named


def test_what_reads_images_is_kept_as_it_is():
    """Weight decay alone would move it."""
    sight = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    sight |= {"num_attention_heads": 2, "image_size": 16, "patch_size": 8}
    sizes = decoder_sizes(60, head_dim=8)
    config = AutoConfig.for_model("gemma3", text_config=sizes, vision_config=sight)
    model = AutoModelForCausalLM.from_config(config).eval()
    names = [name for name, _ in model.named_parameters()]
    choose_trained(model, MemorySettings())  # for training and measurements
    parts = "model.language_model.", "lm_head."
    assert list(trained_parameters(model)) == [n for n in names if n.startswith(parts)] != names
    choose_trained(model, MemorySettings(lora_rank=2))
    assert all(name.startswith(parts[0]) for name in trained_parameters(model))


def test_prompts_are_stored_with_those_held_out_and_resume_reads_them(tmp_path):
    run = tmp_path / "run"
    train(TrainConfig(**SHORT, checkpoint_every=1, n_held_out=1), run, progress=False)
    rows = json.loads((run / "prompts.json").read_text())
    assert [sorted(row) for row in rows] == [["id", "ids", "messages", "text"]] * 3
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(facts | {"status": "interrupted"}))
    for changed in (0, 2):
        made = [dict(row) for row in rows]
        made[changed]["ids"] = rows[1]["ids"]
        (run / "prompts.json").write_text(json.dumps(made))
        with pytest.raises(UserError, match="problems: changed since the run was started"):
            resume(run, progress=False)
    (run / "prompts.json").write_text(json.dumps(rows))
    assert resume(run, progress=False).run.status == "finished"


def test_a_run_that_failed_at_its_save_is_saved_by_resume(tmp_path, monkeypatch):
    config, run = TrainConfig(**SHORT), tmp_path / "run"
    train(config, tmp_path / "whole", progress=False)
    with monkeypatch.context() as patch:
        full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
        patch.setattr("real.record.checkpoint.write_model", full)
        patch.setattr("real.trainer.check_saving", Mock())
        with pytest.raises(UserError, match=r"model: cannot be written \(No space left on device"):
            train(config, run, progress=False)
    assert not (run / "model").exists() and load(run).run.status == "failed"
    assert len(load(run).steps) == 1
    assert resume(run, progress=False).run.status == "finished"
    saved = [folder / "model/model.safetensors" for folder in (tmp_path / "whole", run)]
    assert saved[0].read_bytes() == saved[1].read_bytes()


def test_a_folder_that_cannot_be_written_is_refused_before_the_training(tmp_path, monkeypatch):
    """As the system refuses it; an administrator may write anywhere."""
    refused = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr("real.trainer.run_loop", Mock(side_effect=AssertionError))
    for place in ("pathlib.Path.mkdir", "tempfile.mkdtemp"):
        with monkeypatch.context() as patch:
            patch.setattr(place, Mock(side_effect=refused))
            with pytest.raises(UserError, match=r"run.*Permission denied") as caught:
                train(TrainConfig(**SHORT), tmp_path / "run", progress=False)
        assert "\n" not in str(caught.value)


def test_a_mismatch_is_told_above_rounding_and_ends_the_run_far_above_it():
    log = Mock()
    check_mismatch(log, {"mismatch_kl": 1e-8, "step": 1}, "float32", 0.1)
    check_mismatch(log, {"mismatch_kl": 1e-3, "step": 1}, "bfloat16", 0.1)
    check_mismatch(log, {"mismatch_kl": float("nan"), "step": 1}, "float32", 0.1)
    assert not log.alarm.called
    check_mismatch(log, {"mismatch_kl": 1e-3, "step": 1}, "float32", 0.1)
    name, text = log.alarm.call_args.args
    assert name == "mismatch_kl" and "batch 1, and rounding explains 1e-06" in text
    with pytest.raises(UserError, match=r"mismatch_kl = 1 nats a token in batch 2.*max_mismatch"):
        check_mismatch(log, {"mismatch_kl": 1.0, "step": 2}, "bfloat16", 0.1)
    check_mismatch(log, {"mismatch_kl": 1.0, "step": 2}, "bfloat16", 2.0)


def test_labels_without_votes_one_label_for_all_and_repeated_questions_are_alarming():
    log = Mock(**{"manifest.extra": {"n_labels_before": 40}})
    row = {"majority_ratio": 0.4, "n_labels": 30, "n_problems": 8, "step": 3}
    watch_labels(log, row, 40)
    watch_labels(log, row | {"n_labels": 6, "repeated": 0.2}, 6)
    watch_labels(log, row | {"majority_ratio": 0.0, "n_unread": 8}, 40)
    watch_labels(log, row | {"majority_ratio": 0.0, "n_problems": 1}, 41)  # the last of an epoch
    nothing = Mock(**{"manifest.extra": {"n_labels_before": 0}})
    watch_labels(nothing, row | {"majority_ratio": 0.0, "n_unread": 8, "n_labels": 0}, 40)
    assert not log.alarm.called and not nothing.alarm.called
    watch_labels(log, row | {"majority_ratio": 0.01, "n_labels": 1, "repeated": 0.3}, 40)
    told = dict(call.args for call in log.alarm.mock_calls)
    assert sorted(told) == ["answers", "labels", "match rate"]
    assert "30% of the votes of batch 3" in told["answers"] and "strings" in told["answers"]


def test_a_run_tells_that_its_votes_repeat_their_questions(monkeypatch):
    asked = Mock(side_effect=lambda question, responses: len(responses))
    monkeypatch.setattr("real.trainer.repeats", asked)
    trace = train(TrainConfig(epochs=1, n_problems=16, n_votes=4, n_samples=2), progress=False)
    assert len({call.args[0] for call in asked.call_args_list}) == 16
    assert (trace.steps["repeated"] == 1.0).all()
    assert [n for n in trace.run.extra["notices"] if n.startswith("alarm: answers repeat")]
