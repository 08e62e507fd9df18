import errno
import os

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.base import files
from lab.base.errors import UserError
from lab.trace.manifest import encode
from lab.trace.trace import MemoryRun, RunFolder, Trace, load

STEP = {"replicate": 0, "epoch": 1, "lr": 0.1, "update_norm": 0.2, "n_problems": 8, "n_skipped": 0}


def parts(folder, table):
    return sorted(path.name for path in (folder / table).iterdir())


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 7), max_size=12), st.integers(1, 20))
def test_parts_join_to_what_was_written(
    tmp_path_factory, make_manifest, make_visits, sizes, flush_rows
):
    folder = tmp_path_factory.mktemp("runs") / "run"
    rng = np.random.default_rng(len(sizes))
    norms = [rng.random(size) for size in sizes]
    with RunFolder.create(folder, make_manifest(), flush_rows=flush_rows) as run:
        run.write("visits", make_visits([[[0.5, 0.5]]]))
        for norm in norms:
            run.write("steps", {**STEP, "step": 1, "update_norm": norm})
    written = [value for norm in norms for value in norm]
    assert load(folder).steps["update_norm"].tolist() == written
    assert len(parts(folder, "steps")) <= 1 + len(written) // flush_rows


@pytest.mark.parametrize(("writes", "flush_rows"), [(1, 1), (3, 1), (4, 1000)])
def test_memory_and_folder_hold_the_same_rows(
    tmp_path, make_manifest, make_visits, make_evals, writes, flush_rows
):
    path, accuracy = tmp_path / "deep" / "run", np.random.default_rng(0).random((2, 3, 9))
    with (
        MemoryRun(make_manifest(), writes) as memory,
        RunFolder.create(path, make_manifest(), writes, flush_rows) as folder,
    ):
        for recorder in (memory, folder):
            recorder.write("visits", make_visits(accuracy))
            norms = np.arange(5.0)
            for _ in range(4):
                recorder.write("steps", {**STEP, "step": 1, "update_norm": norms})
                norms += 1  # what was written stays
            recorder.write("steps", {**STEP, "step": 2, "loss": 0.5})
            recorder.write("evals", make_evals([[0.5, 0.6]]))
            recorder.note(progress=0.5, achieved_ratio=np.float32(0.5), counts=np.arange(2))
    kept, stored = Trace.of(memory), load(path)
    assert encode(stored.run) == encode(folder.manifest)
    for run in (kept.run, stored.run):
        assert (run.status, run.progress, run.error) == ("finished", 1.0, None)
    for table in ("visits", "steps", "evals"):
        pd.testing.assert_frame_equal(getattr(kept, table), getattr(stored, table))
    assert all(dtype.kind in "bif" for dtype in stored.visits.dtypes)
    assert stored.visits["label_accuracy"].tolist() == accuracy.ravel().tolist()
    np.testing.assert_array_equal(stored.steps["loss"], [np.nan] * 20 + [0.5])
    written = [first + i for first in range(4) for i in range(5)]
    assert stored.steps["update_norm"].tolist() == [*written, STEP["update_norm"]]
    assert stored.run.extra == {"achieved_ratio": 0.5, "counts": [0, 1]}


def test_places_where_no_run_can_go_are_never_touched(tmp_path, make_trace, save, make_manifest):
    def content():
        return {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}

    save(make_trace("ttrl", [[[0.5, 0.5]]], [[0.5, 0.5]]), tmp_path / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    wrong = {"full": "is not empty", "file": "is a file", "file/run": "cannot be made"}
    wrong["run"] = "already holds a run; choose another folder"
    before = content()
    for place, reason in wrong.items():
        with pytest.raises(UserError, match=reason) as caught:
            RunFolder.create(tmp_path / place, make_manifest())
        assert str(tmp_path / place) in str(caught.value) and "\n" not in str(caught.value)
    assert content() == before


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (KeyboardInterrupt(), "interrupted", None),
        (RuntimeError("out of luck\nand more"), "failed", "RuntimeError: out of luck"),
        (ImportError("\nA needs B\n"), "failed", "ImportError: A needs B"),
        (SystemExit(), "failed", "SystemExit: "),
    ],
)
def test_what_ends_a_run_is_noted_and_its_rows_are_kept(
    tmp_path, make_manifest, make_visits, error, status, line
):
    with pytest.raises(type(error)), RunFolder.create(tmp_path / "run", make_manifest()) as run:
        run.write("visits", make_visits([[[0.5, 0.25]]]))
        run.note(progress=0.5)
        raise error
    trace = load(tmp_path / "run")
    assert (trace.run.status, trace.run.error, trace.run.progress) == (status, line, 0.5)
    assert trace.visits["label_accuracy"].tolist() == [0.5, 0.25]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_interrupt_while_writing_loses_and_repeats_nothing(
    tmp_path, make_manifest, make_visits, monkeypatch, moment
):
    write, replace, calls = pq.write_table, os.replace, []

    def interrupted_write(*args, **options):
        calls.append(args)
        if len(calls) == 1 and moment == "before":
            # Nobody who is killed here leaves half a part under its name.
            assert all(name.endswith(".tmp") for name in parts(tmp_path / "run", "visits"))
            raise KeyboardInterrupt
        write(*args, **options)

    def interrupted_replace(*args):
        replace(*args)
        if len(calls) == 1 and moment == "after" and "part" in str(args[1]):
            raise KeyboardInterrupt

    run = RunFolder.create(tmp_path / "run", make_manifest(), flush_rows=1)
    monkeypatch.setattr(pq, "write_table", interrupted_write)
    monkeypatch.setattr(files.os, "replace", interrupted_replace)
    with pytest.raises(KeyboardInterrupt), run:
        run.write("visits", make_visits([[[0.5, 0.25]]]))
    trace = load(tmp_path / "run")
    assert trace.visits["visit"].tolist() == [0, 1] and trace.run.status == "interrupted"


def full(_, target, **options):
    target.write(b"half a part")
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("room", "kept", "status"),
    [(False, [0.5, 0.25], "running"), (True, [0.5, 0.25, 1.0, 0.75], "failed")],
    ids=["stays full", "room at the end"],
)
def test_a_full_disk_is_a_user_error_and_loses_only_what_found_no_room(
    tmp_path, make_manifest, make_visits, monkeypatch, room, kept, status
):
    write = pq.write_table
    run = RunFolder.create(tmp_path / "run", make_manifest(), flush_rows=1)
    run.write("visits", make_visits([[[0.5, 0.25]]]))
    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(UserError, match="No space left on device"), run:
        try:
            run.write("visits", make_visits([[[1.0, 0.75]]], replicates=[1]))
        finally:
            monkeypatch.setattr(pq, "write_table", write if room else full)
    trace = load(tmp_path / "run")
    assert trace.visits["label_accuracy"].tolist() == kept and trace.run.status == status
