"""`guard-train plan`: the table of a run's memory and the estimated seconds of its steps."""

from __future__ import annotations

from collections.abc import Iterator

from real.plan.fit import remedy
from real.plan.memory import GIB, RESERVE, MemoryPlan, plan_memory, trained_and_frozen
from real.plan.sizes import CARDS, Card, ModelSize, PlannedModel, read_config, update_flops
from real.settings.config import TrainConfig
from real.settings.presets import check_engine_tp, settled_for
from real.tiny import starting_checkpoint

PEAK_SHARE = 0.4
"""Share of the peak speed that matrix products reach. Assumed, not measured, as those below."""
BANDWIDTH_SHARE = 0.7
"""Share of the memory's speed that decoding reaches."""
DECODE_OVERHEAD = 0.003
"""Seconds per decoded token besides reading weights and cache."""
HOST_LINK = 50e9
"""Bytes per second between a GPU and main memory, in one direction at a time."""
HAND_OVER = 20e9
"""Bytes of weights per second from the trainer to an engine."""
PROMPT_TOKENS = 150
"""Mean length of a prompt."""


def plan_lines(
    config: TrainConfig, kind: str, gpus: int, memory: float | None, mean_tokens: int
) -> tuple[list[str], bool]:
    """Return a plan for readers, and whether the run fits.

    Args:
        config: of the run; its model is a folder, `hf:owner/name` or a preset's model.
        kind: of the GPUs, a key of `CARDS`.
        gpus: number of ranks, each with an engine.
        memory: GiB of each GPU; that of the data sheet if None.
        mean_tokens: mean length of a response, for the estimate of the time.

    Raises:
        UserError: the model's config cannot be read, or `engine_tp` does not divide the GPUs.
    """
    config = settled_for(config, gpu=True, vllm=True)[0]
    check_engine_tp(config, gpus)
    model = PlannedModel(
        read_config(config.own_model or str(starting_checkpoint(config.tiny_task)))
    )
    size, memory = model.size(config.lora_rank, config.lora_targets), memory or CARDS[kind].memory
    card = int(memory * GIB)
    plan = plan_memory(size, config, gpus, card)
    what = f"adapters of {size.n_adapters / 1e6:.0f} M" if size.n_adapters else "all"
    title = (
        f"{config.model or 'tiny task'}: {size.n_weights / 1e9:.3g} billion weights, {what} "
        f"trained, in {config.dtype}, {config.engine}, {gpus} GPU{'s' * (gpus > 1)} of "
        f"{memory:g} GiB"
    )
    lines = [title, *_table(plan)]
    if not plan.fits:
        return [*lines, f"does not fit; {remedy(model, config, gpus, card)}"], False
    seconds = step_seconds(size, plan, config, gpus, CARDS[kind], mean_tokens)
    times = ", ".join(f"{phase} {value:.1f}" for phase, value in seconds.items())
    total = sum(seconds.values())
    lines += [f"fits; about {total:.0f} s a step without evaluations: {times}"]
    return [*lines, "estimated from data sheets; no speed was measured"], True


def _table(plan: MemoryPlan) -> Iterator[str]:
    yield f"{'GiB per GPU':<18} {'update':>8} {'sampling':>8}"
    note = f"of {plan.usable / GIB:.1f}, {RESERVE:.0%} of the GPU stay free"
    for part in (*plan.parts, ("sum", plan.update, plan.sampling, note)):
        name, update, sampling, said = part
        yield f"{name:<18} {update / GIB:>8.1f} {sampling / GIB:>8.1f}  {said}".rstrip()
    yield f"main memory: {plan.host / GIB:.0f} GiB on the machine, when the model is loaded"
    yield f"checkpoint: {plan.checkpoint / 1e9:.1f} GB on disk each"


def step_seconds(
    size: ModelSize, plan: MemoryPlan, config: TrainConfig, world: int, card: Card, mean: int
) -> dict[str, float]:
    """Return the estimated seconds of each phase of one batch, evaluations left out.

    One response of a batch is taken to reach `max_response_tokens`; they have `mean` tokens on
    average.
    """
    tokens, weights = mean + PROMPT_TOKENS, 2.0 * size.n_weights
    flops, bandwidth = card.flops * PEAK_SHARE, card.bandwidth * BANDWIDTH_SHARE
    # Each step of decoding reads the weights; each token reads the cache before it.
    group = config.engine_tp
    rows = -(-config.batch_size * config.n_votes * group // world)
    before = PROMPT_TOKENS + mean / 2
    waves = max(1.0, rows / max(1.0, plan.cache_tokens / before))
    steps = (config.max_response_tokens or 1) * waves
    rollout = steps * (weights / (group * bandwidth) + DECODE_OVERHEAD)
    rollout += rows * mean * before * 2 * size.n_kv / (group * bandwidth)
    rollout += rows * tokens * 2 * size.n_multiplied / (group * flops)
    per_token = update_flops(size.n_multiplied, config)
    per_token += 2 * config.gradient_checkpointing * size.n_multiplied
    trained = trained_and_frozen(size)[0] / world
    moved = 24 * trained / HOST_LINK if config.offload_optimizer else 0.0
    # AdamW reads and writes weights, gradients and moments; copies measure the change.
    adamw = moved + 50 * trained / bandwidth
    return {
        "rollout": rollout,
        "update": config.batch_size * config.n_samples * tokens / world * per_token / flops,
        "optimizer": -(-config.batch_size // config.mini_batch) * adamw,
        "sync": 0.0 if config.engine == "transformers" else weights / HAND_OVER,
    }
