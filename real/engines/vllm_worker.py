"""Functions that vLLM calls with a worker, which is a process where an engine has several GPUs."""

from __future__ import annotations

from typing import Any

import torch

from real.engines.buckets import Handle, Sent, opened


def start_loading(worker: Any) -> None:
    """Prepare a worker for new weights, as its `reload_weights` does."""
    reload, config = _reload()
    with config.set_current_vllm_config(worker.vllm_config):
        reload.initialize_layerwise_reload(worker.model_runner.get_model())


def load_part(worker: Any, part: Sent) -> None:
    """Load the weights of one bucket."""
    _, config = _reload()
    with config.set_current_vllm_config(worker.vllm_config):
        worker.model_runner.get_model().load_weights(part.weights(worker.rank))


def end_loading(worker: Any) -> None:
    """Finish, after all weights have come."""
    reload, config = _reload()
    with config.set_current_vllm_config(worker.vllm_config):
        reload.finalize_layerwise_reload(worker.model_runner.get_model(), worker.model_config)
    repack_tied_head(worker)
    collect_buckets(worker)


def collect_buckets(worker: Any) -> None:
    """Close the trainer's buckets on a GPU."""
    if worker.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.ipc_collect()


def refusal(worker: Any, buckets: list[Handle]) -> str | None:
    """Return why a worker cannot open its bucket; None if it can."""
    try:
        opened(buckets[worker.rank if len(buckets) > 1 else 0])
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


def repack_tied_head(worker: Any) -> None:
    """Pack the new embeddings for a tied output head.

    On a CPU vLLM multiplies by a packed copy of each weight. A reload packs the layers that get
    weights; a tied head gets none, and would keep the old ones.
    """
    head: Any = getattr(worker.model_runner.get_model(), "lm_head", None)
    if hasattr(head, "cpu_linear"):
        head.quant_method.process_weights_after_loading(head)


def _reload() -> tuple[Any, Any]:
    """Import vLLM's modules, which need not be installed where this one is imported."""
    from vllm import config  # pyright: ignore[reportMissingImports]
    from vllm.model_executor.model_loader import reload  # pyright: ignore[reportMissingImports]

    return reload, config
