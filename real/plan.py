"""Numbers of a model's weights, and the bytes that a run needs, from its settings alone."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from guard_core.rules import Need
from real.engines.vllm_engine import batched_tokens
from real.model.folder import PREFIX, check_folder
from real.model.policy import layer_configs, layer_heads, loading, widen_head
from real.model.prepare import adapted_layers
from real.ranks import model_copies
from real.settings.config import TrainConfig, needs_stats, rule_of
from real.settings.groups import MemorySettings
from real.update.logprobs import GPU_CHUNK_ELEMENTS
from real.update.optimizer import BLOCK_ELEMENTS


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Numbers of weights of a causal language model."""

    n_weights: int
    """All, shared ones once."""
    n_multiplied: int
    """Of the matrices that a token is multiplied with, see `multiplied`."""
    n_layer: int
    n_outside: int
    """Outside of the layers: embeddings, output head, last norm."""
    n_layers: int
    width: int
    """Of the residual stream."""
    n_inner: int
    n_query: int
    """Numbers of the queries of one token in a layer."""
    n_kv: int
    """Numbers of the keys and values of one token, all layers."""
    n_kv_heads: int
    """Heads of keys and values in a layer; no GPU holds less than one."""
    n_heads: int
    norms_heads: bool
    vocabulary: int
    n_head: int
    tied: bool
    stored: torch.dtype | None = None
    """Precision of the weights in their file, as far as the config says it."""
    n_adapters: int = 0


_SHAPE = (
    *("model_type", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "vocab_size", "max_position_embeddings"),
    *("tie_word_embeddings", "head_dim"),
)
SHAPES: dict[str, dict[str, Any]] = {
    name: dict(zip(_SHAPE, sizes, strict=False), dtype="bfloat16")
    for name, *sizes in (
        ("Llama-3.2-3B-Instruct", "llama", 3072, 8192, 28, 24, 8, 128_256, 131_072, True, 128),
        ("Qwen2.5-7B-Instruct", "qwen2", 3584, 18_944, 28, 28, 4, 152_064, 32_768, False),
        ("Qwen3-4B", "qwen3", 2560, 9728, 36, 32, 8, 151_936, 40_960, True, 128),
    )
}
"""Sizes from the models' published config.json, for plans without the model's folder."""


def read_config(model: str) -> Any:
    """Return the config of a local model folder, of `hf:owner/name`, or of a preset's model."""
    if model in SHAPES:
        return AutoConfig.for_model(**SHAPES[model])
    name = model.removeprefix(PREFIX)
    if name == model:
        check_folder(Path(model))
    with loading(f"model {model}: its config could not be read", "give a causal language model"):
        how = {"local_files_only": name == model, "trust_remote_code": False}
        return AutoConfig.from_pretrained(name, **how)


_OF_TOKEN = "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_k"
"""Names in configs of the number of experts that a token passes through."""


def multiplied(model: Any) -> int:
    """Return the weights that a token is multiplied with: of experts its own few alone.

    Not those of input embeddings of their own, which are looked up.
    """
    text = model.config.get_text_config()
    named = (getattr(text, name, None) for name in _OF_TOKEN)
    n_experts = next((n for n in named if isinstance(n, int)), 0)
    total = 0
    for name, p in model.named_parameters():
        is_experts = n_experts and p.ndim == 3 and ".experts." in name
        total += p.numel() * n_experts // p.shape[0] if is_experts else p.numel()
    return total - (0 if _is_tied(model) else model.get_input_embeddings().weight.numel())


def _is_tied(model: Any) -> bool:
    head = model.get_output_embeddings()
    return model.get_input_embeddings().weight is getattr(head, "weight", None)


