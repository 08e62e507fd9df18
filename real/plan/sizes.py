"""Sizes of a model that is known by its config alone, and the speed of GPUs."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from real.model.folder import PREFIX, check_folder
from real.model.policy import loading, widen_head
from real.model.prepare import adapted_layers
from real.settings.config import TrainConfig
from real.settings.presets import SHAPES


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
    width: int
    """Of the residual stream."""
    n_inner: int
    """Width of the feed-forward networks."""
    n_query: int
    """Numbers of the queries of one token in a layer."""
    n_kv: int
    """Numbers of the keys and values of one token, all layers."""
    n_kv_heads: int
    """Heads of keys and values in a layer; no GPU holds less than one."""
    n_heads: int
    """Heads of queries in a layer."""
    norms_heads: bool
    """Whether queries and keys are normalized."""
    vocabulary: int
    n_head: int
    """Of the output head."""
    tied: bool
    """Whether head and embeddings share their weights."""
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
    fault = f"model {model}: its config could not be read"
    with loading(fault, "give a causal language model"):
        return AutoConfig.from_pretrained(
            name, local_files_only=name == model, trust_remote_code=False
        )


def multiplied(model: Any) -> int:
    """Return the weights of a model but for input embeddings of their own, which are looked up."""
    n_weights = sum(p.numel() for p in model.parameters())
    inputs = model.get_input_embeddings().weight
    return n_weights - (0 if _is_tied(model) else inputs.numel())


class PlannedModel:
    """A model without data, whose weights are counted."""

    def __init__(self, config: Any) -> None:
        """Build it on the device meta from a config of transformers.

        Raises:
            UserError: transformers has no such causal language model.
        """
        config = copy.deepcopy(config)
        builder: Any = AutoModelForCausalLM
        fault = "model: no memory plan for it"
        with loading(fault, "give a causal language model"), torch.device("meta"):
            self._model = builder.from_config(config)
        widen_head(self._model)
        self._text = config.get_text_config()

    def size(self, lora_rank: int = 0, lora_targets: str = "all-linear") -> ModelSize:
        """Return its numbers of weights, with those of adapters of the given rank."""
        model, text = self._model, self._text
        layers = [
            sum(p.numel() for p in module.parameters())
            for module in model.modules()
            if isinstance(module, GradientCheckpointingLayer)
        ]
        n_weights = sum(p.numel() for p in model.parameters())
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        per_head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        adapted = adapted_layers(model, lora_targets) if lora_rank else []
        return ModelSize(
            n_weights=n_weights,
            n_multiplied=multiplied(model),
            n_layer=max(layers, default=n_weights),
            n_outside=n_weights - sum(layers),
            n_layers=text.num_hidden_layers,
            width=text.hidden_size,
            n_inner=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
            n_query=text.num_attention_heads * per_head,
            n_kv=2 * text.num_hidden_layers * heads * per_head,
            n_kv_heads=heads,
            n_heads=text.num_attention_heads,
            norms_heads=any(name.endswith("q_norm") for name, _ in model.named_modules()),
            vocabulary=text.vocab_size,
            n_head=math.prod(model.get_output_embeddings().weight.shape),
            tied=_is_tied(model),
            n_adapters=sum(lora_rank * (a.in_features + a.out_features) for a in adapted),
        )


def _is_tied(model: Any) -> bool:
    head = model.get_output_embeddings()
    return model.get_input_embeddings().weight is getattr(head, "weight", None)


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU by its data sheet."""

    memory: float
    """GiB."""
    flops: float
    """Dense bfloat16 operations per second."""
    bandwidth: float
    """Bytes per second between the GPU and its memory."""


CARDS = {
    "a100": Card(80, 312e12, 2.0e12),
    "h100": Card(80, 989e12, 3.35e12),
    "h200": Card(141, 989e12, 4.8e12),
}
_VARIANTS = {"pcie", "nvl", "mig"}
"""Words in the names of GPUs that are slower than the one of `CARDS`."""


def card_named(name: str) -> Card | None:
    """Return the GPU of that name, as CUDA gives it; None if its data sheet is not known here."""
    words = set(name.lower().replace("-", " ").split())
    found = [card for kind, card in CARDS.items() if kind in words]
    return found[0] if found and not words & _VARIANTS else None


def update_flops(n_multiplied: int, config: TrainConfig) -> float:
    """Return the operations of an update per token; recomputing is none of its purpose.

    A product with a weight is two operations; its gradients are two more products, or one where
    the weight is frozen. Attention scores, a few per cent, are left out.
    """
    per_weight = (4 if config.lora_rank else 6) + 2 * (config.importance_cap is not None)
    return float(per_weight * n_multiplied)
