import json
import multiprocessing
import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from scripted_child import COMMAND, TinyModel
from small_models import seeded

from lab.base.errors import UserError
from lab.trace.manifest import is_unused
from lab.trace.schema import names
from real.engines import exchange, weights
from real.engines.child_engine import ChildEngine
from real.engines.exchange import REQUEST
from real.engines.rollouts import EngineDied, EngineError, Sampling
from real.engines.weights import LOCAL, Route, named_weights
from real.model.policy import load_policy
from real.model.prepare import add_lora
from real.settings.groups import MemorySettings
from real.tiny import CHECKPOINT

PROMPTS = [[1, 2], [3]]
TWO = Sampling(2)


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "MEMORY", tmp_path)
    engines = []

    def make(is_loaded=False, route=LOCAL, **settings):
        engines.append(ChildEngine(settings, 60.0, route, command=COMMAND))
        if is_loaded:
            engines[-1].update_weights(TinyModel(8.0), version=1)
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
    assert not list(tmp_path.glob("guard-engine-*"))


def running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_samples_weights_and_versions_cross_over(start):
    engine = start()
    with pytest.raises(EngineError, match="no weights"):  # a refusal leaves it running
        engine.sample(PROMPTS, 4, TWO, seeded())
    engine.update_weights(TinyModel(8.0), version=3)
    found = engine.sample(PROMPTS, 4, TWO, seeded(1))
    assert found.version == 3
    assert found.tokens_PNT.shape == (2, 4, 2)
    assert (found.tokens_PNT[..., 1] == 8).all()
    assert found.logprobs_PNT[1, 3].tolist() == [-0.5, -1.0]
    assert found.finished_PN.all()
    # Response i of prompt p is drawn with seed + p*n + i.
    first = found.tokens_PNT[..., 0].flatten()
    assert ((first - first[0]) % 97).tolist() == list(range(8))
    again = engine.sample(PROMPTS, 4, TWO, seeded(1))
    assert torch.equal(again.tokens_PNT, found.tokens_PNT)
    engine.update_weights(TinyModel(12.0), version=4)
    assert engine.sample(PROMPTS, 4, TWO, seeded(1)).tokens_PNT[0, 0, 1] == 12


def test_an_engine_says_itself_that_it_has_died(start):
    with pytest.raises(EngineDied, match=r"^scripted engine: it has died$"):
        start(start="died")


def test_signs_of_life_keep_a_slow_engine_alive_and_a_hang_ends_within_the_limit(start):
    engine = start(is_loaded=True, steps=14)
    engine.timeout = 3.0
    assert engine.sample(PROMPTS, 1, TWO, seeded()).version == 1
    os.kill(engine.pid, signal.SIGSTOP)
    engine.timeout = 2.0
    began = time.monotonic()
    message = r"no sign of life for 2 s during sample, its process was killed.*engine_timeout"
    with pytest.raises(EngineDied, match=message):
        # More than any pipe holds: a write to a stopped process would wait for ever.
        engine.sample([[1] * 2_000_000], 1, TWO, seeded())
    assert time.monotonic() - began < 60
    assert not running(engine.pid)
    with pytest.raises(EngineDied, match="its process has ended"):
        engine.sample(PROMPTS, 4, TWO, seeded())


def test_what_the_engine_started_dies_with_it(start):
    engine = start(is_loaded=True, sample="grandchild")
    engine.timeout = 2.0
    with pytest.raises(EngineDied, match=r"its last line: grandchild \d+") as caught:
        engine.sample(PROMPTS, 1, TWO, seeded())
    grandchild = int(str(caught.value).split("grandchild ")[1].split(";")[0])
    assert until(lambda: not running(grandchild))


def test_memory_of_the_weights_ends_with_the_engine(start, tmp_path):
    """Else the engine that replaces one that died would find too little of it."""
    engine = start(is_loaded=True)
    maps = Path("/proc/self/maps")
    assert str(tmp_path) in maps.read_text()
    engine.close()
    assert str(tmp_path) not in maps.read_text()


def hold_an_engine(pipe):
    pipe.send(ChildEngine({}, 60.0, command=COMMAND).pid)
    time.sleep(600)


