import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import real.model.policy
from lab.base.errors import UserError
from real.__main__ import main
from real.model.policy import import_gguf
from real.tiny import CHECKPOINT
from real.tiny.tasks import TOKENS

gguf = pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def tiny():
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, use_safetensors=True)


def write(file, model, kind):
    """The model and the tokenizer of the tiny task as a GGUF file of one kind of weights."""
    writer, config = gguf.GGUFWriter(file, "qwen2"), model.config
    values = {
        "block_count": config.num_hidden_layers, "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size, "feed_forward_length": config.intermediate_size,
        "head_count": config.num_attention_heads, "head_count_kv": config.num_key_value_heads,
        "rope_freq_base": config.rope_parameters["rope_theta"], "eos_token_id": config.eos_token_id,
        "layer_norm_rms_eps": config.rms_norm_eps, "pad_token_id": config.pad_token_id,
    }  # fmt: skip
    for name, value in values.items():
        getattr(writer, f"add_{name}")(value)
    tokens = [*TOKENS[:-1], "01"]  # readers want a merge
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges(["0 1"])
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    names = gguf.TensorNameMap(gguf.MODEL_ARCH.QWEN2, config.num_hidden_layers)
    for name, weight in model.named_parameters():
        array = weight.detach().numpy()
        raw = getattr(gguf.GGMLQuantizationType, kind if array.ndim == 2 else "F32")
        short = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(short, gguf.quants.quantize(array, raw), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize(("kind", "error"), [("F32", 0.0), ("Q8_0", 0.02)])
def test_weights_come_back(kind, error, tiny, tmp_path, capsys):
    file = write(tmp_path / "tiny.gguf", tiny, kind)
    assert main(["import-gguf", str(file), str(tmp_path / "made" / "tiny")]) == 0
    assert "qwen2, 0.1 million weights" in capsys.readouterr().out
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "made" / "tiny")
    assert again.dtype == torch.float32 and not hasattr(again.config, "quantization_config")
    for (name, first), second in zip(tiny.named_parameters(), again.parameters(), strict=True):
        assert (first - second).abs().max() <= error * first.abs().max(), name
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "made" / "tiny")
    assert tokenizer.eos_token_id == tiny.config.eos_token_id
    if not error:
        read = torch.tensor([tokenizer.encode("3+0-1*6+0=")])
        torch.testing.assert_close(again(read).logits, tiny(read).logits)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"small.gguf: no such file"),
        (b"GGUF\x03\x00\x00\x00", "small.gguf: transformers cannot read it .*; give a whole file"),
        (b"GGUF", r"gguf not installed.*pip install -e '.*\[gguf\]'"),
        (b"made", "made: is not empty"),
    ],
)
def test_what_cannot_be_converted_is_one_line(content, message, tmp_path, monkeypatch):
    if content is not None:
        (tmp_path / "small.gguf").write_bytes(content)
    if content == b"GGUF":
        monkeypatch.setattr(real.model.policy, "is_gguf_available", lambda: False)
    if content == b"made":
        (tmp_path / "made" / "own").mkdir(parents=True)
    with pytest.raises(UserError, match=message) as caught:
        import_gguf(tmp_path / "small.gguf", tmp_path / "made")
    assert "\n" not in str(caught.value)
    assert len(list(tmp_path.glob("made*"))) == (content == b"made")


@pytest.mark.slow
def test_a_model_is_carried_in_halves_and_joined(tiny, tmp_path):
    """As SmolLM2 to a GPU without a network; an import without its first half is refused."""
    root = Path(__file__).parents[2]
    file, halves = write(tmp_path / "tiny.gguf", tiny, "F32"), tmp_path / "halves"
    paths = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": paths}

    def bring(*words):
        command = ["bash", str(root / "benchmarks/gpu/bring.sh"), *map(str, words)]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
        )

    assert bring("divide", file, halves).returncode == 0
    sizes = [(halves / name).stat().st_size for name in ("E1/model.gguf.0", "E2/model.gguf.1")]
    assert sum(sizes) == file.stat().st_size and max(sizes) < 0.6 * sum(sizes)
    alone = bring("unpack", halves / "E2", tmp_path / "lacking")
    assert alone.returncode and not (tmp_path / "lacking/smollm2").exists(), alone.stderr
    site = tmp_path / "site"
    done = [bring("unpack", halves / name, site) for name in ("E1", "E2")][1]
    assert f"export SMOLLM2={site}/smollm2" in done.stdout, done.stderr
    assert (site / "model.gguf").read_bytes() == file.read_bytes()
    import_gguf(file, tmp_path / "here")
    weights = [folder / "model.safetensors" for folder in (site / "smollm2", tmp_path / "here")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
