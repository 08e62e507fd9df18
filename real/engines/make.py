"""Makes the engine that a run's settings name: restarted if it died, one on every rank."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from guard_core.rules.rule import SECOND_VOTES, Need
from lab.base.errors import UserError
from real.engines.child_engine import COMMAND, ChildEngine
from real.engines.ranked import RankedEngine
from real.engines.rollouts import Engine, EngineDied, Prompts, Rollouts, Sampling, Stages
from real.engines.transformers_engine import TransformersEngine, stated_request
from real.engines.vllm_engine import EngineMemory, VllmEngine, VllmSettings
from real.engines.vllm_server import VllmServerEngine
from real.engines.weights import Room, Route, WeightSender
from real.model.policy import Policy, attention_heads, max_positions
from real.ranks.distributed import ALONE, Ranks
from real.settings.config import TrainConfig, needs_stats, rule_of
from real.settings.engines import divides_heads, named

T = TypeVar("T")


def make_engine(
    config: TrainConfig,
    policy: Policy,
    ranks: Ranks = ALONE,
    logs: Path | None = None,
    memory: EngineMemory | None = None,
) -> Engine:
    """Make the engine of a policy that is not yet sharded, and wait until it is ready.

    `logs` is a folder for the log of an engine's process, which is not kept if None; `memory` what
    vLLM may take of the GPU, by the settings if None.
    """
    check_engine(config, ranks.world)
    if (config.engine_url is not None) != config.engine_kind.remote:
        raise UserError(
            f"engine_url = {config.engine_url!r}: belongs to engine = {named('remote')} and only "
            "to it"
        )
    urls = (config.engine_url or "").split(",")
    if len(urls) > ranks.world:
        raise UserError(
            f"engine_url = {config.engine_url!r}: {len(urls)} servers for {ranks.world} ranks; "
            "start as many ranks with torchrun, or give fewer"
        )
    kind, dtype = config.engine_kind, getattr(torch, config.dtype)
    ends, pad, timeout = policy.eos_token_ids, policy.pad_token_id, config.engine_timeout
    log = logs and logs / f"engine-rank{ranks.rank}.log"
    adapters = bool(config.engine_adapters)
    route = Route(policy.device, dtype, ranks, config.engine_tp, adapters, kind.native)

    def made() -> Any:
        if ranks.rank % config.engine_tp:
            # No folder: the first rank of a machine, whose folder counts, has an engine.
            return WeightSender(Path(), route)
        if kind.remote:
            # The first rank of each server sends it the weights.
            url, sends = urls[ranks.rank % len(urls)], ranks.rank < len(urls)
            return VllmServerEngine(url, timeout, ends, pad, route, config.head_dtype, sends)
        if kind.in_trainer:
            return VllmEngine(_vllm_settings(config, policy, memory))
        if not kind.native or config.async_level:
            return make_child(config, policy, route, log, memory)
        # Ranks decode different numbers of steps, and each pass of a sharded model needs all.
        model = policy.model
        if ranks.world > 1:
            model = copy.deepcopy(model).requires_grad_(False)
        return TransformersEngine(model, ends, pad, config.max_rows, tokenizer=policy.tokenizer)

    if ranks.world > 1:
        return RankedEngine(made(), ranks, pad, config.engine_tp)
    return RestartingEngine(made, config.restart_engine) if config.restart_engine else made()


def make_child(
    config: TrainConfig, policy: Policy, route: Route, log: Path | None, memory: EngineMemory | None
) -> ChildEngine:
    """Start an engine in a process of its own; `memory` is that of `make_engine`."""
    check_heads(config, *attention_heads(policy.model.config))
    options: dict[str, Any] = {}
    if not config.engine_kind.native:
        settings = asdict(_vllm_settings(config, policy, memory))
    else:
        names = "dtype", "attention", "head_dtype", "max_rows", "threads"
        settings = {name: getattr(config, name) for name in names}
        settings |= {"folder": str(policy.folder), "device": policy.device.type}
        settings["pad_token_id"] = policy.pad_token_id
        request = partial(stated_request, config.max_rows)
        options = {"command": (*COMMAND, "real.engines.child:TransformersHost"), "request": request}
    room, exchange = Room.of(policy.model, route.dtype), config.engine_exchange
    return ChildEngine(settings, config.engine_timeout, route, room, exchange, log=log, **options)


def _vllm_settings(
    config: TrainConfig, policy: Policy, memory: EngineMemory | None
) -> VllmSettings:
    return VllmSettings(
        model=str(policy.folder),
        max_model_len=min(config.longest, max_positions(policy.model) or config.longest),
        eos_token_ids=policy.eos_token_ids,
        pad_token_id=policy.pad_token_id,
        dtype=config.dtype,
        head_dtype=config.head_dtype,
        max_rows=config.max_rows,
        memory=memory.share if memory else config.engine_memory or 0.5,
        cache=memory.cache if memory else None,
        n_gpus=config.engine_tp,
        adapter_rank=config.lora_rank if config.engine_adapters else 0,
        device=policy.device.type,
        threads=config.threads,
        reads_text=bool(config.stop),
        quantization=None if config.engine_quantization == "none" else config.engine_quantization,
    )


def check_heads(config: TrainConfig, heads: int, kv_heads: int) -> None:
    """Refuse to split the attention heads of a model, or those of its keys, unevenly."""
    if not divides_heads(config.engine_tp, heads, kv_heads):
        raise UserError(
            f"engine_tp = {config.engine_tp}: does not divide the model's {heads} attention heads "
            f"and {kv_heads} of keys; take a divisor of both"
        )


def check_engine(config: TrainConfig, world: int) -> None:
    """Refuse what an engine cannot do, or not for so many ranks; an address is not looked at."""
    if config.async_level:
        _check_ahead(config)
    kind = config.engine_kind
    if config.restart_engine and not kind.own_process:
        raise UserError(
            f"restart_engine = {config.restart_engine}: engine = {config.engine!r} dies with the "
            "trainer; use vllm, which has a process of its own"
        )
    if config.engine_adapters and not (kind.adapters and config.lora_rank):
        raise UserError(
            f"engine_adapters: belongs to engine = {named('adapters')} and a lora_rank; leave it "
            "out"
        )
    if config.engine_quantization != "none" and not (kind.shares_gpu and config.tis_cap):
        raise UserError(
            f"engine_quantization = {config.engine_quantization!r}: belongs to engine = "
            f"{named('shares_gpu')} and a tis_cap above 0, which corrects the loss; leave it out"
        )
    if config.stop and kind.remote:
        raise UserError(
            f"stop = {config.stop[0]!r}: not with engine = {config.engine!r}, which is given "
            "tokens alone; take vllm"
        )
    if world > 1 and kind.in_trainer:
        raise UserError(
            f"engine = {config.engine!r}: serves one process, not {world} ranks; take vllm, "
            "which every rank starts for itself"
        )
    if world > 1 and config.restart_engine:
        # New weights come from all ranks together, so that of one rank cannot be given the last
        # ones again.
        raise UserError(
            f"restart_engine = {config.restart_engine}: not with {world} ranks; leave it "
            "out, and go on with guard-train resume should an engine die"
        )


def _check_ahead(config: TrainConfig) -> None:
    """Refuse what the next batch's votes cannot be sampled with while this batch is trained on."""
    rule, ahead = rule_of(config), f"async_level = {config.async_level}"
    if config.engine_kind.in_trainer:
        raise UserError(
            f"{ahead}: engine = {config.engine!r} samples in the trainer's process; take vllm, "
            "which has a process of its own"
        )
    if config.restart_engine:
        raise UserError(
            f"{ahead}: restart_engine = {config.restart_engine} would need weights that the "
            "trainer has left behind; leave it out, and go on with guard-train resume"
        )
    if rule.needs & (SECOND_VOTES | {Need.VERDICTS}):
        raise UserError(
            f"{ahead}: rule {rule.name} samples more than votes, while the engine is at the next "
            "batch's; leave async_level out"
        )
    if needs_stats(rule) and not config.engine_kind.native:
        raise UserError(
            f"{ahead}: rule {rule.name} needs token statistics of the weights that sampled, which "
            "vLLM does not give; leave async_level out, or take engine = 'transformers'"
        )


