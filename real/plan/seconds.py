"""Estimated seconds of a step from data sheets; no speed was measured."""

from __future__ import annotations

from typing import NamedTuple

from real.plan.memory import MemoryPlan, trained_and_frozen
from real.plan.sizes import Card, ModelSize, update_flops
from real.settings.config import TrainConfig

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


def step_seconds(
    size: ModelSize, plan: MemoryPlan, config: TrainConfig, world: int, card: Card, mean: int
) -> dict[str, float]:
    """Return the estimated seconds of each phase of one batch, evaluations left out.

    Args:
        mean: length of a response in tokens.
    """
    weights, flops = 2.0 * size.n_weights, card.flops * PEAK_SHARE
    per_token = update_flops(size.n_multiplied, config)
    per_token += 2 * config.gradient_checkpointing * size.n_multiplied
    trained = trained_and_frozen(size)[0] / world
    moved = 24 * trained / HOST_LINK if config.offload_optimizer else 0.0
    # AdamW reads and writes weights, gradients and moments; copies measure the change.
    adamw = moved + 50 * trained / (card.bandwidth * BANDWIDTH_SHARE)
    tokens = config.batch_size * config.n_samples * (mean + PROMPT_TOKENS)
    votes = config.batch_size * config.n_votes
    return {
        "rollout": sampling_seconds(size, plan, config, world, card, mean, votes),
        "update": tokens / world * per_token / flops,
        "optimizer": -(-config.batch_size // config.mini_batch) * adamw,
        "sync": 0.0 if config.engine == "transformers" else weights / HAND_OVER,
    }


def sampling_seconds(
    size: ModelSize,
    plan: MemoryPlan,
    config: TrainConfig,
    world: int,
    card: Card,
    mean: int,
    n_responses: int,
) -> float:
    """Return the estimated seconds in which all engines together sample some responses.

    One of them is taken to reach `max_response_tokens`; they have `mean` tokens on average.
    """
    flops, bandwidth = card.flops * PEAK_SHARE, card.bandwidth * BANDWIDTH_SHARE
    # Each step of decoding reads the weights; each token reads the cache before it.
    group, weights = config.engine_tp, 2.0 * size.n_weights
    rows = -(-n_responses * group // world)
    before = PROMPT_TOKENS + mean / 2
    waves = max(1.0, rows / max(1.0, plan.cache_tokens / before))
    steps = (config.max_response_tokens or 1) * waves
    seconds = steps * (weights / (group * bandwidth) + DECODE_OVERHEAD)
    seconds += rows * mean * before * 2 * size.n_kv / (group * bandwidth)
    return seconds + rows * (mean + PROMPT_TOKENS) * 2 * size.n_multiplied / (group * flops)


class RunResponses(NamedTuple):
    """Responses of a whole run."""

    votes: int
    """Of training."""
    full: int
    """Each of the votes before training and of the evaluations at the start and the end."""
    evaluations: int
    """Number of evaluations in between."""
    evaluated: int
    """Responses of each."""

    @property
    def others(self) -> int:
        """All that are not trained on."""
        return 3 * self.full + self.evaluations * self.evaluated


def run_responses(config: TrainConfig, n_problems: int) -> RunResponses:
    """Return how many responses a run samples, for what."""
    n_steps = config.epochs * -(-n_problems // config.batch_size)
    every = config.eval_steps or config.eval_every * -(-n_problems // config.batch_size)
    return RunResponses(
        votes=config.epochs * n_problems * config.n_votes,
        full=n_problems * config.n_votes,
        evaluations=n_steps // every if every else 0,
        evaluated=n_problems * config.eval_samples,
    )
