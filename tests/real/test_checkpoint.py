import errno
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_runs import Stopped, stop_at

import real.record.checkpoint
from lab.base.errors import UserError
from lab.base.files import file_digest
from lab.trace.trace import load
from real import TrainConfig, resume, train
from real.model.policy import load_policy
from real.plan import checkpoint_bytes
from real.ranks.distributed import read_tensors, shard_path, write_tensors
from real.record.checkpoint import check_room, model_bytes
from real.run import prepare

SMALL = TrainConfig(
    n_problems=4, batch_size=2, n_votes=8, n_samples=4, epochs=2, eval_samples=2, save_model=True
)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Stopped in the last of four batches, with checkpoints at 1, 2 and 3."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Stopped):
        config = replace(SMALL, checkpoint_every=1, checkpoint_keep=3)
        train(config, folder, progress=stop_at(1.0))
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of four batches, with checkpoints at the ends of its two epochs."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(SMALL, folder, progress=False)
    return folder


@pytest.fixture
def run(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    return tmp_path / "run"


def steps(folder):
    return sorted(p.name for p in (folder / "checkpoints").iterdir())


TENSORS = {
    "wide": torch.arange(6, dtype=torch.float64).reshape(2, 3),
    "half": torch.tensor([1.5, -2.25], dtype=torch.bfloat16),
    "flags": torch.tensor([True, False, True]),
    "scalar": torch.tensor(7.0),
    "small": torch.tensor([3], dtype=torch.int16),
    "none": torch.zeros((4, 0)),
    "turned": torch.arange(6.0).reshape(2, 3).T,
}


def test_tensor_files_are_safetensors(tmp_path):
    """To the byte what the library writes."""
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    assert write_tensors(ours, TENSORS) == file_digest(ours)
    save_file({name: tensor.contiguous() for name, tensor in TENSORS.items()}, theirs)
    assert ours.read_bytes() == theirs.read_bytes()
    read = read_tensors(ours)
    assert all(torch.equal(read[name], tensor) for name, tensor in TENSORS.items())


def test_minutes_make_one_due_at_the_end_of_any_batch(tmp_path):
    config = replace(SMALL, checkpoint_every=100, checkpoint_keep=9, save_model=None)
    train(replace(config, checkpoint_minutes=1e-9), tmp_path / "often", progress=False)
    assert steps(tmp_path / "often") == [f"step-{n:06d}" for n in range(5)]
    train(replace(config, checkpoint_minutes=0.0), tmp_path / "ends", progress=False)
    assert steps(tmp_path / "ends") == ["step-000000", "step-000004"]
    assert not (tmp_path / "ends" / "model").exists()  # is saved where it is asked for


def test_shards_of_several_ranks_are_one_tensor(tmp_path):
    """Cut along the first dimension; tensors that all ranks have are the first one's."""
    whole = torch.arange(10.0).reshape(5, 2)
    for rank, rows in enumerate((slice(0, 3), slice(3, 5), slice(5, 5))):
        part = {"a": whole[rows]} | ({"n": torch.tensor(7)} if rank == 0 else {})
        write_tensors(shard_path(tmp_path / "x.safetensors", rank, 3), part)
    read = read_tensors(tmp_path / "x.safetensors")
    pieces = read["a"]
    assert pieces.whole().shape == whole.shape and torch.equal(pieces.whole(), whole)
    assert all(torch.equal(pieces.rows(a, b), whole[a:b]) for a in range(6) for b in range(a, 6))
    assert int(read["n"]) == 7
    shard_path(tmp_path / "x.safetensors", 1, 3).unlink()
    with pytest.raises(UserError, match=r"x\.1-of-3\.safetensors: cannot be read"):
        read_tensors(tmp_path / "x.safetensors")


def test_a_damaged_one_is_named_and_the_one_before_is_used(run, capsys):
    """`test_distributed` has a damaged file of tensors."""
    damaged = run / "checkpoints" / "step-000003" / "answers.json"
    content = bytearray(damaged.read_bytes())
    content[-3] ^= 1
    damaged.write_bytes(content)
    (run / "checkpoints" / "step-000004.tmp").mkdir()  # of a killed process
    (run / "checkpoints" / "step-000004.tmp" / "model.safetensors").write_text("half")
    trace = resume(run, progress=False)
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "step-000003: answers.json is damaged; the one before it is used" in line
    assert line == f"guard-train: notice: {trace.run.extra['notices'][0]}"
    assert trace.run.extra["resumed"][0]["step"] == 2
    assert trace.steps["step"].tolist() == [1, 2, 3, 4]
    # The damaged one has made room for a sound one of the same batch; the leftover is gone.
    assert steps(run) == ["step-000002", "step-000003", "step-000004"]
    unused = []
    assert real.record.checkpoint.latest(run, unused.append) is not None and not unused


def test_a_damaged_one_takes_no_sound_one_s_place(run):
    for step in (2, 3):
        (run / "checkpoints" / f"step-00000{step}" / "checkpoint.json").write_text("{")
    config = replace(SMALL, checkpoint_every=2, checkpoint_keep=1)
    with pytest.raises(Stopped):
        resume(run, config, progress=stop_at(0.75))
    assert steps(run) == ["step-000002", "step-000003"]
    resumed = resume(run, progress=False).run.extra["resumed"]
    assert [one["step"] for one in resumed] == [1, 2]


def test_with_no_sound_one_there_is_no_resuming(run, capsys):
    """One is incomplete, one of a newer program, one damaged."""
    (run / "checkpoints" / "step-000003" / "optimizer.safetensors").unlink()
    index = run / "checkpoints" / "step-000002" / "checkpoint.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "version": 99}))
    (run / "checkpoints" / "step-000001" / "checkpoint.json").write_text("{")
    before = (run / "run.json").read_bytes()
    with pytest.raises(UserError, match="none of its 3 checkpoints can be used"):
        resume(run, progress=False)
    first, second, _ = capsys.readouterr().err.strip().splitlines()
    assert "step-000003: is damaged or incomplete" in first and "optimizer" in first
    assert "step-000002: version 99 is newer than this program's" in second
    assert (run / "run.json").read_bytes() == before and len(load(run).steps) == 4


def test_a_full_disk_leaves_the_old_checkpoint_and_a_readable_run(whole, tmp_path, monkeypatch):
    def full(path, tensors):
        digest = write_tensors(path, tensors)
        if path.parent.name.startswith("step-000004") and path.name == "optimizer.safetensors":
            path.write_bytes(path.read_bytes()[:1000])
            raise OSError(errno.ENOSPC, "No space left on device")
        return digest

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(real.record.checkpoint, "write_tensors", full)
        with pytest.raises(UserError, match=r"step-000004: cannot be written \(No space left"):
            train(SMALL, out, progress=False)
    assert steps(out) == ["step-000000", "step-000002"]
    failed = load(out)
    assert failed.run.status == "failed" and "No space left" in (failed.run.error or "")
    assert failed.steps["step"].tolist() == [1, 2, 3, 4]
    trace = resume(out, progress=False)
    np.testing.assert_array_equal(trace.steps["update_norm"], load(whole).steps["update_norm"])


@pytest.mark.parametrize(
    "changes", [{"dtype": "float32"}, {"dtype": "bfloat16"}, {"rule": "co_rewarding_2"}], ids=str
)
def test_its_size_is_known_before_the_start(changes, tmp_path):
    config = replace(SMALL, epochs=1, **changes).settled()
    train(config, tmp_path / "run", progress=False)
    saved = [*(tmp_path / "run" / "checkpoints" / "step-000002").glob("[mor]*.safetensors")]
    written = sum(t.nbytes for path in saved for t in load_file(path).values())
    parts = prepare(config)
    n_weights = sum(p.numel() for p in parts.policy.model.parameters())
    told = checkpoint_bytes(n_weights, config)
    assert len(saved) == 2 + ("rule" in changes) and 0.999 * written < told <= written
    model = sum(t.nbytes for t in load_file(tmp_path / "run/model/model.safetensors").values())
    assert model == model_bytes(parts.policy.model)


def test_its_size_is_told_and_a_disk_without_room_refused(tmp_path, monkeypatch):
    out = tmp_path / "new" / "run"
    (notice,) = check_room(out, 1_600_000_000, keep=2, n_written=5)
    assert notice == "checkpoints: 1.6 GB each; 2 are kept, 3.2 GB in all"
    assert check_room(out, 10**6, keep=2, n_written=5) == []
    free = SimpleNamespace(free=500_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    assert check_room(out, 250_000, keep=2, n_written=2) == []
    with pytest.raises(
        UserError, match=r"0\.5 MB free, and checkpoints of 0\.2 MB.*need 0\.6 MB; lower"
    ):
        check_room(out, 200_000, keep=2, n_written=5)
    assert check_room(out, 100_000, keep=2, n_written=5, final=300_000) == []
    told = r"checkpoints of 0\.1 MB and the trained model of 0\.4 MB need 0\.6 MB; .* save_model"
    with pytest.raises(UserError, match=told):
        check_room(out, 100_000, keep=2, n_written=5, final=400_000)
    free.free = 1000
    with pytest.raises(UserError, match=r"and the trained model of 0\.4 MB need 0\.4 MB"):
        train(replace(SMALL, checkpoint_every=0), out, progress=False)
    with pytest.raises(UserError, match="lower checkpoint_keep"):
        train(SMALL, out, progress=False)
    assert not out.parent.exists()


def test_the_trained_model_can_be_loaded_and_is_the_last_of_two_checkpoints(whole):
    assert steps(whole) == ["step-000002", "step-000004"]
    model = load_policy(whole / "model", "cpu")
    saved = load_file(whole / "checkpoints" / "step-000004" / "model.safetensors")
    found = {p.suffix for p in (whole / "checkpoints").rglob("*") if p.is_file()}
    assert found == {".safetensors", ".json"}  # nothing needs pickle
    for name, parameter in model.model.named_parameters():
        assert torch.equal(parameter, saved[name])


def test_a_few_responses_of_every_evaluation_are_written_down(whole):
    files = sorted((whole / "completions").iterdir())
    assert [p.name for p in files] == [f"step-{n:06d}.jsonl" for n in (0, 2, 4)]
    rows = [json.loads(line) for line in files[0].read_text().splitlines()]
    assert len(rows) == 16  # the four problems, four responses each
    assert len({row["problem"] for row in rows}) == 4
    answered = [row for row in rows if row["answer"] is not None]
    assert answered
    for row in answered:
        assert row["response"].count("boxed{" + row["answer"] + "}")
        assert row["right"] == (row["answer"] == row["truth"])
    assert {row["finish"] for row in rows} <= {"end", "length"}
