"""Any local causal language model on a problem file it has never seen."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import decoder_sizes, save_model
from tiny_runs import of_file
from transformers import LlamaConfig, LlamaForCausalLM

from lab.base.errors import UserError
from lab.trace.trace import load
from real import TrainConfig
from real.__main__ import main
from real.model import policy
from real.model.policy import load_policy
from real.run import prepare
from real.tiny import CHECKPOINT


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("llama") / "model")


def file_with(name, text):
    return lambda folder: (folder / name).write_text(text)


def config_with(**changes):
    def spoil(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def index_with_a_way_out(folder):
    (folder / "model.safetensors").unlink()
    index = json.dumps({"metadata": {}, "weight_map": {"weight": "../../../etc/passwd"}})
    (folder / "model.safetensors.index.json").write_text(index)


def weight_named(*names):
    def add(folder):
        path = folder / "model.safetensors"
        weights = load_file(path) | {name: torch.ones(8) for name in names}
        save_file(weights, path, {"format": "pt"})

    return add


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "model.safetensors").unlink(), "could not be loaded"),
        (file_with("model.safetensors", "no"), "could not be loaded"),
        (file_with("tokenizer.json", '{"model": {"type": "no"}}'), "loaded"),
        (file_with("generation_config.json", "[]"), "could not be loaded"),
        (file_with("generation_config.json", '{"eos_token_id": 1000000}'), "1000000: no token of"),
        (config_with(num_attention_heads=0), "could not be loaded"),
        (config_with(vocab_size=50), "weights have another shape than config.json says"),
        (index_with_a_way_out, "could not be loaded"),
        (weight_named("model.layers.1.mlp.up_proj.weight"), "layers.1.mlp.up_proj.weight for one"),
        (weight_named("model.layers.0.self_attn.q_proj.bias"), "1 weights are none of the model"),
        (weight_named("model.layers.0.self_attn.q_norm.weight"), "q_norm.weight for one"),
        (weight_named("lm_head.weight_scale"), "lm_head.weight_scale for one"),
        (config_with(tie_word_embeddings=True), "head is another .* set tie_word_embeddings to f"),
        (config_with(quantization_config={"quant_method": "fp8"}), r"are quantized \(fp8\)"),
        (lambda f: (f / "config.json").unlink(), "lacks config.json"),
        (file_with("adapter_config.json", "{}"), "holds adapters; give .* has them merged"),
        (lambda f: [p.unlink() for p in f.glob("tokenizer*")], "tokenizer"),
        (lambda f: save_model(f, spare=-5), "the tokenizer has 103 tokens, the model 98"),
    ],
)
def test_a_folder_that_holds_no_whole_model_is_named(tmp_path, spoil, message):
    folder = save_model(tmp_path / "model")
    spoil(folder)
    with pytest.raises(UserError, match=message) as found:
        load_policy(folder, "cpu")
    assert str(folder) in str(found.value) and "\n" not in str(found.value)


def test_weights_beside_those_of_the_model_are_left(tmp_path):
    folder = save_model(tmp_path / "model")
    name = "model.layers.0.self_attn"
    weight_named("v_head.summary.weight", "mtp.0.bias", f"{name}.inv_freq", f"{name}.bias")(folder)
    load_policy(folder, "cpu")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs the system's memory map")
def test_weights_in_the_precision_of_their_file_are_mapped_not_copied(model):
    def mapped(dtype):
        loaded = load_policy(model, "cpu", dtype).model
        lines = Path("/proc/self/maps").read_text().splitlines()
        spans = [line.split()[0].split("-") for line in lines if str(model) in line]
        ranges = [range(int(start, 16), int(end, 16)) for start, end in spans]
        return {any(p.data_ptr() in span for span in ranges) for p in loaded.parameters()}

    assert mapped("float32") == {True} and mapped("bfloat16") == {False}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_heads_share_keys_without_copies_and_change_no_bit(tmp_path, monkeypatch, request, dtype):
    """Two heads on one, with a mask as prompts of two lengths have it."""
    save_model(tmp_path / "model", lambda n, _: LlamaForCausalLM(LlamaConfig(**decoder_sizes(n))))
    model = load_policy(tmp_path / "model", "cpu", dtype).model
    mask = torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    inputs = {"input_ids": torch.arange(3, 15).view(2, 6), "attention_mask": mask}
    kernel = Mock(side_effect=policy.scaled_dot_product_attention)
    monkeypatch.setattr(policy, "scaled_dot_product_attention", kernel)
    shared = model(**inputs).logits
    assert [call.args[1].shape[1] for call in kernel.call_args_list] == [1, 1]
    request.getfixturevalue("library_attention")
    assert torch.equal(model(**inputs).logits, shared) and kernel.call_count == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_is_said(model):
    with pytest.raises(UserError, match="no GPU"):
        load_policy(model, "cuda")


def test_a_model_without_problems_is_told_that_it_gets_the_tiny_task(model):
    notice = "no problems given: the model is trained on the tiny task; name some by --problems"
    assert notice in prepare(TrainConfig(model=str(model)).settled()).prompts.notices
    tiny = TrainConfig(model=str(CHECKPOINT)).settled()
    assert prepare(tiny).prompts.notices == ()


WORDS = ["--n-votes", "8", "--n-samples", "4", "--epochs", "1", "--max-response-tokens", "30"]


def test_a_comparison_whose_model_gives_no_answers_is_refused_once(tmp_path, capsys):
    out, own = tmp_path / "all", of_file(tmp_path)["problems"]
    words = ["--problems", own, "--model", str(CHECKPOINT), "--out", str(out), "--quiet", *WORDS]
    assert main(["compare", "--arms", "ttrl", "guard", "--seeds", "0", *words]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "notice" not in line]
    assert len(lines) == 1 and "100% of 16 responses of a pilot have no answer" in lines[0]
    for word in ("end in '', '', '';", "--prompt-suffix", "--max-response-tokens", "--stop"):
        assert word in lines[0]
    assert not list(out.rglob("run.json"))


def test_own_problems_on_the_embedded_model_take_one_command(tmp_path, capsys):
    out, own = tmp_path / "all", of_file(tmp_path)["problems"]
    words = ["compare", "--problems", own, "--arms", "ttrl", "--seeds", "0", "--out", str(out)]
    assert main([*words, *WORDS[:6]]) == 2
    assert "--model tiny" in capsys.readouterr().err
    assert main([*words, *WORDS[:6], "--model", "tiny", "--batch-size", "8"]) == 0
    said = capsys.readouterr()
    assert "unread 0.0% -> " in said.out
    assert "100%  run 1.0/1, ttrl, seed 0: step 1/1, pass@1 0." in said.err
    run = load(out / "ttrl" / "seed-0").run
    assert run.config["max_response_tokens"] == 22 and run.config["prompt_suffix"] == ""
    words[words.index("0")] = "5"
    assert main([*words, "--model", str(CHECKPOINT)]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "notice" not in line]
    assert "the model has 64 positions" in line and "--max-response-tokens 32" in line
