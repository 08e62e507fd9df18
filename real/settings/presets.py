"""Where settings come from: presets, a file, options, the machine. Imports no torch.

Presets are the cells of the paper, each a model on a problem set; their values are data here, each
with its source.
"""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lab.base.errors import UserError
from lab.base.settings import from_values, toml_values
from lab.cli import read_option, with_arm_options
from real.settings.config import BOX_REQUEST, TrainConfig

_WIDTH = 100
"""Columns of a terminal that tables fit."""

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

PROBLEMS = {"aime24": 30, "aime25": 30, "amc": 83, "math500": 500}
"""Problem set to its number of problems."""

MOST_EVALUATED = 100
"""Problems of a set up to which it is evaluated as often as in the release; larger ones once an
epoch, since evaluations would be nearly half of all responses."""

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
    Choice("eval_steps", 5, "release", "batches between evaluations; math500 63, an epoch (ours)"),
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


def model_of(name: str) -> str:
    """The model that the paper trained under a preset's name."""
    return MODELS[name.partition("/")[0]]


def preset(name: str, model: str, **changes: Any) -> TrainConfig:
    """The settings of one cell of the paper."""
    return preset_config(name, {"model": model, **changes})


def preset_config(name: str, changes: Mapping[str, Any]) -> TrainConfig:
    """The settings of one cell with changes as plain values, as they stand in a settings file."""
    if name not in NAMES:
        raise UserError(f"preset = {name!r}: unknown; one of {', '.join(NAMES)}")
    data = name.partition("/")[2]
    values: dict[str, Any] = {"problems": data, "epochs": EPOCHS[data]}
    values |= {choice.name: choice.value for choice in SHARED}
    if PROBLEMS[data] > MOST_EVALUATED:
        values["eval_steps"] = -(-PROBLEMS[data] // values["batch_size"])
    values |= changes
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
        yield from _lines(f"  {', '.join(f'{model}/{data}' for data in EPOCHS)} ({title})")
    yield ""
    yield "what they set:"
    rows = [("problems, epochs", "paper", _epochs(), "")]
    rows += [(c.name, c.source, _shown(c.value), c.remark) for c in SHARED]
    names, sources = (max(len(row[column]) for row in rows) for column in range(2))
    for name, source, value, remark in rows:
        head = f"  {name:<{names}}  {source:<{sources}}  "
        yield from _lines(f"{head}{value}{'  ' if remark else ''}{remark}", " " * len(head))
    yield ""
    yield "paper: in its text or tables; release: in its scripts alone; ours: in neither."
    for remark in REMARKS:
        yield from _lines(remark)


def _lines(text: str, indent: str = "    ") -> list[str]:
    """A text in lines that fit a terminal."""
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent)


def _epochs() -> str:
    return ", ".join(f"{data} {epochs}" for data, epochs in EPOCHS.items())


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) and not value.isidentifier() else str(value)


def settings_of(
    argv: Sequence[str], with_model: bool = False, has_arms: bool = False
) -> TrainConfig:
    """Returns the settings of the preset, with those of the file and of the arm over them.

    Args:
        argv: the command line; `--config`, `--preset`, `--arm`, `--profile` and `--rule` are read,
            and the options that these settings are checked against: `--model`, `--problems`,
            `--tiny-task`, `--tiny-verifies`.
        with_model: name the preset's model where none is given.
        has_arms: the file may list arms, which `lab.cli.arms_of` reads.
    """
    path, name = read_option(argv, "--config"), read_option(argv, "--preset")
    values = with_arm_options(argv, {} if path is None else toml_values(Path(path)), name)
    if has_arms:
        values.pop("arms", None)
    # Read before the other options: problems without a model are refused, and rules without a
    # judge.
    for setting in ("model", "problems", "tiny_task"):
        given = read_option(argv, f"--{setting.replace('_', '-')}")
        if given is not None:
            values[setting] = given
    if "--tiny-verifies" in argv:
        values["tiny_verifies"] = True
    if name is not None:
        if with_model and name in NAMES:
            values.setdefault("model", model_of(name))
        return preset_config(name, values)
    return from_values(values, TrainConfig, path or "")


def settled_for(config: TrainConfig, gpu: bool, vllm: bool) -> tuple[TrainConfig, list[str]]:
    """Return settled settings, with bfloat16 and vLLM where a model is trained on a GPU.

    The tiny model stays in single precision on transformers: it is too small to gain.

    Returns:
        The settings, and a notice of what was chosen.
    """
    if not gpu or config.own_model is None:
        return config.settled(), []
    choices = {"dtype": "bfloat16", "engine": "vllm" if vllm else "transformers"}
    chosen = {name: value for name, value in choices.items() if getattr(config, name) == "auto"}
    if not chosen:
        return config.settled(), []
    words = ", ".join(f"{name} {value}" for name, value in chosen.items())
    lacks = "engine" in chosen and not vllm
    hint = "; vLLM, which is not installed, samples many times faster" if lacks else ""
    return replace(config, **chosen).settled(), [f"chosen for this GPU: {words}{hint}"]


def check_engine_tp(config: TrainConfig, ranks: int) -> None:
    """Refuse engines that cannot be dealt over the ranks of a machine."""
    if config.engine_tp == 1:
        return
    if config.engine != "vllm":
        raise UserError(
            f"engine_tp = {config.engine_tp}: belongs to engine = 'vllm', not to "
            f"{config.engine!r}; leave it out"
        )
    if ranks % config.engine_tp:
        raise UserError(
            f"engine_tp = {config.engine_tp}: does not divide the {ranks} ranks of a machine; take "
            "a divisor of them, or start as many ranks with torchrun --nproc-per-node"
        )


NEEDED = ("torch", "transformers", "safetensors")
INSTALL = "pip install 'ttrl-guard-lab[real]'"


def installed(package: str) -> bool:
    """Return whether a package can be imported; a mere folder of its name does not count."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def require_torch() -> None:
    """Say what to install where the trainer's libraries are missing."""
    missing = [name for name in NEEDED if not installed(name)]
    if missing:
        raise UserError(f"{', '.join(missing)} not installed; install with {INSTALL}")
