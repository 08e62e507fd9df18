"""Places and handles of the memory through which weights reach an engine's process."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_process import COMMAND, TinyModel

from lab.errors import UserError
from real.engines import weight_transfer, weights
from real.engines.child import REQUEST
from real.engines.child_engine import ChildEngine
from real.engines.rollouts import Sampling


def test_a_folder_in_memory_only_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, chosen = tmp_path / "memory", tmp_path / "chosen"
    memory.mkdir()
    chosen.mkdir()
    monkeypatch.setattr(weights, "_MEMORY", memory)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    few, many = weights.Room(1000, 1000), weights.Room(10**18, 10**18)
    assert weights.exchange_folder(few).parent == memory
    assert weights.exchange_folder(many).parent == tmp_path
    assert weights.exchange_folder(many, str(chosen)).parent == chosen
    with pytest.raises(UserError, match=r"engine_exchange = .*absent: cannot be written \(No such"):
        weights.exchange_folder(few, str(tmp_path / "absent"))


def test_a_handle_of_device_memory_is_plain_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """The protocol of CUDA IPC without a GPU: what crosses over is what torch gets back."""
    fields = (b"\x00handle\xff", 4096, 512, b"counter", 7, b"event", True)
    shared = SimpleNamespace(_share_cuda_=lambda: (3, *fields))
    bucket = weights.CudaBucket.__new__(weights.CudaBucket)
    bucket.memory = torch.zeros(2, dtype=torch.uint8)
    monkeypatch.setattr(torch.Tensor, "untyped_storage", lambda _: shared)
    handle = json.loads(json.dumps(bucket.handle()))
    monkeypatch.undo()
    got: list[Any] = []

    def reopened(*given: Any) -> torch.UntypedStorage:
        got.extend(given)
        return torch.UntypedStorage(4)

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", reopened, raising=False)
    assert len(weight_transfer.opened(handle)) == 2
    assert tuple(got) == (0, *fields)


def test_a_request_that_cannot_be_written_is_one_line() -> None:
    """As in a full /dev/shm; a folder in the place of the file stands for that."""
    engine = ChildEngine({}, 20.0, command=COMMAND)
    with closing(engine):
        engine.update_weights(TinyModel(8.0), version=1)
        request = engine._folder / REQUEST
        request.unlink()
        request.mkdir()
        draws = torch.Generator().manual_seed(0)
        with pytest.raises(UserError, match=r"^engine: .* cannot be written .*engine_exchange$"):
            engine.sample([[1, 2]], 4, Sampling(2), draws)
        request.rmdir()
        assert engine.sample([[1, 2]], 4, Sampling(2), draws).version == 1
