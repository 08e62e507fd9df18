"""The settings of a run from options, files and the machine, and the packages they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lab.base.errors import UserError, installed, require_packages
from lab.base.settings import from_values, toml_values
from lab.cli import with_arm_options
from real.settings.config import TrainConfig
from real.settings.engines import named
from real.settings.groups import EngineSettings
from real.settings.presets import NAMES, model_of, preset


def settings_of(
    given: Mapping[str, Any], with_model: bool = False, file: dict[str, Any] | None = None
) -> TrainConfig:
    """Return the settings of the preset, with those of the file and of the arm over them.

    Of the options given `--config`, `--preset`, `--arm`, `--profile` and `--rule` are read, and the
    options that these settings are checked against. `with_model` names the preset's model where
    none is given; `file` are the values of a settings file that `lab.cli.arms_of` has read.
    """
    path, name = given.get("config"), given.get("preset")
    if {"lr", "lrs"} <= given.keys():
        raise UserError("--lr and --lrs: both set the learning rate; give --lrs alone")
    file = toml_values(path) if file is None else file
    values = with_arm_options(given, file, name)
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
    applies = device == "cuda" and config.own_model is not None
    chosen = {n: value for n, value in choices.items() if applies and getattr(config, n) == "auto"}
    settled = replace(config, **chosen).settled()
    if device == "cuda" and "flash" in settled.attention and settled.dtype == "float32":
        raise UserError(
            f"attention = {settled.attention!r}: takes 16 bits alone, and dtype is float32; take "
            "dtype = bfloat16, or leave it out"
        )
    if not chosen:
        return settled, []
    words = ", ".join(f"{name} {value}" for name, value in chosen.items())
    lacks = "engine" in chosen and not vllm
    hint = "; vLLM, which is not installed, samples many times faster" if lacks else ""
    return settled, [f"chosen for this GPU: {words}{hint}"]


def check_engine_tp(config: EngineSettings, ranks: int) -> None:
    """Refuse engines that cannot be dealt over the ranks of a machine."""
    if config.engine_tp == 1:
        return
    if not config.engine_kind.splits:
        raise UserError(
            f"engine_tp = {config.engine_tp}: belongs to engine = {named('splits')}, not to "
            f"{config.engine!r}; leave it out"
        )
    if ranks % config.engine_tp:
        raise UserError(
            f"engine_tp = {config.engine_tp}: does not divide the {ranks} ranks of a machine; take "
            "a divisor of them, or start as many ranks with torchrun --nproc-per-node"
        )


LOGGERS = {"tensorboard": "log", "wandb": "wandb"}
"""Logger to the extra of this package that installs it."""


def require_loggers(kinds: Sequence[str]) -> None:
    """Refuse loggers whose library is missing, before anything is loaded."""
    for kind in kinds:
        require_packages(LOGGERS[kind], kind, name="log")