def test_an_orphaned_engine_ends_and_cleans_up(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "MEMORY", tmp_path)
    forked = multiprocessing.get_context("fork")
    here, there = forked.Pipe()
    parent = forked.Process(target=hold_an_engine, args=(there,))
    parent.start()
    there.close()
    engine = here.recv()
    assert running(engine)
    parent.kill()
    parent.join()
    assert until(lambda: not running(engine) and not list(tmp_path.glob("guard-engine-*")))


class ThreeWeights(TinyModel):
    """A kilobyte each, of 1.0, 2.0 and bfloat16 3.0."""

    def __init__(self):
        super().__init__(4.0)
        self.weight = torch.nn.Parameter(torch.ones(256))
        self.second = torch.nn.Parameter(torch.full((16, 16), 2.0))
        self.third = torch.nn.Parameter(torch.full((512,), 3.0, dtype=torch.bfloat16))


def test_weights_cross_over_bucket_by_bucket_where_room_is_short(start, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "BUCKET", 2048)
    monkeypatch.setattr(weights, "SPARE", 0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2500))
    engine, model = start(), ThreeWeights()
    for version, factor in ((1, 1), (2, 10)):
        with torch.no_grad():
            model.weight.fill_(factor)
        stages = engine.update_weights(model, version)
        (bucket,) = tmp_path.glob("guard-engine-*/weights")
        assert bucket.stat().st_size == 2048
        total = 256 * factor + 512 + 1536
        assert engine.sample(PROMPTS, 1, TWO, seeded()).tokens_PNT[0, 0, 1] == total
        assert all(seconds > 0 for seconds in stages.values())
    assert set(stages) == {"seconds_sync_copy", "seconds_sync_load"} < set(names("steps"))


@pytest.mark.parametrize(("other", "waits"), [(1536, 7), (9000, 3)])
def test_machines_with_more_and_less_room_fill_buckets_of_one_size(tmp_path, other, waits):
    """Else the ranks of one would wait at a full bucket for those of the other, without end."""
    waited = []

    def gather(own):
        return torch.stack([own, own if own.ndim else torch.tensor(other)])

    two = {"rank": 0, "local_rank": 0, "local_world": 1, "gather": gather}
    ranks = SimpleNamespace(**two, wait=lambda: waited.append(1))
    weights.WeightSender(tmp_path, Route(ranks=ranks)).update_weights(ThreeWeights(), 1)
    assert (tmp_path / "weights").stat().st_size == min(other, 3072)
    assert len(waited) == waits


def test_an_engine_that_applies_no_adapters_gets_merged_weights(start):
    pytest.importorskip("peft")
    adapted = load_policy(CHECKPOINT, "cpu").model
    add_lora(adapted, MemorySettings(lora_rank=4))
    engine = start(route=Route(adapters=True), refused_adapters="none for this model")
    with pytest.warns(UserWarning, match="engine_adapters: none for this model; the merged"):
        engine.update_weights(adapted, 1)
    engine.update_weights(adapted, 2)  # said once
    merged = sum(float(value.sum()) for _, value in named_weights(adapted))
    assert engine.sample(PROMPTS, 1, TWO, seeded()).tokens_PNT[0, 0, 1] == round(merged)


def test_the_engine_is_given_the_memory_of_the_update_before_it_wakes(tmp_path, monkeypatch):
    """Of a GPU: torch keeps what an update has freed, and the cache takes all that is left."""
    pytest.importorskip("peft")
    adapted = load_policy(CHECKPOINT, "cpu").model
    add_lora(adapted, MemorySettings(lora_rank=4))
    happened = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: happened.append("memory"))
    route = Route(torch.device("cuda"), torch.bfloat16, adapters=True)
    sender = weights.WeightSender(
        tmp_path, route, lambda message, _: happened.append(message["do"]) or {}
    )
    monkeypatch.setattr(sender, "_has_base", True)
    for version in range(2):
        sender.update_weights(adapted, version)
    assert happened == ["memory", "adapt"] * 2


