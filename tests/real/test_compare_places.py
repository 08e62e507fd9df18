"""Runs of a comparison on GPUs: each has its own, on one machine with a list of made-up ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.errors import UserError
from lab.trace.manifest import read_manifest
from real import TrainConfig
from real.compare.arms import compare
from real.compare.jobs import _reason, find_places, run_jobs
from real.compare.runs import job_of

TINY = TrainConfig(
    n_problems=2,
    batch_size=2,
    n_votes=4,
    n_samples=2,
    epochs=1,
    max_response_tokens=2,
    eval_samples=1,
)


@pytest.fixture
def five(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 5)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 7,GPU-8f,9,11")


def test_gpus_are_dealt_to_as_many_runs_as_they_hold(five: None):
    assert find_places("auto", None, 2) == ([("4", "7"), ("GPU-8f", "9")], [])
    assert find_places("cuda", 1, 2) == ([("4", "7")], [])
    assert find_places("auto", None, 1)[0] == [("4",), ("7",), ("GPU-8f",), ("9",), ("11",)]
    assert find_places("cpu", 3, 1) == ([(), (), ()], [])


def test_more_jobs_than_gpus_wait_with_a_notice(five: None):
    places, notices = find_places("auto", 4, 2)
    assert len(places) == 2
    assert notices == [
        "jobs = 4: 5 GPUs have room for 2 runs at once (gpus_per_run = 2); the others wait"
    ]


def test_without_a_list_gpus_are_numbered(five: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert find_places("auto", 2, 1)[0] == [("0",), ("1",)]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"n_parallel": 0}, "jobs = 0: must be at least 1"),
        ({"gpus_per_run": 0}, "gpus_per_run = 0: must be at least 1"),
        ({"gpus_per_run": 2}, "gpus_per_run = 2: there are 0 GPUs"),
    ],
)
def test_wrong_numbers_are_refused_before_any_run(
    numbers: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(UserError, match=words):
        compare(TINY, tmp_path / "all", ["ttrl"], [0], **numbers)
    assert not (tmp_path / "all").exists()


@pytest.mark.slow  # processes start from nothing, as they do beside CUDA
def test_each_run_sees_its_own_gpus(tmp_path: Path):
    """The ranks of torchrun on a place of two GPUs."""
    (tmp_path / "ttrl").mkdir()
    job = job_of(TINY, tmp_path, "ttrl", 0)
    shares: list[float] = []
    (outcome,) = run_jobs([job], [("7", "GPU-8f")], shares.append)
    assert outcome.error is None
    run = read_manifest(job.folder)
    assert (run.extra["gpus"], run.backend) == ("7,GPU-8f", "transformers on 2 x cpu")
    assert run.status == "finished" and shares[-1] == 1


def test_the_reason_of_a_failed_rank_is_not_torchruns_report(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text(
        "guard-train: rank 1: update: out of GPU memory; lower micro_tokens\n"
        "guard-train: notice: of no use\n"
        "real.compare.jobs FAILED\n=====\n"
    )
    assert _reason(1, log) == "rank 1: update: out of GPU memory; lower micro_tokens"
