"""A rollout server of the trainer's sampling in a Ray actor, by verl's `RolloutReplica`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from real.engines import transformers_engine
from real.engines.rollouts import Sampling


class HFServer:
    """Answers `generate` calls in batches; takes weights by name."""

    def __init__(self, config: Any, model_config: Any, rank: int) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.config, self.rank, self.global_steps, self.awake = config, rank, None, False
        self.waiting: list[tuple[list[int], dict[str, Any], asyncio.Future[Any]]] = []
        model = AutoModelForCausalLM.from_pretrained(model_config.local_path, dtype=torch.float32)
        ends = [model.generation_config.eos_token_id]
        self.engine = transformers_engine.TransformersEngine(model.eval(), ends)

    async def generate(
        self, request_id: Any, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        if (self.rank, self.global_steps) == (0, int(os.environ.get("DIE_AFTER_STEP", -1))):
            Path(os.environ["VERL_CPU_DUMP"], "died").touch()
            os._exit(1)
        done = asyncio.get_running_loop().create_future()
        self.waiting.append((list(prompt_ids), dict(sampling_params), done))
        if len(self.waiting) == 1:
            asyncio.get_running_loop().call_later(0.02, self._run)
        return await done

    def _run(self) -> None:
        todo, self.waiting = self.waiting[:512], self.waiting[512:]
        if self.waiting:
            asyncio.get_running_loop().call_soon(self._run)
        try:
            outputs = self._sample([t[0] for t in todo], [t[1] for t in todo])
        except Exception as error:  # the callers must not wait for ever
            for *_, done in todo:
                done.set_exception(error)
            return
        for (*_, done), output in zip(todo, outputs, strict=True):
            done.set_result(output)

    def _sample(self, prompts: list[list[int]], params: list[dict[str, Any]]) -> list[Any]:
        """Each row has a generator of its own: it depends on its seed alone."""
        assert self.awake, "asked to generate while asleep"
        most = self.config.response_length
        makers = [torch.Generator().manual_seed(p["seed"]) for p in params]
        draws = torch.stack([torch.rand(most, generator=maker) for maker in makers])
        transformers_engine.uniforms = lambda *_: (draws, len(prompts))
        (heat,) = {p["temperature"] for p in params}
        sampling = Sampling(most, max(heat, 1e-4))  # verl evaluates at 0
        drawn = self.engine.sample(prompts, 1, sampling, torch.Generator())
        return [
            TokenOutput(
                token_ids=drawn.tokens_PNT[i, 0, :length].tolist(),
                log_probs=drawn.logprobs_PNT[i, 0, :length].tolist(),
                stop_reason="completed",
                extra_fields={"global_steps": self.global_steps},
            )
            for i, length in enumerate(drawn.lengths_PN[:, 0].tolist())
        ]

    async def update_weights(self, weights: dict[str, torch.Tensor], global_steps: int) -> None:
        missing, unexpected = self.engine.model.load_state_dict(weights, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
        self.global_steps, self.awake = global_steps, True

    async def wake_up(self, *_: Any, **__: Any) -> None:
        self.awake = True

    async def sleep(self, *_: Any, **__: Any) -> None:
        self.awake = False

    async def _nothing(self, *_: Any, **__: Any) -> None:
        pass

    abort_all_requests = resume_generation = clear_kv_cache = release_kv_cache = _nothing
    resume_kv_cache = start_profile = stop_profile = _nothing


class HFReplica(RolloutReplica):
    """One server for the ranks of a replica."""

    async def launch_servers(self) -> None:
        from verl.utils.config import omega_conf_to_dataclass

        name = f"hf_cpu_server_{self.replica_rank}"
        server = ray.remote(num_cpus=1, max_concurrency=1000)(HFServer).options(name=name)
        model_config = omega_conf_to_dataclass(self.model_config)
        self._server_handle = server.remote(self.config, model_config, self.replica_rank)
        self._server_address, self.servers = name, [self._server_handle]


class HFAdapter(BaseRollout):
    """The server's end in a training worker; the first rank of a replica sends the weights."""

    def __init__(
        self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1
    ) -> None:
        super().__init__(config, model_config, device_mesh)
        size = self.config.tensor_model_parallel_size
        self.replica, self.first = divmod(int(os.environ["RANK"]), size)

    async def resume(self, tags: Any) -> None:
        pass

    async def release(self) -> None:
        pass

    async def update_weights(self, weights: Any, global_steps: Any = None, **_: Any) -> None:
        whole = {name: tensor.detach().clone() for name, tensor in weights}  # every rank gathers
        if self.first == 0:
            server = ray.get_actor(f"hf_cpu_server_{self.replica}")
            await server.update_weights.remote(whole, global_steps)
