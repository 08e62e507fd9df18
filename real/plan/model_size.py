"""Numbers of weights and the memory of a pass, of a model that is known by its config alone."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from lab.errors import UserError, first_line
from real.model.folder import PREFIX, check_folder
from real.model.lora import adapted_layers
from real.model.policy import LOAD_ERRORS, quiet
from real.model.wide_head import widen_head
from real.plan.rehearsal import KERNEL, peak_bytes
from real.settings.presets import SHAPES

_FEW = (2, 4)
"""Layers of the passes from which those of all layers are extrapolated."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Numbers of weights of a causal language model."""

    n_weights: int
    """All, shared ones once."""
    n_multiplied: int
    """Of the matrices that every token is multiplied with, see `multiplied`."""
    n_layer: int
    """Of the largest layer."""
    n_outside: int
    """Outside of the layers: embeddings, output head, last norm."""
    n_layers: int
    n_kv: int
    """Numbers of the keys and values of one token, all layers."""
    n_kv_heads: int
    """Heads of keys and values in a layer; no GPU holds less than one."""
    n_heads: int
    """Heads of queries in a layer."""
    vocabulary: int
    n_head: int
    """Of the output head, which may share them with the embeddings."""
    n_adapters: int = 0
    """Of the low-rank adapters, in addition."""


def read_config(model: str) -> Any:
    """Return the config of a local model folder, of `hf:owner/name`, or of a preset's model.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    if model in SHAPES:
        return AutoConfig.for_model(**SHAPES[model])
    name = model.removeprefix(PREFIX)
    if name == model:
        check_folder(Path(model))
    try:
        with quiet():
            return AutoConfig.from_pretrained(
                name, local_files_only=name == model, trust_remote_code=False
            )
    except LOAD_ERRORS as error:
        raise UserError(
            f"model {model}: its config could not be read ({first_line(error)}); "
            "give a causal language model"
        ) from error


def multiplied(model: Any) -> int:
    """Return the weights of a model but for input embeddings of their own, which are looked up."""
    n_weights = sum(p.numel() for p in model.parameters())
    inputs, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    return n_weights - (0 if inputs is getattr(head, "weight", None) else inputs.numel())


class PlannedModel:
    """A model without data: its weights are counted, and its passes rehearsed."""

    def __init__(self, config: Any) -> None:
        """Build it on the device meta.

        Args:
            config: of a causal language model of transformers.

        Raises:
            UserError: transformers has no such causal language model.
        """
        self.config = copy.deepcopy(config)
        builder: Any = AutoModelForCausalLM
        try:
            with torch.device("meta"):
                model = builder.from_config(self.config, attn_implementation=KERNEL)
        except LOAD_ERRORS as error:
            raise UserError(
                f"model: no memory plan for it ({first_line(error)}); give a causal language model"
            ) from error
        widen_head(model)
        self._model = model.eval()
        self._peak = cache(self._rehearsed)

    def size(self, lora_rank: int = 0, lora_targets: str = "all-linear") -> ModelSize:
        """Return its numbers of weights, with those of adapters of the given rank."""
        layers = [
            sum(p.numel() for p in module.parameters())
            for module in self._model.modules()
            if isinstance(module, GradientCheckpointingLayer)
        ]
        n_weights = sum(p.numel() for p in self._model.parameters())
        text = self.config.get_text_config()
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        adapted = adapted_layers(self._model, lora_targets) if lora_rank else []
        return ModelSize(
            n_weights=n_weights,
            n_multiplied=multiplied(self._model),
            n_layer=max(layers, default=n_weights),
            n_outside=n_weights - sum(layers),
            n_layers=text.num_hidden_layers,
            n_kv=2 * text.num_hidden_layers * heads * width,
            n_kv_heads=heads,
            n_heads=text.num_attention_heads,
            vocabulary=text.vocab_size,
            n_head=math.prod(self._model.get_output_embeddings().weight.shape),
            n_adapters=sum(lora_rank * (a.in_features + a.out_features) for a in adapted),
        )

    def pass_bytes(
        self,
        dtype: torch.dtype,
        tokens: int,
        longest: int,
        chunk_elements: int,
        checkpointing: bool,
        trains_head: bool,
    ) -> int:
        """Return the most bytes of a pass besides parameters, gradients and optimizer state.

        With adapters this is a little too much: gradients of frozen matrices are counted.

        Args:
            dtype: of the weights.
            tokens: of one forward pass.
            longest: tokens of the longest sequence, which may be more than `tokens`.
            chunk_elements: logits that exist at once.
            checkpointing: whether layers keep no activations.
            trains_head: whether embeddings and head have gradients.
        """
        length = max(1, min(longest, self._most_positions(longest)))
        n_rows = max(1, tokens // length)
        return self._peak(dtype, n_rows, length, chunk_elements, checkpointing, trains_head)

    def _most_positions(self, longest: int) -> int:
        return getattr(self.config.get_text_config(), "max_position_embeddings", None) or longest

    def _rehearsed(
        self,
        dtype: torch.dtype,
        n_rows: int,
        length: int,
        chunk_elements: int,
        checkpointing: bool,
        trains_head: bool,
    ) -> int:
        model: Any = self._model.to(dtype)
        head: nn.Module = model.get_output_embeddings()
        model.requires_grad_(True)
        for module in (head, model.get_input_embeddings()):
            module.requires_grad_(trains_head)
        if checkpointing and model.supports_gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        elif not checkpointing and model.is_gradient_checkpointing:
            model.gradient_checkpointing_disable()
        stack = _stack(model)
        if stack is None or len(stack[2]) <= _FEW[1]:
            return peak_bytes(model, n_rows, length, chunk_elements)
        parent, name, layers = stack
        peaks: list[int] = []
        for n_layers in _FEW:
            setattr(parent, name, layers[:n_layers])
            peaks.append(peak_bytes(model, n_rows, length, chunk_elements))
        setattr(parent, name, layers)
        # Each further layer adds the same: what it keeps for its backward pass.
        return peaks[0] + (len(layers) - _FEW[0]) * (peaks[1] - peaks[0]) // (_FEW[1] - _FEW[0])


def _stack(model: Any) -> tuple[nn.Module, str, nn.ModuleList] | None:
    """Return the list of all layers, with the module that holds it and its name there."""
    n_layers = sum(isinstance(m, GradientCheckpointingLayer) for m in model.modules())
    for parent in model.modules():
        for name, child in parent.named_children():
            alike = isinstance(child, nn.ModuleList) and len(child) == n_layers
            if alike and all(isinstance(m, GradientCheckpointingLayer) for m in child):
                return parent, name, child
    return None
