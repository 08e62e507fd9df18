"""A cell of the paper as a shell script for verl, from the presets of the trainer."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from guard_core import GuardConfig
from guard_core.checks import Interval, Positive, check_fields
from lab.arms import matched_target
from lab.errors import UserError
from lab.settings import to_values
from real.problems import NAMED
from real.settings.config import TrainConfig
from real.settings.options import settings_of
from real.settings.presets import model_of
from real.verl.limits import check_plugin
from real.verl.names import LOSSES, TEMPLATE

Size = Annotated[int, Interval("[1, 1e5]")]
_VLLM_SHARE, _STATE_SHARE = 0.25, 0.5
"""Shares of a GPU's memory that its part of vLLM's weights, and of FSDP's state, may take."""
_STATE_BYTES = 16
"""Of a weight under FSDP: itself, its gradient and AdamW's moments, in single precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """GPUs of the nodes of a Ray cluster."""

    nodes: Size = 1
    gpus: Size = 8
    """GPUs of each node."""
    gpu_memory: Positive = 80.0
    """GiB of each GPU."""

    def __post_init__(self) -> None:
        """Check every size."""
        check_fields(self, error=UserError)


def cell_script(preset: str, arm: str, cluster: Cluster, places: dict[str, str], seed: int) -> str:
    """Return a script that reproduces a cell of the paper on verl.

    Args:
        preset: one of `real.settings.presets.NAMES`.
        arm: of the comparison, such as guard or ttrl.
        cluster: the GPUs to take.
        places: `model`, `problem_file` and `out`, paths that all nodes see.
        seed: of the votes, of the guard and of the problems' order.

    Raises:
        UserError: there is no such preset, no such arm on verl, or so many GPUs cannot share its
            mini-batch.
    """
    if matched_target(arm):
        raise UserError(
            f"arm {arm!r}: give --arm ttrl, and behind the script's name +guard.step_factor=X with "
            "the factor that guard-train compare finds"
        )
    config = settings_of(["--preset", preset, "--arm", arm], with_model=True)
    check_plugin(config)
    n_batches, left_out = divmod(NAMED[config.problems or ""].n_problems, config.batch_size)
    values: dict[str, Any] = {
        **to_values(config),
        **asdict(cluster),
        **_sizes(model_of(preset), config.mini_batch * config.n_samples, cluster),
        **places,
        "checkpoints": f"{places['out']}/checkpoints",
        "preset": preset,
        "model_name": model_of(preset),
        "arm": arm,
        "seed": seed,
        "loss": LOSSES[config.loss],
        "uses_kl": config.kl_coef > 0,
        "n_batches": n_batches,
        "left_out": left_out,
    }
    shown = {name: shlex.quote(_written(value)) for name, value in values.items()}
    shown["guard"] = "\n  ".join(f"+guard.{name}={_written(v)}" for name, v in _guard(config))
    shown["address"] = "RAY_ADDRESS=auto " if cluster.nodes > 1 else ""
    return TEMPLATE.format_map(shown)


def _guard(config: TrainConfig) -> Iterator[tuple[str, Any]]:
    """Yield the profile closest to the run's guard, what differs from it, and other settings."""
    wanted = config.guard.to_dict().items()
    changes = {
        name: [pair for pair in wanted if pair not in GuardConfig.profile(name).to_dict().items()]
        for name in ("paper", "release", "off", "recommended")
    }
    profile = min(changes, key=lambda name: len(changes[name]))
    yield "profile", profile
    yield from changes[profile]
    usual = TrainConfig()
    for name in ("labels", "rule"):
        if getattr(config, name) != getattr(usual, name):
            yield name, getattr(config, name)


def _sizes(model_name: str, rows: int, cluster: Cluster) -> dict[str, Any]:
    """Return how a mini-batch of so many rows, vLLM and FSDP's state are spread over the GPUs."""
    from real.plan.model_size import PlannedModel, read_config  # imports torch

    model = PlannedModel(read_config(model_name))
    world, card = cluster.nodes * cluster.gpus, cluster.gpu_memory * 2**30
    heads = model.config.get_text_config().num_attention_heads
    n_weights = model.size().n_weights
    shared = [n for n in range(1, world + 1) if world % n == 0 == heads % n]
    even = next((n for n in shared if rows % (world // n) == 0), None)
    if even is None:
        raise UserError(
            f"nodes, gpus: the {rows} rows of a mini-batch cannot be dealt evenly to {world} GPUs; "
            "take a power of two"
        )
    copies = [n for n in shared if cluster.gpus % n == 0]
    fits = (n for n in copies if 2 * n_weights / n <= _VLLM_SHARE * card)
    return {
        "rows": rows,
        "data_ranks": world // even,
        "sequence_ranks": even,
        "tensor_ranks": next(fits, copies[-1]),
        "offload": _STATE_BYTES * n_weights / world > _STATE_SHARE * card,
    }


def _written(value: Any) -> str:
    """Return a value in Hydra's grammar of overrides."""
    if isinstance(value, str) and not re.fullmatch(r"[\w/.:@+-]+", value):
        return "'" + value.replace("'", "\\'") + "'"
    return f"{value:g}" if isinstance(value, float) else str(value)
