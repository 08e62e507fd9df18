"""Preparation of a model for training, with or without adapters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from lab.base.errors import UserError, first_line, install
from real.settings.groups import MemorySettings

_ADAPTER = "default"
_BASE = ".base_layer"
"""Infix that peft adds to the names of weights that it wraps."""
_LINEAR = (torch.nn.Linear, Conv1D)  # the latter in GPT-2 and its like


def add_lora(model: Any, config: MemorySettings, seed: int = 0) -> None:
    """Freeze a model and put adapters into it, in place; at first they change nothing."""
    rank, targets = config.lora_rank, config.lora_targets
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise UserError(f"lora_rank = {rank}: needs the package peft; {install('lora')}") from error
    # Named one by one: peft would take names of none beside others, and experts for linear layers.
    chosen = {id(layer) for layer in adapted_layers(model, targets)}
    names = [name for name, module in model.named_modules() if id(module) in chosen]
    # No task type: peft needs one only for wrappers of its own, which are not used here.
    alpha: Any = config.lora_alpha  # peft means integers, and takes any number
    lora = LoraConfig(r=rank, lora_alpha=alpha, target_modules=names, lora_dropout=0.0)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed % 2**64)
            inject_adapter_in_model(lora, model, adapter_name=_ADAPTER)
    except ValueError as error:  # as of some of Mamba's layers
        reason = f"peft refuses these layers ({first_line(error)})"
        raise UserError(f"lora_targets = {targets}: {reason}; name others") from error
    adapted = _adapted(model).items()
    if others := [name for name, layer in adapted if id(layer.base_layer) not in chosen]:
        raise UserError(
            f"lora_targets = {targets}: peft adapts {others[0]} in place of layers that are named "
            "like it, and no model folder can hold that; name others, such as q_proj,v_proj"
        )
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parameter.requires_grad_("lora_" in name)
        owners.setdefault(id(parameter), []).append(name)
    for shared in owners.values():
        if len(shared) > 1 and any(_BASE in name for name in shared):
            plain = " and ".join(n.replace(_BASE, "").removesuffix(".weight") for n in shared)
            raise UserError(
                f"lora_targets = {targets}: {plain} share one matrix, of which adapters would "
                "change one use alone, and no model folder can hold that; leave them out"
            )


def adapted_layers(model: Any, targets: str) -> list[Any]:
    """Return the linear layers that `add_lora` would adapt; refuse names of none, or of others."""
    head, ends = model.get_output_embeddings(), tuple(f".{n.strip()}" for n in targets.split(","))
    modules = {f".{name}": module for name, module in model.named_modules() if name}
    if targets == "all-linear":
        inside = {*_text_part(model).modules()} - {head}
        adapted = {n: m for n, m in modules.items() if _is_linear(m) and m in inside}
        missing = [] if adapted else [""]
    else:
        adapted = {n: m for n, m in modules.items() if n.endswith(ends)}
        missing = [f" as {end[1:]}" for end in ends if not any(n.endswith(end) for n in adapted)]
    others = [name[1:] for name, module in adapted.items() if not _is_linear(module)]
    if missing:
        fault = f"the model has no such linear layers{missing[0]}; give names of its layers"
        raise UserError(f"lora_targets = {targets}: {fault}, or all-linear")
    if others:
        fault = f"{others[0]} is no linear layer; leave it out"
        raise UserError(f"lora_targets = {targets}: {fault}, or give all-linear")
    return list(adapted.values())


def _text_part(model: Any) -> Any:
    """Return what lies beside parts for images, which no run has; the model if it has none."""
    return getattr(model.base_model, "language_model", model)


def _is_linear(module: Any) -> bool:
    # The routers of Llama 4 and Phi's experts are derived from linear layers, and return a pair.
    return isinstance(module, _LINEAR) and not type(module).__name__.endswith("Router")


def has_adapters(model: Any) -> bool:
    """The model went through `add_lora`."""
    return bool(_adapted(model))


def trained_parameters(model: Any) -> dict[str, Tensor]:
    """Return the weights that training changes by name, each once where some are shared."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@contextlib.contextmanager