def test_the_vllm_process_refuses_its_settings_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "vllm.py").write_text("raise ImportError('broken here')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    settings = {"model": "m", "max_model_len": 4, "eos_token_ids": [1], "threads": None}
    with pytest.raises(EngineError, match=r"cannot be imported \(broken here\); pip install"):
        ChildEngine(settings, 120.0)


def test_the_log_is_a_file_that_messages_name_and_an_empty_one_is_removed(tmp_path):
    log = tmp_path / "run" / "engine-rank0.log"
    with pytest.raises(EngineDied, match=r"died during start \(exit code 3\)$"):
        silent = (sys.executable, "-c", "raise SystemExit(3)")
        ChildEngine({}, 20.0, command=silent, log=log)
    assert not log.parent.exists()
    ways = {"load": ("exit", "exit code 3"), "sample": ("kill", "signal SIGKILL")}
    for doing, (how, words) in ways.items():
        engine = ChildEngine({doing: how}, 60.0, command=COMMAND, log=log)
        said = rf"\({words}\), its last line: scripted engine: {how} in {doing}"
        named = re.escape(str(log))
        with pytest.raises(EngineDied, match=rf"died during {doing} {said}; log: {named}$"):
            engine.update_weights(TinyModel(1.0), version=0)
            engine.sample(PROMPTS, 1, TWO, seeded())
        engine.close()
    # The one of an earlier start stays.
    assert log.read_text().count("scripted engine: ready") == 2
    assert is_unused(log.parent)  # a run can still be made there
    log = log / "below-a-file" / "log"
    with pytest.raises(UserError, match=r"log: cannot be written"):
        ChildEngine({}, 20.0, command=COMMAND, log=log)


def test_a_folder_in_memory_only_where_there_is_room(tmp_path, monkeypatch):
    memory, chosen = tmp_path / "memory", tmp_path / "chosen"
    memory.mkdir()
    chosen.mkdir()
    monkeypatch.setattr(weights, "MEMORY", memory)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    few, many = weights.Room(1000, 1000), weights.Room(10**18, 10**18)
    assert weights.exchange_folder(few).parent == memory
    assert weights.exchange_folder(many).parent == tmp_path
    assert weights.exchange_folder(many, str(chosen)).parent == chosen
    with pytest.raises(UserError, match=r"engine_exchange = .*absent: cannot be written \(No such"):
        weights.exchange_folder(few, str(tmp_path / "absent"))


def test_a_handle_of_device_memory_is_plain_values(monkeypatch):
    """The protocol of CUDA IPC without a GPU: what crosses over is what torch gets back."""
    fields = (b"\x00handle\xff", 4096, 512, b"counter", 7, b"event", True)
    shared = SimpleNamespace(_share_cuda_=lambda: (3, *fields))
    bucket = weights.CudaBucket.__new__(weights.CudaBucket)
    bucket.memory = torch.zeros(2, dtype=torch.uint8)
    monkeypatch.setattr(torch.Tensor, "untyped_storage", lambda _: shared)
    handle = json.loads(json.dumps(bucket.handle()))
    monkeypatch.undo()
    reopened = Mock(return_value=torch.UntypedStorage(4))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", reopened, raising=False)
    assert len(exchange.opened(handle)) == 2
    assert reopened.call_args.args == (0, *fields)


def test_what_cannot_be_written_is_one_line(start, tmp_path, monkeypatch):
    """As in a full /dev/shm; a folder in the place of the request stands for that."""
    engine = start()
    full = Mock(side_effect=OSError(28, "No space left on device"))
    message = r"no room for \d+ MiB \(No space left on device\); name a folder .* engine_exchange"
    with monkeypatch.context() as patch, pytest.raises(UserError, match=message):
        patch.setattr("os.posix_fallocate", full)
        engine.update_weights(TinyModel(8.0), version=1)
    engine.update_weights(TinyModel(8.0), version=1)
    (request,) = tmp_path.glob(f"guard-engine-*/{REQUEST}")
    request.unlink()
    request.mkdir()
    with pytest.raises(UserError, match=r"^engine: .* cannot be written .*engine_exchange$"):
        engine.sample(PROMPTS, 4, TWO, seeded())
    request.rmdir()
    assert engine.sample(PROMPTS, 4, TWO, seeded()).version == 1
