"""Log-probs, losses and updates that are not finite: noted, and soon the end of the run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lab.errors import UserError
from lab.trace.manifest import Manifest, read_manifest
from real import TrainConfig, resume, train
from real.tiny import CHECKPOINT

SHORT = TrainConfig(
    n_problems=8, n_votes=4, n_samples=2, epochs=8, eval_every=0, max_refused=6, max_unread=1.0
)
"""8 optimizer steps a batch."""


@pytest.fixture
def nan_model(tmp_path: Path) -> Path:
    """The tiny checkpoint with NaN for every weight."""
    folder = tmp_path / "nan"
    shutil.copytree(CHECKPOINT, folder)
    (file,) = folder.glob("*.safetensors")
    weights = {name: torch.full_like(value, torch.nan) for name, value in load_file(file).items()}
    save_file(weights, file, {"format": "pt"})
    return folder


def ended(config: TrainConfig, folder: Path) -> Manifest:
    with pytest.raises(UserError, match=r"was not finite, 6 times in a row; lower lr"):
        train(config, folder, progress=False)
    run = read_manifest(folder)
    assert run.status == "failed" and "6 times in a row" in (run.error or "")
    return run


@pytest.mark.parametrize("drop_uniform", [False, True])
def test_a_model_of_nan_ends_the_run_in_its_first_batch(
    nan_model: Path, tmp_path: Path, drop_uniform: bool, capsys: pytest.CaptureFixture[str]
):
    config = replace(SHORT, model=str(nan_model), drop_uniform=drop_uniform)
    run = ended(config, tmp_path / "run")
    (notice,) = run.extra["notices"][-1:]
    refused = "optimizer steps refused since the log-prob of every response token was not finite"
    assert notice == f"{refused}: 6 in batches 1 to 1"
    assert run.extra["refused_steps"] == 6
    assert f"{refused}: 6 in batch 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes", [{"lr": 1e10}, {"lr": 1e36, "dtype": "bfloat16"}], ids=["float32", "bfloat16"]
)
def test_an_update_that_overflows_is_noted_and_ends_the_run(
    tmp_path: Path, changes: dict[str, float]
):
    run = ended(replace(SHORT, **changes), tmp_path / "run")
    notices = [line.partition(": ")[0] for line in run.extra["notices"]]
    assert "optimizer steps refused since the norm of the update was not finite" in notices
    assert run.extra["refused_steps"] == sum(
        number for text, (number, _, _) in run.extra["faults"].items() if "refused" in text
    )


def test_a_resumed_run_keeps_its_notices(tmp_path: Path):
    """With a bound that is never reached the dead run goes on, and counts in each batch."""
    config = replace(SHORT, lr=1e36, epochs=1, batch_size=4, max_refused=99, checkpoint_every=1)

    def stop(done: float) -> None:
        raise KeyboardInterrupt

    whole = train(config, progress=False).run.extra
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", stop)
    extra = resume(tmp_path / "run", progress=False).run.extra
    assert extra["faults"] == whole["faults"] and extra["notices"] == whole["notices"]
    assert extra["refused_steps"] == whole["refused_steps"] > 0
