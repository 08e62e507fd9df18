"""Sources of problems other than JSON: tables, saved data sets, the named sets, the hub."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import types
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lab.errors import UserError
from real.model.folder import model_folder
from real.problems import NAMED, Problem, load_problems
from real.problems.hub import HubName
from real.problems.load import read_problems
from real.settings.config import TrainConfig

DATA = Path(__file__).parents[3] / "shared" / "data"
ROWS: list[dict[str, Any]] = [
    {"problem": "1+1?", "answer": "2", "unique_id": "a"},
    {"problem": "1+2?", "answer": None, "unique_id": "b"},
]
PROBLEMS = [Problem("a", "1+1?", "2"), Problem("b", "1+2?", None)]


def refusal(*args: Any, **options: Any) -> str:
    with pytest.raises(UserError) as found:
        load_problems(*args, **options)
    assert "\n" not in str(found.value)
    return str(found.value)


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


class FakeSplit:
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def with_format(self, kind: str) -> dict[slice, pa.Table]:
        assert kind == "arrow"
        return _Everything(self.rows)


class _Everything(dict):
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __getitem__(self, key: slice) -> pa.Table:
        assert key == slice(None)
        return pa.Table.from_pylist(self.rows)


def fake_hub(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[tuple[Any, ...]]:
    """The library `datasets`, as far as it is used; returns the calls that were made."""
    calls: list[tuple[Any, ...]] = []

    def load_dataset(path: str, name: str | None = None, *, split: str | None = None) -> Any:
        calls.append((path, name, split))
        if isinstance(answer, Exception):
            raise answer
        return answer

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


def test_hub_names_are_parsed():
    assert HubName.parse("hf:owner/name:main@test") == HubName("owner/name", "main", "test")
    assert HubName.parse("hf:owner/na-me_1.0") == HubName("owner/na-me_1.0")
    assert str(HubName("owner/name", None, "test[:10%]")) == "hf:owner/name@test[:10%]"
    assert HubName.parse("hf:owner/name@test[:10%]").split == "test[:10%]"
    for wrong in ("hf:", "hf:a/b/c", "hf:a b", "hf:a/b@", "hf:a/b:", "hf:../a"):
        with pytest.raises(UserError, match="not a hub name"):
            HubName.parse(wrong)


def test_hub_sets_are_read_by_name_configuration_and_split(monkeypatch: pytest.MonkeyPatch):
    calls = fake_hub(monkeypatch, FakeSplit(ROWS))
    found = load_problems("hf:owner/name:main@test")
    assert calls == [("owner/name", "main", "test")]
    assert found.problems == PROBLEMS and found.name == "owner/name:main@test"


def test_hub_sets_with_several_splits_need_one(monkeypatch: pytest.MonkeyPatch):
    fake_hub(monkeypatch, {"train": FakeSplit(ROWS), "test": FakeSplit(ROWS)})
    assert "holds several splits (train, test); give one as in hf:o/n@train" in refusal("hf:o/n")
    fake_hub(monkeypatch, {"test": FakeSplit(ROWS)})
    assert load_problems("hf:o/n").problems == PROBLEMS


def test_hub_errors_are_one_line(monkeypatch: pytest.MonkeyPatch):
    fake_hub(monkeypatch, ConnectionError("Couldn't reach 'o/n' on the Hub\nlong story"))
    text = refusal("hf:o/n")
    assert text.startswith("hf:o/n: could not be loaded (Couldn't reach 'o/n' on the Hub); check")
    fake_hub(monkeypatch, ValueError('Unknown split "tast". Should be one of ["test"].'))
    assert 'Unknown split "tast"' in refusal("hf:o/n@tast")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    text = refusal("hf:o/n")
    assert "needs the library datasets, install it with pip install 'ttrl-guard-lab[hf]'" in text


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


def make_set(n: int) -> list[dict[str, Any]]:
    return [{"id": str(i), "prompt": f"{i}?", "answer": str(i)} for i in range(n)]


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


def test_the_hub_is_asked_for_a_named_set_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("GUARD_DATA", raising=False)
    rows = [{"problem": f"{i}?", "answer": float(i), "id": i, "url": ""} for i in range(83)]
    calls = fake_hub(monkeypatch, FakeSplit(rows))
    refusal("amc")
    assert not calls
    found = load_problems("amc", hub=True)
    assert calls == [("AI-MO/aimo-validation-amc", None, "train")]
    assert found.name == "amc" and found.problems[3] == Problem("3", "3?", "3.0")
    # A file is preferred, so that nothing is fetched twice.
    (tmp_path / "amc.json").write_text(json.dumps(make_set(83)))
    load_problems("amc", data_dir=str(tmp_path), hub=True)
    assert len(calls) == 1


def test_a_folder_called_like_a_named_set_can_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_saved(tmp_path / "amc", [ROWS])
    monkeypatch.chdir(tmp_path)
    assert load_problems("./amc").problems == PROBLEMS


def test_models_are_fetched_only_by_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls: list[tuple[str, dict[str, Any]]] = []

    def snapshot_download(name: str, **options: Any) -> str:
        calls.append((name, options))
        if name == "o/none":
            raise OSError("404 Client Error\nmore")
        return str(tmp_path)

    hub = importlib.import_module("huggingface_hub")
    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    with pytest.raises(UserError, match=r"no such folder; give a local .* or hf:owner/name"):
        model_folder("o/n")
    assert not calls
    assert model_folder("hf:o/n") == tmp_path
    ((name, options),) = calls
    assert name == "o/n"
    # Neither pickled weights nor code.
    patterns = " ".join(options["allow_patterns"])
    assert "safetensors" in patterns and ".bin" not in patterns and ".py" not in patterns
    with pytest.raises(UserError, match=r"model hf:o/none: could not be fetched \(404 Client") as e:
        model_folder("hf:o/none")
    assert "\n" not in str(e.value)


def test_the_seed_chooses_the_problems_of_the_tiny_task():
    sets = [read_problems(TrainConfig(problem_seed=seed, n_problems=8)) for seed in (0, 1)]
    assert [problems.name for problems in sets] == ["tiny", "tiny-1"]
    assert not {p.prompt for p in sets[0]} & {p.prompt for p in sets[1]}
    assert [p.id for p in sets[1]][:2] == ["tiny-1-000", "tiny-1-001"]
    with pytest.raises(UserError, match=r"problem_seed = 1: problems = math500 are not the tiny"):
        TrainConfig(problem_seed=1, problems="math500", model="folder")
