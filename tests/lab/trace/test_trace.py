import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from lab.base.errors import UserError
from lab.trace.trace import load


@pytest.fixture
def folder(tmp_path, make_trace, save):
    trace = make_trace("ttrl", np.full((2, 2, 9), 0.5), np.full((2, 9), 0.5))
    return save(trace, tmp_path / "run")


def refused(folder):
    with pytest.raises(UserError) as caught:
        load(folder)
    message = str(caught.value)
    assert message.startswith(str(folder)) and "\n" not in message
    return message


def test_half_written_parts_are_ignored(folder):
    (folder / "visits" / "part-00001.parquet.tmp").write_bytes(b"PAR1 half")
    (folder / "run.json.tmp").write_bytes(b"{")
    assert len(load(folder).visits) == 36


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"schema_version": 99, "world": "moon"}', "upgrade ttrl-guard-lab"),
        (b"[1, 2]", "not of this program"),
        (b'{"schema_version": 1, "world"', "damaged"),
        (b"\xff\xfe", "damaged"),
        (b'{"schema_version": 1}', "damaged"),
        (b'{"schema_version": "1"}', "not of this program"),
    ],
)
def test_foreign_and_damaged_manifests(folder, content, reason):
    (folder / "run.json").write_bytes(content)
    assert reason in refused(folder)


def test_places_that_are_no_run(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    assert "no such folder" in refused(tmp_path / "nowhere")
    assert "an empty folder" in refused(tmp_path / "empty")
    assert "not a run folder (run.json is missing)" in refused(tmp_path / "other")
    assert "not a folder" in refused(tmp_path / "file")


def cut_row(part):
    pq.write_table(pq.ParquetFile(part).read()[:-1], part)


@pytest.mark.parametrize("table", ["visits", "steps", "evals"])
@pytest.mark.parametrize("cut", [Path.unlink, cut_row])
def test_a_finished_run_that_lacks_rows_is_refused_and_an_unfinished_one_is_read(
    folder, table, cut
):
    cut(folder / table / "part-00000.parquet")
    run = json.loads((folder / "run.json").read_text())
    noted = run["tables"][table]
    left = 0 if cut == Path.unlink else noted["rows"] - 1
    assert f"{table} has {left} of {noted['rows']} rows" in refused(folder)
    (folder / "run.json").write_text(json.dumps(run | {"status": "interrupted"}))
    if left == 0 and table == "visits":
        assert "holds no visits" in refused(folder)
        return
    assert len(getattr(load(folder), table)) == left
    assert load(folder).evals["pass_at_1"].dtype == np.float64


def test_a_damaged_or_missing_part_and_missing_columns_are_named(folder):
    for content in (b"", b"PAR1 nonsense PAR1"):
        (folder / "steps" / "part-00000.parquet").write_bytes(content)
        assert "steps/part-00000.parquet is damaged" in refused(folder)
    part = folder / "visits" / "part-00000.parquet"
    pq.write_table(pq.ParquetFile(part).read().drop_columns(["label", "weight"]), part)
    assert "visits lacks the columns label, weight" in refused(folder)
    part.rename(part.with_name("part-00001.parquet"))
    assert "visits/part-00000.parquet is missing" in refused(folder)


@pytest.fixture
def reads(monkeypatch):
    """Names of the tables of which a part is read."""
    found, read = [], pq.ParquetFile.read

    def noting(file, *args, **options):
        only_in = {"label": "visits", "lr": "steps", "pass_at_1": "evals"}
        found.extend(only_in[name] for name in file.schema.names if name in only_in)
        return read(file, *args, **options)

    monkeypatch.setattr(pq.ParquetFile, "read", noting)
    return found


def test_tables_are_read_when_they_are_asked_for(folder, reads):
    trace = load(folder)
    assert trace.run.arm == "ttrl"
    assert reads == []
    assert len(trace.evals) == 18
    assert reads == ["evals"]
    assert trace.visits is trace.visits
    assert reads == ["evals", "visits"]


def test_a_trace_can_be_sent_and_changed_before_it_is_read(folder, reads):
    trace = load(folder)
    copy = pickle.loads(pickle.dumps(trace))
    assert reads == []
    renamed = replace(copy, run=replace(copy.run, arm="guard"))
    assert (renamed.run.arm, renamed.folder) == ("guard", folder)
    pd.testing.assert_frame_equal(renamed.visits, trace.visits)
    trace.visits = trace.visits[trace.visits["replicate"] == 1]
    assert trace.replicates == [1]


def test_one_flipped_bit_of_a_number_is_found(folder):
    part = folder / "evals" / "part-00000.parquet"
    content = bytearray(part.read_bytes())
    place = pq.ParquetFile(part).metadata.row_group(0).column(3)
    assert place.path_in_schema == "pass_at_1"
    content[place.dictionary_page_offset + place.total_compressed_size - 3] ^= 1
    part.write_bytes(content)
    with pytest.raises(UserError, match=r"evals/part-00000\.parquet is damaged"):
        _ = load(folder).evals


def test_a_run_deleted_before_it_was_read(folder):
    trace = load(folder)
    shutil.rmtree(folder)
    with pytest.raises(UserError, match=r"steps/part-00000\.parquet is gone"):
        _ = trace.steps
