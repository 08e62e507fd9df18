"""Registered with verl in every process: engine, rollout, agent loop and trainer for a CPU."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from verl.experimental.agent_loop.agent_loop import register
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.rollout import base, replica

from real.verl.plugin.trainer import (
    MINORITY,
    GuardTrainer,
    GuardWorker,
    MeasuringWorker,
    SeededAgentLoop,
)


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class FSDPOnCPU(FSDPEngineWithLMHead):
    """As it is: verl registers the class for cuda and npu alone."""


class GlooWorker(MeasuringWorker):
    """verl would ask torch for "cpu:gloo,cpu:gloo", which it refuses; a group there is kept."""

    def __init__(self, config: Any) -> None:
        if not torch.distributed.is_initialized():
            torch.set_num_threads(1)
            place = {n: int(os.environ[n.upper()]) for n in ("rank", "world_size")}
            torch.distributed.init_process_group("gloo", **place)
        super().__init__(config)


class WorkerOnCPU(GuardWorker):
    actor_worker_cls = ref_worker_cls = GlooWorker


@register("tiny_single_turn")
class TinyAgentLoop(SeededAgentLoop):
    """The tiny tokenizer has no newline, which verl's builder of Qwen's tokens insists on."""

    def __init__(self, *args: Any, hf_model_type: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, hf_model_type=None, **kwargs)


@register_trainer("guard_on_cpu")
class GuardOnCPU(GuardTrainer):
    """Also writes down votes and updates, and copies the folder after COPY_AT_SAVE's checkpoint."""

    worker_class = WorkerOnCPU

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.dump = Path(os.environ["VERL_CPU_DUMP"])
        self.dump.mkdir(parents=True, exist_ok=True)
        self.checkpoint_callback.on_save = self._copied

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = 0.1  # verl's 2 seconds have no setting
        return buffer

    def on_step_begin(self) -> None:
        left = (tq.kv_list("train") or {}).get("train")
        assert not left, f"{len(left)} rows of past steps are still in the queue"
        super().on_step_begin()

    def _read(self, batch: Any, n_problems: int) -> Any:
        data = tq.kv_batch_get(batch.keys, "train", ["responses", "index"])
        rows = {"tokens": data["responses"].unbind(0), "index": [int(i) for i in data["index"]]}
        self._dump(f"votes{len(list(self.dump.glob('votes*')))}", keys=batch.keys, **rows)
        return super()._read(batch, n_problems)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        names = ["prompts", "responses", "old_log_probs", "advantages", MINORITY]
        data = tq.kv_batch_get(batch.keys, "train", names)
        rows = {name: [row.clone() for row in data[name].unbind(0)] for name in names}
        self._dump(f"step{self.global_steps}", keys=batch.keys, **rows)
        return super()._update_actor(batch, metrics)

    def _dump(self, name: str, **values: Any) -> None:
        torch.save(values, self.dump / f"{name}.pt")

    def _copied(self, global_step: int, **_: Any) -> None:
        """verl calls this once a checkpoint is the latest; the copy is what a kill would leave."""
        if global_step == int(os.environ.get("COPY_AT_SAVE", -1)):
            shutil.copytree(self.dump.parent, f"{self.dump.parent}-copy")


def _hf_replica() -> Any:
    from verl_cpu.rollout import HFReplica

    return HFReplica


base._ROLLOUT_REGISTRY[("hf_cpu", "async")] = "verl_cpu.rollout.HFAdapter"
replica.RolloutReplicaRegistry.register("hf_cpu", _hf_replica)
