"""The part of `vllm_on_cpu` that vLLM's worker process imports."""

from __future__ import annotations

from typing import Any

from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from real.engines.vllm_engine import repack


class Worker(vLLMColocateWorkerExtension):
    """verl's extension of the worker, which gathers all buckets and reloads them at once."""

    def update_weights_from_ipc(
        self, peft_config: Any = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        whole: dict[str, Any] = {}

        def keep(weights: Any, is_last: bool) -> None:
            whole.update((name, tensor.clone()) for name, tensor in weights)

        handle = self._get_zmq_handle()
        receiver = BucketedWeightReceiver(zmq_handle=handle, device=self.device, use_shm=use_shm)
        receiver.receive_weights(on_bucket_received=keep)
        if self.model_runner.vllm_config.model_config.hf_config.tie_word_embeddings:
            whole.pop("lm_head.weight", None)
        self.reload_weights(weights_iterator=list(whole.items()))
        repack(self)