def engine_notices(config: TrainConfig) -> list[str]:
    """Return notices of settings that an engine takes, but that harm the training."""
    if config.engine_kind.native or config.top_p == 1:
        return []
    # vLLM's log-probs are those after the cut, the trainer's have no cut.
    return [f"top_p = {config.top_p}: biases the ratio of the loss; train with 1"]


class RestartingEngine:
    """Replaces an engine that died or hung, with the last weights and the same random numbers."""

    def __init__(self, make: Callable[[], Engine], restarts: int) -> None:
        self._make = make
        self.left = restarts
        self.notice: Callable[[str], object] = warnings.warn
        """Called with a sentence when an engine is started again."""
        self._last: tuple[Any, int] | None = None
        self.engine: Engine = make()

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        state = generator.get_state()
        return self._with_restarts(
            lambda engine: engine.sample(prompts, n, sampling, generator.set_state(state))
        )

    def release(self) -> None:
        """Free memory for an update. An engine that died has freed all it had."""
        self._with_restarts(lambda engine: engine.release())

    def update_weights(self, model: Any, version: int) -> Stages:
        # Set before the attempt: if it fails, the next engine must get these and no older ones.
        self._last = (model, version)
        return self._with_restarts(lambda engine: engine.update_weights(model, version))

    def close(self) -> None:
        self.engine.close()

    def _with_restarts(self, do: Callable[[Engine], T]) -> T:
        died = False
        while True:
            try:
                if died:
                    self.engine.close()
                    self.engine = self._make()
                    if self._last is not None:
                        self.engine.update_weights(*self._last)
                return do(self.engine)
            except EngineDied as error:
                if not self.left:
                    raise
                self.left -= 1
                died = True
                self.notice(f"{error}; starting another engine, {self.left} more allowed")