class PlannedModel:
    """A model without data, whose weights are counted."""

    def __init__(self, config: Any) -> None:
        """Build it on the device meta from a config of transformers."""
        config = copy.deepcopy(config)
        self._stored: torch.dtype | None = config.dtype
        builder: Any = AutoModelForCausalLM
        remedy = "give a causal language model"
        with loading("model: no memory plan for it", remedy), torch.device("meta"):
            self._model = builder.from_config(config)
        widen_head(self._model)
        self._text = config.get_text_config()

    def size(self, config: MemorySettings | None = None) -> ModelSize:
        """Return its numbers of weights, with those of adapters if they are trained."""
        model, text, width = self._model, self._text, self._text.hidden_size
        blocks = (m for m in model.modules() if isinstance(m, GradientCheckpointingLayer))
        layers = [sum(p.numel() for p in block.parameters()) for block in blocks]
        n_weights, parts = sum(p.numel() for p in model.parameters()), layer_configs(text)
        # A recurrent model's state counts as the cache of one wide head, which is more.
        heads = [layer_heads(part) for part in parts]
        sizes = [getattr(p, "head_dim", None) or width // layer_heads(p)[0] for p in parts]
        inner = [getattr(part, "intermediate_size", None) or 4 * width for part in parts]
        rank = config.lora_rank if config else 0
        adapted = adapted_layers(model, config.lora_targets) if config and rank else []
        return ModelSize(
            n_weights=n_weights,
            n_multiplied=multiplied(model),
            n_layer=max(layers, default=n_weights),
            n_outside=n_weights - sum(layers),
            n_layers=text.num_hidden_layers,
            width=width,
            n_inner=int(np.max(inner)),  # Gemma 3n names a list for all layers
            n_query=max(n * size for (n, _), size in zip(heads, sizes, strict=True)),
            n_kv=2 * sum(n * size for (_, n), size in zip(heads, sizes, strict=True)),
            n_kv_heads=min(n for _, n in heads),
            n_heads=min(n for n, _ in heads),
            norms_heads=any(name.endswith("q_norm") for name, _ in model.named_modules()),
            vocabulary=text.vocab_size,
            n_head=math.prod(model.get_output_embeddings().weight.shape),
            tied=_is_tied(model),
            stored=self._stored,
            n_adapters=sum(rank * sum(a.weight.shape) for a in adapted),
        )


GIB = 2**30
RESERVE = 0.06
"""Share of a GPU's memory that stays free: fragments, and tensors that no plan counts."""
CONTEXT = GIB
"""Taken by CUDA's and NCCL's libraries in each process on a GPU. Assumed, not measured."""
GRAPHS = GIB
"""vLLM's CUDA graphs, which stay while it sleeps. Assumed, not measured."""
HOST_PROCESS = 3 * GIB
"""Main memory of a process without its weights. Assumed, not measured."""
WIDE = 4
"""Bytes of a number of gradients, moments and masters."""
LEAST_ROWS = 8
"""Responses of full length that an engine's cache must hold."""


class MemoryPart(NamedTuple):
    """Memory for one purpose."""

    name: str
    update: int
    """Bytes during the update."""
    sampling: int
    """Bytes while the engine samples."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory of a run."""

    parts: tuple[MemoryPart, ...]
    """Per GPU."""
    usable: int
    """Bytes of a GPU without the reserve."""
    cache_tokens: int
    """Tokens whose keys and values an engine holds; negative where its weights do not even fit."""
    least_tokens: int
    cache: int
    """Bytes of each GPU for vLLM's cache; negative as `cache_tokens`, 0 for other engines."""
    engine_share: float
    """Share of the GPU that vLLM takes, weights and cache and all."""
    engine_weights: int
    """Bytes of weights that one GPU reads for each decoded token."""
    start: int
    """Most bytes before the first update: the whole model, or shards and the part cut next."""
    host: int
    """Bytes of main memory of one machine, all its processes together."""
    checkpoint: int

    @property
    def update(self) -> int:
        """Most bytes of the update."""
        return sum(part.update for part in self.parts)

    @property
    def sampling(self) -> int:
        """Most bytes while the engine samples."""
        return sum(part.sampling for part in self.parts)

    @property
    def fits(self) -> bool:
        """Both phases fit, with a cache of a useful size."""
        enough = self.cache_tokens >= self.least_tokens
        return enough and max(self.start, self.update, self.sampling) <= self.usable


def plan_memory(
    size: ModelSize, config: TrainConfig, world: int, card: int, nodes: int = 1
) -> MemoryPlan:
    """Return the memory of a run of `world` GPUs on `nodes` machines; nothing is allocated."""
    parts = [*state_parts(size, config, world), *_pass_parts(size, config, world)]
    parts.append(MemoryPart("libraries", CONTEXT, CONTEXT))
    needed = sum(part.update if config.async_level else part.sampling for part in parts)
    usable = int(card * (1 - RESERVE))
    of_engine, tokens, cache, share = _engine(size, config, world, card, usable - needed)
    if config.async_level:  # the engine samples during the update
        of_engine = [part._replace(update=part.sampling) for part in of_engine]
    # The engine of each rank gets a copy of the model before that is sharded.
    start = size.n_weights * width(config) * (2 if world > 1 and config.engine_kind.native else 1)
    if world > 1 and config.engine_kind.own_process:
        of_number = width(config) if size.n_adapters else WIDE
        start = parts[0].update + of_number * max(size.n_layer, size.n_outside)
    return MemoryPlan(
        parts=tuple(part for part in (*parts, *of_engine) if part.update or part.sampling),
        usable=usable,
        cache_tokens=tokens,
        least_tokens=LEAST_ROWS * config.longest,
        cache=cache,
        engine_share=share,
        engine_weights=_engine_weights(size, config),
        start=start + 2 * CONTEXT,
        host=_host(size, config, world, nodes),
        checkpoint=checkpoint_bytes(trained_and_frozen(size)[0], config),
    )


def state_parts(size: ModelSize, config: TrainConfig, world: int) -> list[MemoryPart]:
    """Return weights, masters, gradients and moments of one rank."""
    shards = world // model_copies(world, config.fsdp_size)
    narrow, (trained, frozen) = width(config), trained_and_frozen(size)
    # Where weights are sharded, the shards are the masters.
    kept = WIDE if world > 1 else narrow
    bytes_of = {
        "weights": frozen * narrow + trained * kept,
        "masters": trained * (0 if config.offload_optimizer or kept == WIDE else WIDE),
        "gradients": trained * WIDE,
        "moments": 0 if config.offload_optimizer else 2 * trained * WIDE,
        "reference": trained * narrow if config.kl_coef > 0 and not frozen else 0,
    }
    parts = [MemoryPart(name, n // shards, n // shards) for name, n in bytes_of.items()]
    # While an average answers, the weights are kept aside.
    mean, aside = WIDE * trained // shards, trained * kept // shards
    if Need.TEACHER in rule_of(config).needs:
        parts.append(MemoryPart("teacher", mean, mean + aside))
    if config.ema_decay > 0:
        mean = 0 if config.offload_optimizer and kept != WIDE else mean
        parts.append(MemoryPart("average", mean, mean + aside))
    return parts


def checkpoint_bytes(n_trained: int, config: TrainConfig) -> int:
    """Return the bytes of a checkpoint: masters or else trained weights, moments and averages."""
    averages = (config.ema_decay > 0) + (Need.TEACHER in rule_of(config).needs)
    return n_trained * WIDE * (3 + averages)


def trained_and_frozen(size: ModelSize) -> tuple[int, int]:
    """Return the numbers of weights that are trained, and that are not."""
    return (size.n_adapters, size.n_weights) if size.n_adapters else (size.n_weights, 0)


def width(config: TrainConfig) -> int:
    """Return the bytes of a number of the weights."""
    return getattr(torch, config.dtype).itemsize


def recomputed(size: ModelSize, config: MemorySettings) -> float:
    """Return the share of the layers whose activations are computed again for the gradient."""
    kept = config.kept_layers if config.gradient_checkpointing else size.n_layers
    return 1 - min(1.0, kept / size.n_layers)


def pass_bytes(size: ModelSize, config: TrainConfig, chunk: int = GPU_CHUNK_ELEMENTS) -> int:
    """Return the most bytes of a pass besides parameters and their gradients, within a tenth.

    Counted for decoders as Llama and Qwen; attention is fused. Tests hold it against passes.
    `chunk` logits exist at once. Without flash attention responses may stand behind one prompt: so
    with their mask, and the keys and values that are copied under it.
    """
    itemsize, tokens = width(config), max(config.max_tokens_per_microbatch, config.longest)
    bundled = "flash" not in config.attention
    kv = size.n_kv // size.n_layers
    # Norms compute in single precision: two copies of their input, where weights are narrower.
    wide = 4 if itemsize < 4 else 0
    layer = itemsize * (4 * size.n_inner + 3 * size.n_query + kv)
    layer += (8 + 3 * itemsize) * size.width
    layer += size.norms_heads * (wide + itemsize) * (size.n_query + kv // 2)
    layer += (bundled and size.n_kv_heads < size.n_heads) * itemsize * 2 * size.n_query
    again = round(size.n_layers * recomputed(size, config))
    inputs = tokens * again * itemsize * size.width
    held = inputs + tokens * (size.n_layers - again) * layer
    head_gradient = 0 if size.n_adapters else 4 * size.n_head
    logits = 10 * min(chunk, tokens * size.vocabulary)  # with their gradients and a rounded copy
    tied = head_gradient * size.tied  # it stays until the embeddings' own is added
    last_layer = held + tokens * layer // 2 + tied
    first_layer = inputs + tokens * layer * 3 // 2 + tied if again else 0
    mask = itemsize * tokens**2 * bundled
    return mask + max(held + head_gradient + logits, last_layer, first_layer)


def stats_bytes(size: ModelSize, config: TrainConfig, chunk: int = GPU_CHUNK_ELEMENTS) -> int:
    """Return the most bytes of a pass for entropies and certainties, counted as `pass_bytes`.

    Those of one layer exist at once; of a logit five numbers in single precision and a bool.
    """
    itemsize, tokens = width(config), max(config.max_tokens_per_microbatch, config.longest)
    mask = itemsize * tokens**2 * ("flash" not in config.attention)
    layer = itemsize * tokens * (3 * size.n_inner + 4 * size.width)
    logits = 21 * min(chunk, tokens * size.vocabulary) + itemsize * tokens * size.width
    return mask + max(layer, logits)


def _pass_parts(size: ModelSize, config: TrainConfig, world: int) -> list[MemoryPart]:
    """Activations and logits, or the optimizer's copies where these are larger; gathered layers.

    These are embeddings and head, and two layers: whole weights, and gradients if trained.
    """
    block, narrow = min(BLOCK_ELEMENTS, trained_and_frozen(size)[0]), width(config)
    # vLLM gives no entropies, and is awake while the trainer scores votes for them.
    scores = needs_stats(rule_of(config)) and not config.engine_kind.native
    n_bytes, note = stats_bytes(size, config), f"{config.max_tokens_per_microbatch} tokens"
    largest = max(pass_bytes(size, config), WIDE * block * (4 if config.offload_optimizer else 1))
    parts = [MemoryPart("activations", largest, n_bytes * scores, note)]
    if world > 1:
        weights = narrow * (size.n_outside + 4 * size.n_layer)
        gradients = narrow * size.n_outside + (narrow + WIDE) * size.n_layer
        update = weights + (0 if size.n_adapters else gradients)
        parts.append(MemoryPart("gathered layers", update, weights * scores))
    return parts


def _engine(
    size: ModelSize, config: TrainConfig, world: int, card: int, left: int
) -> tuple[list[MemoryPart], int, int, float]:
    """Return what an engine takes of a GPU, tokens and bytes of its cache, and the whole share."""
    if config.engine_kind.remote:
        return [], LEAST_ROWS * config.longest, 0, 0.0
    if config.engine_kind.native:
        return *_transformers(size, config, world), 0, 0.0
    narrow, n_gpus = width(config), config.engine_tp
    # GPUs beyond the number of heads hold copies of them.
    per_token = size.n_kv * narrow // min(n_gpus, size.n_kv_heads)
    weights = _engine_weights(size, config)
    context = 0 if config.engine_kind.in_trainer else CONTEXT
    # Its widest layer, of as many tokens as it batches: both inputs of the inner product and their
    # product, four numbers of the residual stream's width; and four in single precision for each
    # logit. Assumed, not measured.
    layer = narrow * (3 * size.n_inner // n_gpus + 4 * size.width)
    buffers = batched_tokens(config.max_rows) * layer + 4 * 4 * config.max_rows * size.vocabulary
    taken = left if config.engine_memory is None else int(config.engine_memory * card)
    cache = taken - weights - buffers - GRAPHS - context
    tokens = cache // per_token
    note = f"{max(0, tokens):,} tokens, {max(0, tokens) // config.longest} whole responses"
    asleep = "" if config.async_level else "asleep in the update"
    split = f"of {n_gpus} GPUs" if n_gpus > 1 else ""
    parts = [
        # Weights to which adapters are applied stay.
        MemoryPart("engine: weights", weights if config.engine_adapters else 0, weights, split),
        MemoryPart("engine: cache", 0, max(0, cache), note),
        MemoryPart("engine: passes", 0, buffers, asleep),
        MemoryPart("engine: libraries", GRAPHS + context, GRAPHS + context),
    ]
    return parts, tokens, cache, taken / card


def _engine_weights(size: ModelSize, config: TrainConfig) -> int:
    layers, narrow = size.n_layers * size.n_layer, width(config)
    inside = 1 if config.engine_quantization == "fp8" else narrow
    return (layers * inside + (size.n_weights - layers) * narrow) // config.engine_tp


def _transformers(size: ModelSize, config: TrainConfig, world: int) -> tuple[list[MemoryPart], int]:
    """Return what an engine takes whose cache is allocated row by row, and the cache's tokens."""
    narrow = width(config)
    rows = config.max_rows  # of evaluations, which have more problems than a batch
    tokens = rows * config.longest
    # Prompts of unequal lengths need a mask, with which attention on a GPU copies a layer's keys
    # and values to every head of the queries. Else a layer that grows needs less than that.
    layer = size.n_kv // size.n_layers * size.n_heads // size.n_kv_heads
    # Numbers in single precision for each logit: a draw with `top_p` sorts them.
    copies = 9 if min(config.top_p, config.eval_top_p) < 1 else 5
    cache = tokens * (size.n_kv + layer) * narrow + rows * size.vocabulary * 4 * copies
    copy = size.n_weights * narrow if world > 1 or config.async_level else 0
    context = CONTEXT if config.async_level else 0
    note = f"{rows} responses, {config.longest} tokens each"
    parts = [MemoryPart("engine: weights", copy, copy), MemoryPart("engine: cache", 0, cache, note)]
    parts.append(MemoryPart("engine: libraries", context, context))
    return parts, max(tokens, LEAST_ROWS * config.longest)


def _host(size: ModelSize, config: TrainConfig, world: int, nodes: int) -> int:
    """Main memory of a machine; ranks share the pages of a file in the precision of the run."""
    narrow, kind = width(config), config.engine_kind
    has_process = config.async_level if kind.native else kind.own_process and not kind.remote
    ranks = world // nodes
    processes = 2 * ranks if has_process else ranks
    held = 1 if size.stored == getattr(torch, config.dtype) else ranks
    copies = 1 + (config.ema_decay > 0)
    per_weight = 2 * WIDE + (copies * WIDE if world == 1 and narrow < WIDE else 0)
    offloaded = trained_and_frozen(size)[0] * per_weight if config.offload_optimizer else 0
    offloaded *= model_copies(world, config.fsdp_size)
    return held * size.n_weights * narrow + processes * HOST_PROCESS + offloaded // nodes
