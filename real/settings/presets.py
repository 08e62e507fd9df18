"""The paper's 12 cells, three models times four problem sets, as settings of the trainer.

A preset sets defaults; whatever is given besides it wins. The model itself is not part of it. Where
a number comes from is given with it: most are in the paper's Table 4, some only in the scripts of
its release, the rest had to be chosen here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lab.errors import UserError
from lab.settings import from_values
from real.settings.choices import BOX_REQUEST
from real.settings.config import TrainConfig

Source = Literal["paper", "release", "ours"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One setting of a preset."""

    name: str
    """Of the field of `TrainConfig`."""
    value: Any
    source: Source
    """The paper's text, the scripts of its release (github linhxkkkk/TTRL-Guard), or neither."""
    remark: str = ""


MODELS = {
    "llama-3.2-3b": "Llama-3.2-3B-Instruct",
    "qwen2.5-7b": "Qwen2.5-7B-Instruct",
    "qwen3-4b": "Qwen3-4B",
}
"""Part of a preset's name to the model that the paper trained."""

SHAPES: dict[str, dict[str, Any]] = {
    "Llama-3.2-3B-Instruct": {
        "model_type": "llama",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
    },
    "Qwen2.5-7B-Instruct": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152_064,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": False,
    },
    "Qwen3-4B": {
        "model_type": "qwen3",
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "max_position_embeddings": 40_960,
        "tie_word_embeddings": True,
    },
}
"""Sizes from the models' published config.json, for plans without the model's folder."""

EPOCHS = {"aime24": 60, "aime25": 60, "amc": 30, "math500": 30}
"""Problem set to passes over it."""

NAMES = tuple(f"{model}/{data}" for model in MODELS for data in EPOCHS)

SHARED = (
    Choice("batch_size", 8, "paper", "problems per batch"),
    Choice("mini_batch", 1, "paper", "problems per optimizer step, so 8 steps a batch"),
    Choice("lr", 5e-7, "paper"),
    Choice("warmup_ratio", 0.03, "paper", "then a cosine to 0"),
    Choice("kl_coef", 0.0, "paper", "no reference model"),
    Choice("n_votes", 64, "paper", "votes per prompt"),
    Choice("n_samples", 32, "paper", "samples per prompt K"),
    Choice("max_prompt_tokens", 1024, "paper"),
    Choice("max_response_tokens", 3072, "paper"),
    Choice("temperature", 0.6, "paper"),
    Choice("eval_samples", 4, "paper", "validation samples N"),
    Choice("prompt_suffix", BOX_REQUEST, "release"),
    Choice("top_p", 1.0, "release", "its library's default; below 1 the ratio would be biased"),
    Choice("eval_temperature", 0.6, "release"),
    Choice("eval_top_p", 0.95, "release"),
    Choice("eval_steps", 5, "release", "batches between evaluations"),
    Choice("clip_low", 0.2, "release", "its library's default"),
    Choice("clip_high", 0.2, "release", "its library's default"),
    Choice("loss", "dapo", "release", "mean over tokens, its library's default"),
    Choice("weight_decay", 0.01, "release", "its library's default"),
    Choice("max_grad_norm", 1.0, "release", "its library's default"),
    Choice("gradient_checkpointing", True, "release", "memory alone"),
    Choice("engine", "vllm", "release", "give --engine transformers where it is not installed"),
    Choice("chat_template", "require", "ours", "all three models are chat models"),
    Choice("dtype", "bfloat16", "ours", "the paper does not say"),
)
"""Settings of all 12 presets. The paper's micro-batch of 2 rows is a matter of memory alone, here
`micro_tokens`."""

REMARKS = (
    "The guard's numbers are those of the profile `paper`, the default; choose arms with --arm.",
    "The paper's results are means of 5 runs: give --seed 0 to 4. Its seeds are not published.",
    "The release's scripts switch FRS off for some cells; the paper's table says one setting for "
    "all, which is what the presets do.",
    "They also turn their library's KL loss on, of weight 0.001 where nothing else sets it; the "
    "paper's table says 0, which is what the presets do.",
    "Qwen3-4B thinks aloud under its chat template unless that is switched off, and the paper "
    "does not say which it was. With 3072 tokens many such responses are cut before their answer.",
)


def preset_values(name: str) -> dict[str, Any]:
    """Settings of a preset, as plain values.

    Args:
        name: one of `NAMES`.

    Raises:
        UserError: there is no such preset.
    """
    if name not in NAMES:
        raise UserError(f"preset = {name!r}: unknown; one of {', '.join(NAMES)}")
    data = name.partition("/")[2]
    shared = {choice.name: choice.value for choice in SHARED}
    return {"problems": data, "epochs": EPOCHS[data], **shared}


def model_of(name: str) -> str:
    """The model that the paper trained under a preset's name."""
    return MODELS[name.partition("/")[0]]


def preset(name: str, model: str, **changes: Any) -> TrainConfig:
    """The settings of one cell of the paper.

    Args:
        name: one of `NAMES`, such as `qwen2.5-7b/math500`.
        model: local folder of the model, or `hf:owner/name`.
        changes: settings that replace the preset's.

    Raises:
        UserError: there is no such preset, or a change is wrong.
    """
    return preset_config(name, {"model": model, **changes})


def preset_config(name: str, changes: Mapping[str, Any]) -> TrainConfig:
    """The settings of one cell with changes as plain values, as they stand in a settings file.

    Raises:
        UserError: there is no such preset, no model is given, or a change is wrong.
    """
    values = {**preset_values(name), **changes}
    if values.get("model") is None:
        raise UserError(
            f"preset = {name!r}: needs a model, give the local folder of {model_of(name)} "
            "with --model"
        )
    return from_values(values, TrainConfig, f"preset {name}")


def table() -> Iterator[str]:
    """All presets for readers, line by line."""
    yield "presets, each a model of the paper on one of its problem sets:"
    for model, title in MODELS.items():
        yield f"  {', '.join(f'{model}/{data}' for data in EPOCHS)}  ({title})"
    yield ""
    yield "what they set:"
    rows = [("problems, epochs", _epochs(), "paper", "")]
    rows += [(c.name, _shown(c.value), c.source, c.remark) for c in SHARED]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        yield f"  {'  '.join(cells)}  {row[3]}".rstrip()
    yield ""
    yield "paper: in its text or tables; release: in its scripts alone; ours: in neither."
    yield from REMARKS


def _epochs() -> str:
    return ", ".join(f"{data} {epochs}" for data, epochs in EPOCHS.items())


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) and not value.isidentifier() else str(value)
