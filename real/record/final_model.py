"""The trained model as a folder that every Hugging Face library can load."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from lab.files import whole_folder
from real.model.lora import has_adapters, merged_weights
from real.model.policy import Policy, quiet
from real.ranks.sharding import computed_with, is_sharded, whole_tensor
from real.update.average import WeightAverage

FOLDER = "model"


def save_model(
    policy: Policy, run_folder: Path | None, average: WeightAverage | None = None
) -> Path | None:
    """Write RUN/model: configuration, generation settings, weights, tokenizer.

    Adapters are merged into the weights that they belong to.

    Args:
        policy: of all ranks, which must all call this.
        run_folder: None on ranks that do not write.
        average: of the weights, written in their place.

    Returns:
        The folder; it is there whole or not at all.

    Raises:
        UserError: the disk cannot be written.
    """
    with average.held_by(policy.model) if average else nullcontext():
        return _write(policy, run_folder)


def _write(policy: Policy, run_folder: Path | None) -> Path | None:
    weights = _weights(policy.model, run_folder is not None)
    if run_folder is None:
        return None
    target = run_folder / FOLDER
    with whole_folder(target) as folder:
        try:
            with quiet():
                policy.model.save_pretrained(str(folder), state_dict=weights)
                policy.tokenizer.save_pretrained(str(folder))
        except SafetensorError as error:  # the way in which it reports a full disk
            raise OSError(str(error)) from error
    return target


def model_bytes(model: Any) -> int:
    """Return the bytes of the weights that `save_model` writes, and of any adapters."""
    return sum(p.numel() * computed_with(p, model).itemsize for p in model.parameters())


def _weights(model: Any, writes: bool) -> dict[str, Any] | None:
    """Return the weights to write in place of the model's own; None to write its own.

    Sharded weights are gathered one at a time, and freed at once on ranks that do not write.
    """
    if not has_adapters(model) and not is_sharded(model):
        return None
    kept = model.state_dict()
    weights = {name: value for name, value in model.named_buffers() if name in kept}
    for name, value in merged_weights(model):
        whole = whole_tensor(value.to(computed_with(value, model)))
        if writes:
            weights[name] = whole.cpu()
    return weights
