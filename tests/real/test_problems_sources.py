"""Sources of problems other than JSON: tables, saved data sets, the named sets, the hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from problem_rows import PROBLEMS, ROWS, make_set, refusal

from lab.errors import UserError
from real.problems import NAMED, Problem, load_problems
from real.problems.load import read_problems
from real.settings.config import TrainConfig

DATA = Path(__file__).parents[3] / "shared" / "data"


def write_arrow(path: Path, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def write_saved(folder: Path, shards: list[list[dict[str, Any]]]) -> Path:
    """Folder as `Dataset.save_to_disk` of datasets 5 writes it."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05d}-of-{len(shards):05d}.arrow" for i in range(len(shards))]
    for name, rows in zip(names, shards, strict=True):
        write_arrow(folder / name, rows)
    state = {"_data_files": [{"filename": name} for name in names], "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def write_saved_splits(folder: Path) -> Path:
    """Folder as `DatasetDict.save_to_disk` writes it."""
    for i, split in enumerate(("train", "test")):
        write_saved(folder / split, [ROWS[i : i + 1]])
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    return folder


def test_parquet_gives_the_same_problems(tmp_path: Path):
    path = tmp_path / "set.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    found = load_problems(path)
    assert found.problems == PROBLEMS and found.name == "set"
    assert found.fields == {"prompt": "problem", "answer": "answer", "id": "unique_id"}


def test_parquet_types_become_text(tmp_path: Path):
    path = tmp_path / "set.parquet"
    rows = [
        {"idx": 3, "prompt": [{"role": "user", "content": "x"}], "answer": Decimal("1.50")},
        {"idx": 4, "prompt": [{"role": "user", "content": "y"}], "answer": Decimal("2.00")},
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert load_problems(path).problems == [Problem("3", "x", "1.50"), Problem("4", "y", "2.00")]
    pq.write_table(pa.Table.from_pylist([{"prompt": "x", "answer": b"2"}]), path)
    assert "row 1: answer is binary data" in refusal(path)


def test_damaged_and_missing_tables_are_refused(tmp_path: Path):
    for name in ("set.parquet", "set.arrow"):
        path = tmp_path / name
        assert "cannot be read (no such file" in refusal(path)
        path.write_bytes(b"no table")
        assert f"{path}: cannot be read as a table" in refusal(path)
        path.unlink()
        path.mkdir()
        assert f"{path}: cannot be read (is a directory" in refusal(path)


def test_an_empty_table_is_refused(tmp_path: Path):
    path = tmp_path / "set.parquet"
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), path)
    assert "no problems in it" in refusal(path)


def test_saved_data_sets_need_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    whole = write_saved(tmp_path / "whole", [ROWS[:1], ROWS[1:]])
    assert load_problems(whole).problems == PROBLEMS
    assert load_problems(whole / "data-00000-of-00002.arrow").problems == PROBLEMS[:1]
    splits = write_saved_splits(tmp_path / "splits")
    assert load_problems(f"{splits}@test").problems == PROBLEMS[1:]
    assert "holds several splits (train, test); give one as in" in refusal(splits)
    assert "has no split 'dev' (train, test)" in refusal(f"{splits}@dev")
    assert "the folder holds no splits" in refusal(f"{whole}@test")
    (tmp_path / "other").mkdir()
    assert "not a saved dataset (state.json is missing)" in refusal(tmp_path / "other")


@pytest.mark.parametrize("rows", [5, 1500])
def test_what_datasets_itself_saves_is_read(tmp_path: Path, rows: int):
    datasets: Any = pytest.importorskip("datasets", reason="the extra hf is not installed")
    datasets.disable_progress_bars()
    made = [{"question": f"{i}?", "target": str(i), "idx": i} for i in range(rows)]
    saved = datasets.Dataset.from_list(made)
    expected = [Problem(str(i), f"{i}?", str(i)) for i in range(rows)]
    saved.save_to_disk(tmp_path / "one", num_shards=2)
    assert load_problems(tmp_path / "one").problems == expected
    # A selection keeps its order, not that of the rows it was taken from.
    datasets.DatasetDict(test=saved.select([3, 1])).save_to_disk(tmp_path / "two")
    assert load_problems(tmp_path / "two").problems == [expected[3], expected[1]]
    for name, save in (("a.json", saved.to_json), ("a.parquet", saved.to_parquet)):
        save(str(tmp_path / name))
        assert load_problems(tmp_path / name).problems == expected


