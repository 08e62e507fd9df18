"""Seconds of a training step, estimated from sizes and the speed of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from real.plan.memory import MemoryPlan, trained_and_frozen
from real.plan.model_size import ModelSize
from real.settings.config import TrainConfig


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
PEAK_SHARE = 0.4
"""Share of the peak speed that matrix products reach."""
BANDWIDTH_SHARE = 0.7
"""Share of the memory's speed that decoding reaches."""
DECODE_OVERHEAD = 0.003
"""Seconds per decoded token besides reading weights and cache."""
HOST_LINK = 50e9
"""Bytes per second between a GPU and main memory, in one direction at a time."""
HAND_OVER = 20e9
"""Bytes of weights per second from the trainer to an engine."""
ASSUMED = (
    f"{PEAK_SHARE:.0%} of the peak in products, {BANDWIDTH_SHARE:.0%} of the memory's speed and "
    f"{1000 * DECODE_OVERHEAD:.0f} ms per token in decoding, weights to the engine at "
    f"{HAND_OVER / 1e9:.0f} GB/s, {HOST_LINK / 1e9:.0f} GB/s to main memory; none of these was "
    "measured"
)


def card_named(name: str) -> Card | None:
    """Return the GPU of that name, as CUDA gives it; None if its data sheet is not known here.

    Slower variants, and parts of a card, are not known.
    """
    words = set(name.lower().replace("-", " ").split())
    found = [card for kind, card in CARDS.items() if kind in words]
    return found[0] if found and not words & _VARIANTS else None


class Phase(NamedTuple):
    """Estimated time of one phase of a step."""

    name: str
    seconds: float


def step_seconds(
    size: ModelSize,
    plan: MemoryPlan,
    config: TrainConfig,
    world: int,
    card: Card,
    mean_tokens: int,
    prompt_tokens: int = 150,
) -> list[Phase]:
    """Return the estimated seconds of each phase of one batch, evaluations left out.

    Args:
        size: of the model.
        plan: of its memory.
        config: settled settings.
        world: GPUs.
        card: what they are.
        mean_tokens: mean length of a response; one response of a batch is taken to reach
            `max_response_tokens`.
        prompt_tokens: mean length of a prompt.
    """
    return [
        Phase("rollout", _rollout(size, plan, config, world, card, mean_tokens, prompt_tokens)),
        Phase("update", _update(size, config, world, card, mean_tokens + prompt_tokens)),
        Phase("optimizer", _optimizer(size, config, world, card)),
        Phase("sync", 0.0 if config.engine == "transformers" else _weights(size) / HAND_OVER),
    ]


def _weights(size: ModelSize) -> float:
    return 2.0 * size.n_weights


def _rollout(
    size: ModelSize,
    plan: MemoryPlan,
    config: TrainConfig,
    world: int,
    card: Card,
    mean: int,
    prompt: int,
) -> float:
    """Steps of decoding, each reading the weights; the cache once per token; the products."""
    n_gpus = config.engine_tp  # of each engine
    rows = -(-config.batch_size * config.n_votes * n_gpus // world)
    at_once = plan.cache_tokens / (prompt + mean / 2)
    waves = max(1.0, rows / max(1.0, at_once))
    bandwidth = card.bandwidth * BANDWIDTH_SHARE * n_gpus
    n_steps = (config.max_response_tokens or 1) * waves
    steps = n_steps * (_weights(size) / bandwidth + DECODE_OVERHEAD)
    cache = rows * mean * (prompt + mean / 2) * 2 * size.n_kv / bandwidth
    products = rows * (prompt + mean) * 2 * size.n_multiplied / (card.flops * PEAK_SHARE * n_gpus)
    return steps + cache + products


def update_flops(n_multiplied: int, config: TrainConfig) -> float:
    """Return the operations of an update per token; recomputing is none of its purpose.

    A product with a weight is two operations; its gradients are two more products, or one where
    the weight is frozen. Attention scores, a few per cent, are left out.

    Args:
        n_multiplied: weights that each token is multiplied with.
        config: settled settings.
    """
    per_weight = (4 if config.lora_rank else 6) + 2 * (config.importance_cap is not None)
    return float(per_weight * n_multiplied)


def _update(size: ModelSize, config: TrainConfig, world: int, card: Card, tokens: int) -> float:
    """Forward and backward passes of all trained responses."""
    per_token = update_flops(size.n_multiplied, config)
    per_token += 2 * config.gradient_checkpointing * size.n_multiplied
    n_tokens = config.batch_size * config.n_samples * tokens / world
    return n_tokens * per_token / (card.flops * PEAK_SHARE)


def _optimizer(size: ModelSize, config: TrainConfig, world: int, card: Card) -> float:
    """AdamW reads and writes weights, gradients and moments; copies measure the change."""
    trained = trained_and_frozen(size)[0] / world
    n_steps = -(-config.batch_size // config.mini_batch)
    moved = 24 * trained / HOST_LINK if config.offload_optimizer else 0.0
    return n_steps * (moved + 50 * trained / (card.bandwidth * BANDWIDTH_SHARE))
