"""Where settings come from: presets, files, options, the machine, a run folder; without torch."""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lab.arm_settings import arm_of
from lab.base.arms import title
from lab.base.errors import UserError
from lab.base.settings import check_unchanged, from_values, to_values, toml_values
from lab.cli import with_arm_options
from lab.trace.manifest import FILE_NAME, Manifest, read_manifest
from real.settings.config import TrainConfig
from real.settings.groups import BOX_REQUEST, EngineSettings

_WIDTH = 100

Source = Literal["paper", "release", "ours"]


class Choice(NamedTuple):
    """One setting of a preset."""

    name: str
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
`max_tokens_per_microbatch`."""

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
        shared = {choice.name: choice.value for choice in SHARED}
        values = {"problems": data, **shared, **SETS[data]}
    return from_values(values | {"model": model, **changes}, TrainConfig, f"preset {name}")


def table() -> Iterator[str]:
    """All presets for readers, line by line."""
    yield "presets, each a model of the paper on one of its problem sets:"
    for short, model in MODELS.items():
        yield from _lines(f"  {', '.join(f'{short}/{data}' for data in SETS)} ({model})")
    yield ""
    yield "what they set:"
    epochs = ", ".join(f"{data} {own['epochs']}" for data, own in SETS.items())
    rows = [("problems, epochs", "paper", epochs, "")]
    rows += [(c.name, c.source, _shown(c.value), c.remark) for c in SHARED]
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
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent)


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) and not value.isidentifier() else str(value)


def settings_of(
    given: Mapping[str, Any], with_model: bool = False, has_arms: bool = False
) -> TrainConfig:
    """Return the settings of the preset, with those of the file and of the arm over them.

    Of the options given `--config`, `--preset`, `--arm`, `--profile` and `--rule` are read, and the
    options that these settings are checked against. `with_model` names the preset's model where
    none is given; with `has_arms` the file may list arms, which `lab.cli.arms_of` reads.
    """
    path, name = given.get("config"), given.get("preset")
    values = with_arm_options(given, {} if path is None else toml_values(path), name)
    if has_arms:
        values.pop("arms", None)
    # Read before the other options: problems without a model are refused, rules without a judge.
    early = ("model", "problems", "tiny_task", "tiny_verifies")
    values |= {name: given[name] for name in early if name in given}
    if name is not None:
        if with_model and name in NAMES:
            values.setdefault("model", model_of(name))
        return preset(name, **values)
    return from_values(values, TrainConfig, str(path or ""))


def settled_for(
    config: TrainConfig, device: str, vllm: bool | None = None
) -> tuple[TrainConfig, list[str]]:
    """Return settled settings, chosen for `cuda` unless the model is tiny, and a notice of it."""
    vllm = installed("vllm") if vllm is None else vllm
    choices: Any = {"dtype": "bfloat16", "engine": "vllm" if vllm else "transformers"}
    chosen = {name: value for name, value in choices.items() if getattr(config, name) == "auto"}
    if device != "cuda" or config.own_model is None or not chosen:
        return config.settled(), []
    words = ", ".join(f"{name} {value}" for name, value in chosen.items())
    lacks = "engine" in chosen and not vllm
    hint = "; vLLM, which is not installed, samples many times faster" if lacks else ""
    return replace(config, **chosen).settled(), [f"chosen for this GPU: {words}{hint}"]


def check_engine_tp(config: EngineSettings, ranks: int) -> None:
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


def installed(package: str) -> bool:
    """Return whether a package can be imported; a mere folder of its name does not count."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def require_torch() -> None:
    """Say what to install where the trainer's libraries are missing."""
    if missing := ", ".join(name for name in NEEDED if not installed(name)):
        raise UserError(f"{missing} not installed; install with pip install 'ttrl-guard-lab[real]'")


_EXTRAS = {"tensorboard": "log", "wandb": "wandb"}
"""Logger to the extra of this package that installs it."""


def require_loggers(kinds: Sequence[str]) -> None:
    """Refuse loggers whose library is missing, before anything is loaded."""
    for kind in kinds:
        if not installed(kind):
            extra = f"pip install 'ttrl-guard-lab[{_EXTRAS[kind]}]'"
            raise UserError(f"log = {kind!r}: not installed; install with {extra}")


CHANGEABLE = frozenset(
    (
        *("attention", "checkpoint_every", "checkpoint_keep", "checkpoint_minutes", "data_dir"),
        *("device", "engine_adapters", "engine_exchange", "engine_memory", "engine_timeout"),
        *("engine_tp", "engine_url", "gradient_checkpointing", "hub", "log", "max_bad_steps"),
        *("max_mismatch", "max_rows", "max_unread", "max_tokens_per_microbatch", "model"),
        *(
            "offload_optimizer",
            "problems",
            "rank_timeout",
            "restart_engine",
            "save_model",
            "threads",
        ),
    )
)
"""Settings of where and how the work is done. Some change the rounding, so that the resumed run is
correct but not equal to the bit. `model` and `problems` may move: their content is compared."""


def manifest_of(
    config: TrainConfig,
    n_problems: int,
    task: str,
    backend: str,
    arm: str | None = None,
    **facts: Any,
) -> Manifest:
    """Return the `run.json` of a run that starts now."""
    name = arm or arm_of(config).name
    return Manifest.new(
        "real",
        name,
        title(name),
        n_problems=n_problems,
        n_votes=config.n_votes,
        config=to_values(config),
        seeds=[config.seed],
        task=task,
        backend=backend,
        extra={"step_factor": config.step_factor, **facts},
    )


def stored_config(folder: Path) -> TrainConfig:
    """Return the settings of a run folder."""
    manifest = read_manifest(folder)
    if manifest.world != "real":
        raise UserError(f"{folder}: a run of the simulator; give a run of the trainer")
    return _config(manifest.config, folder)


def check_same(before: Mapping[str, Any], config: TrainConfig, folder: Path, *fixed: str) -> None:
    """Refuse settings that would make it another run."""
    old = to_values(_config(before, folder))
    check_unchanged(folder, old, to_values(config), CHANGEABLE.difference(fixed))


def _config(values: Mapping[str, Any], folder: Path) -> TrainConfig:
    return from_values(values, TrainConfig, f"{folder}/{FILE_NAME}").settled()
