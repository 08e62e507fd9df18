"""Named settings: the paper's experiments and this project's own studies."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.base.errors import UserError
from lab.base.settings import from_values
from real.settings.config import TrainConfig
from real.settings.groups import BOX_REQUEST

MODELS = {
    "llama-3.2-3b": "Llama-3.2-3B-Instruct",
    "qwen2.5-7b": "Qwen2.5-7B-Instruct",
    "qwen3-4b": "Qwen3-4B",
}
"""Part of a preset's name to the model that the paper trained."""

SETS: dict[str, dict[str, int]] = {
    "aime24": {"epochs": 60},
    "aime25": {"epochs": 60},
    "amc": {"epochs": 30},
    "math500": {"epochs": 30, "eval_steps": 63},
}
"""Problem set to its own settings. The largest one is evaluated once an epoch: as often as in the
release, evaluations would be nearly half of all responses."""

NAMES = tuple(f"{model}/{data}" for model in MODELS for data in SETS)

STUDIES: dict[str, dict[str, Any]] = {
    f"smollm2/{task}": {
        "problems": str(Path(__file__).parents[1] / "problems" / f"{task}.json"),
        "n_problems": 24,
        "n_held_out": 12,
        "epochs": 8,
        "lr": 3e-5,
        "n_votes": 16,
        "n_samples": 16,
        "max_response_tokens": n_tokens,
        "max_unread": 1.0,
        "dtype": "bfloat16",
        "threads": 1,
        "eval_every": 0,
        "checkpoint_every": 0,
        "save_model": False,
    }
    for task, n_tokens in (("multiplication", 24), ("letters", 12))
}
"""Presets for a CPU, of this project's own studies (docs/language-model.md)."""
STUDY: dict[str, Any] = {"arms": ("ttrl", "guard", "memory"), "seeds": (1,)}
"""What `guard-train compare` runs of one of `STUDIES` unless it is told otherwise."""

SHARED: tuple[tuple[str, Any, str, str], ...] = (
    ("batch_size", 8, "paper", "problems per batch"),
    ("mini_batch", 1, "paper", "problems per optimizer step, so 8 steps a batch"),
    ("lr", 5e-7, "paper", ""),
    ("warmup_ratio", 0.03, "paper", "then a cosine to 0"),
    ("kl_coef", 0.0, "paper", "no reference model"),
    ("n_votes", 64, "paper", "votes per prompt"),
    ("n_samples", 32, "paper", "samples per prompt K"),
    ("max_prompt_tokens", 1024, "paper", ""),
    ("max_response_tokens", 3072, "paper", ""),
    ("temperature", 0.6, "paper", ""),
    ("eval_samples", 4, "paper", "validation samples N"),
    ("prompt_suffix", BOX_REQUEST, "release", ""),
    ("top_p", 1.0, "release", "its library's default; below 1 the ratio would be biased"),
    ("eval_temperature", 0.6, "release", ""),
    ("eval_top_p", 0.95, "release", ""),
    ("eval_steps", 5, "release", "batches between evaluations; math500 63, an epoch (ours)"),
    ("clip_low", 0.2, "release", "its library's default"),
    ("clip_high", 0.2, "release", "its library's default"),
    ("loss", "dapo", "release", "mean over tokens, its library's default"),
    ("weight_decay", 0.01, "release", "its library's default"),
    ("max_grad_norm", 1.0, "release", "its library's default"),
    ("gradient_checkpointing", True, "release", "memory alone"),
    ("engine", "vllm", "release", "give --engine transformers where it is not installed"),
    ("chat_template", "require", "ours", "all three models are chat models"),
    ("dtype", "bfloat16", "ours", "the paper does not say"),
)
"""Settings of all 12 presets: name, value, source, remark.

The source is the paper's text, the scripts of its release (github linhxkkkk/TTRL-Guard), or ours.
The paper's micro-batch of 2 rows is a matter of memory alone, here `max_tokens_per_microbatch`.
"""

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


def model_of(name: str) -> str:
    """The model that is trained under a preset's name."""
    return MODELS.get(name.partition("/")[0], "SmolLM2-135M-Instruct")


def preset(name: str, /, model: str | None = None, **changes: Any) -> TrainConfig:
    """The settings of a preset with changes, as they stand in a settings file."""
    if name not in NAMES and name not in STUDIES:
        raise UserError(f"preset = {name!r}: unknown; one of {', '.join((*NAMES, *STUDIES))}")
    if model is None:
        raise UserError(
            f"preset = {name!r}: needs a model, give the local folder of {model_of(name)} "
            "with --model"
        )
    values, data = STUDIES.get(name), name.partition("/")[2]
    if values is None:
        shared = {name: value for name, value, _, _ in SHARED}
        values = {"problems": data, **shared, **SETS[data]}
    return from_values(values | {"model": model, **changes}, TrainConfig, f"preset {name}")


def table() -> Iterator[str]:
    """All presets for readers, line by line."""
    yield "presets, each a model of the paper on one of its problem sets:"
    for short, model in MODELS.items():
        yield from _lines(f"  {', '.join(f'{short}/{data}' for data in SETS)} ({model})")
    yield ""
    yield "what they set:"
    epochs = ", ".join(f"{data} {settings['epochs']}" for data, settings in SETS.items())
    rows = [("problems, epochs", "paper", epochs, "")]
    rows += [(name, source, _shown(value), remark) for name, value, source, remark in SHARED]
    names, sources = (max(len(row[column]) for row in rows) for column in range(2))
    for name, source, value, remark in rows:
        head = f"  {name:<{names}}  {source:<{sources}}  "
        yield from _lines(f"{head}{value}{'  ' if remark else ''}{remark}", " " * len(head))
    yield ""
    yield "paper: in its text or tables; release: in its scripts alone; ours: in neither."
    for remark in REMARKS:
        yield from _lines(remark)
    yield ""
    yield "studies of this project, for a CPU (docs/language-model.md):"
    for name, values in STUDIES.items():
        shown = {n: Path(v).name if n == "problems" else v for n, v in values.items()}
        words = ", ".join(f"{n} {_shown(v)}" for n, v in shown.items())
        yield from _lines(f"  {name} ({model_of(name)}): {words}")


def _lines(text: str, indent: str = "    ") -> list[str]:
    return textwrap.wrap(text, 100, subsequent_indent=indent)


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) and not value.isidentifier() else str(value)
