"""Two runs on one GPU, which is made up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lab.errors import UserError
from real import TrainConfig
from real.model.prepare import card_held

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a+")
fcntl.lockf(file, getattr(fcntl, sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""
ALL = TrainConfig(engine="vllm")
SHARE = TrainConfig(engine="vllm", engine_memory=0.3)
Hold = Callable[[str], None]


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hold]:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    properties = SimpleNamespace(uuid="GPU-8f")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    held: list[Any] = []

    def hold(kind: str) -> None:
        command = [sys.executable, "-c", HOLD, tmp_path / "guard-train-GPU-8f.lock", kind]
        held.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert held[-1].stdout.readline() == b"held\n"

    yield hold
    for process in held:
        process.communicate()


@pytest.mark.parametrize(("kind", "config"), [("LOCK_EX", SHARE), ("LOCK_SH", ALL)])
def test_a_run_that_takes_all_of_a_gpu_is_alone_on_it(
    other: Hold, kind: str, config: TrainConfig
) -> None:
    with card_held(config), card_held(config):  # runs of one process are no other runs
        pass
    other(kind)
    refused = pytest.raises(UserError, match=r"^GPU 3: another run is on it.*engine_memory$")
    with refused, card_held(config):
        pass


def test_runs_with_shares_of_a_gpu_stand_beside_each_other(other: Hold) -> None:
    other("LOCK_SH")
    for config in (SHARE, TrainConfig(engine="transformers"), TrainConfig(engine="vllm_server")):
        with card_held(config):
            pass
