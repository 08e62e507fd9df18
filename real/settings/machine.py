"""Settings that depend on the machine. Imports no torch."""

from __future__ import annotations

from dataclasses import replace

from lab.errors import UserError
from real.settings.config import TrainConfig


def settled_for(config: TrainConfig, gpu: bool, vllm: bool) -> tuple[TrainConfig, list[str]]:
    """Return settled settings, with bfloat16 and vLLM where a model is trained on a GPU.

    The tiny model stays in single precision on transformers: it is too small to gain.

    Args:
        config: settings in which dtype and engine may be `auto`.
        gpu: whether the trainer runs on a GPU.
        vllm: whether vLLM is installed.

    Returns:
        The settings, and a notice of what was chosen.
    """
    if not gpu or config.model is None:
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
    """Refuse engines that cannot be dealt over the ranks of a machine.

    Args:
        config: settled settings.
        ranks: of this machine, one for each GPU.

    Raises:
        UserError: the engine is not vLLM in its own process, or groups of ranks do not come out.
    """
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