def adapters_off(model: Any) -> Iterator[None]:
    """The model without its adapters, for a while."""
    adapted = _adapted(model).values()
    for module in adapted:
        module.enable_adapters(False)
    try:
        yield
    finally:
        for module in adapted:
            module.enable_adapters(True)


def adapter_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the adapters' weights under their names in a file of peft."""
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            plain = name.replace(f".{_ADAPTER}.", ".").removesuffix(f".{_ADAPTER}")
            yield f"base_model.model.{plain}", parameter.detach()


def adapter_config(model: Any) -> dict[str, Any]:
    """Return the fields of peft's `adapter_config.json` that describe the adapters."""
    adapted = _adapted(model)
    first = next(iter(adapted.values()))
    return {
        "peft_type": "LORA",
        "r": first.r[_ADAPTER],
        "lora_alpha": first.r[_ADAPTER] * first.scaling[_ADAPTER],
        "target_modules": sorted({name.rpartition(".")[2] for name in adapted}),
    }


@torch.no_grad()
def merged_weights(model: Any, merge: bool = True) -> Iterator[tuple[str, Tensor]]:
    """All weights by Hugging Face name, tied ones once, adapters merged in, or left out.

    The model stays as it is. One merged matrix exists at a time.
    """
    adapted = _adapted(model)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        owner, _, field = name.rpartition(".")
        layer = adapted.get(owner.removesuffix(_BASE))
        value = parameter.detach()
        if merge and layer is not None and owner.endswith(_BASE) and field == "weight":
            value = value + layer.get_delta_weight(_ADAPTER).to(value.dtype)
        yield name.replace(_BASE, ""), value


def _adapted(model: Any) -> dict[str, Any]:
    """Return the layers that have adapters, and embeddings that have, by name."""
    named = model.named_modules()
    return {n: m for n, m in named if hasattr(m, "lora_A") and hasattr(m, "base_layer")}


def choose_trained(model: Any, config: MemorySettings, seed: int = 0) -> None:
    """Let those weights alone require a gradient that a run trains: adapters, or what text reaches.

    What reads images has no gradient, and weight decay alone would move it.
    """
    if config.lora_rank:
        add_lora(model, config, seed)
    elif (text := _text_part(model)) is not model:
        parts = text, model.get_output_embeddings()
        trained = {id(p) for part in parts for p in part.parameters()}
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in trained)


def prepare_training(model: Any, config: MemorySettings, seed: int = 0) -> None:
    """Make a loaded model trainable as the settings say, and choose which layers keep what."""
    choose_trained(model, config, seed)
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if config.gradient_checkpointing:
        if not model.supports_gradient_checkpointing:
            raise UserError(
                f"gradient_checkpointing = true: {type(model).__name__} has no support for it; "
                "leave it out and lower max_tokens_per_microbatch"
            )
        model.gradient_checkpointing_enable({"use_reentrant": False})
        # One within another is computed again with that one; both would spoil the gradient.
        inner = {part for layer in layers for part in layer.modules() if part is not layer}
        outer = [layer for layer in layers if layer not in inner]
        # Of the last ones, whose activations the backward pass frees first.
        kept = outer[max(0, len(outer) - config.kept_layers) :]
        for layer in layers:
            layer.gradient_checkpointing = layer not in inner and layer not in kept
    if config.compile_layers:
        for layer in layers:
            layer.compile(dynamic=True)
        # Not where the model decodes: each token would find a cache of a new size.
        model.register_forward_pre_hook(_eager_with_cache, with_kwargs=True)
        model.register_forward_hook(_compiled_again, always_call=True)


def _eager_with_cache(model: Any, arguments: Any, named: Mapping[str, Any]) -> None:
    if named.get("past_key_values") is not None:
        torch.compiler.set_stance("force_eager")


def _compiled_again(*_: Any) -> None:
    torch.compiler.set_stance("default")