def test_importing_the_trainer_s_settings_imports_no_datasets_and_no_pyarrow():
    code = (
        "import sys, real.settings.config, real.problems; "
        "sys.exit(bool({'datasets', 'pyarrow', 'torch', 'huggingface_hub'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("name", list(NAMED))
def test_named_sets_are_read_from_the_data_folder(name: str, monkeypatch: pytest.MonkeyPatch):
    path = DATA / f"{name}.json"
    if not path.exists() and not os.environ.get("CI"):
        pytest.skip(f"{path.name} is not next to this checkout")
    monkeypatch.delenv("GUARD_DATA", raising=False)
    found = load_problems(name, data_dir=str(DATA))
    assert len(found) == NAMED[name].n_problems and found.name == name
    assert all(problem.answer for problem in found)
    monkeypatch.setenv("GUARD_DATA", str(DATA))
    assert load_problems(name) == found
    config = TrainConfig(problems=name, model="m", n_problems=4)
    assert read_problems(config).problems == found.problems[:4]


def test_named_sets_are_found_in_every_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GUARD_DATA", raising=False)
    rows = make_set(30)
    (tmp_path / "AIME-TTT").mkdir()
    (tmp_path / "AIME-TTT" / "test.json").write_text(json.dumps(rows))
    assert len(load_problems("aime24", data_dir=str(tmp_path))) == 30
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "aime25.parquet")
    assert len(load_problems("aime25", data_dir=str(tmp_path))) == 30


def test_a_named_set_of_another_size_is_refused(tmp_path: Path):
    (tmp_path / "amc.json").write_text(json.dumps(make_set(82)))
    text = refusal("amc", data_dir=str(tmp_path))
    assert "amc.json: holds 82 problems, AMC has 83; give the whole set" in text
    # The same file by its path is a set like any other.
    assert len(load_problems(tmp_path / "amc.json")) == 82


def test_a_missing_named_set_says_where_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GUARD_DATA", raising=False)
    text = refusal("math500")
    for part in ("MATH-TTT/test.json", "math500.json", "--data-dir", "GUARD_DATA", "--hub"):
        assert part in text
    assert f"{tmp_path} holds no math500.json" in refusal("math500", data_dir=str(tmp_path))
    nowhere = str(tmp_path / "nowhere")
    assert f"data_dir = {nowhere}: no such folder" in refusal("math500", data_dir=nowhere)
    monkeypatch.setenv("GUARD_DATA", nowhere)
    assert f"GUARD_DATA = {nowhere}: no such folder" in refusal("math500")


def test_a_folder_called_like_a_named_set_can_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_saved(tmp_path / "amc", [ROWS])
    monkeypatch.chdir(tmp_path)
    assert load_problems("./amc").problems == PROBLEMS


def test_the_seed_chooses_the_problems_of_the_tiny_task():
    sets = [read_problems(TrainConfig(problem_seed=seed, n_problems=8)) for seed in (0, 1)]
    assert [problems.name for problems in sets] == ["tiny", "tiny-1"]
    assert not {p.prompt for p in sets[0]} & {p.prompt for p in sets[1]}
    assert [p.id for p in sets[1]][:2] == ["tiny-1-000", "tiny-1-001"]
    with pytest.raises(UserError, match=r"problem_seed = 1: problems = math500 are not the tiny"):
        TrainConfig(problem_seed=1, problems="math500", model="folder")
