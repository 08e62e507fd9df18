"""Problem sets and models of the hub, asked only on request; the hub is scripted."""

from __future__ import annotations

import importlib
import json
import sys
import types
from typing import Any

import pyarrow as pa
import pytest
from problem_rows import PROBLEMS, ROWS, make_set, refusal

from lab.base.errors import UserError
from real.model.folder import model_folder
from real.problems import Problem, load_problems


def split_of(rows: list[dict[str, Any]]) -> Any:
    """As the library gives one in the format `arrow`."""
    table = pa.Table.from_pylist(rows)
    return types.SimpleNamespace(with_format={"arrow": table}.__getitem__)


def fake_hub(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[tuple[Any, ...]]:
    """The library `datasets`, as far as it is used; returns the calls that were made."""
    calls: list[tuple[Any, ...]] = []

    def load_dataset(path: str, name: str | None = None, *, split: str | None = None) -> Any:
        calls.append((path, name, split))
        return answer

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return calls


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("owner/name:main@test", ("owner/name", "main", "test")),
        ("owner/na-me_1.0", ("owner/na-me_1.0", None, None)),
        ("owner/name@test[:10%]", ("owner/name", None, "test[:10%]")),
    ],
)
def test_hub_sets_are_read_by_name_configuration_and_split(monkeypatch, name, call):
    calls = fake_hub(monkeypatch, split_of(ROWS))
    found = load_problems(f"hf:{name}")
    assert calls == [call]
    assert found.problems == PROBLEMS and found.name == name


def test_what_is_no_hub_name_is_refused():
    for wrong in ("hf:", "hf:a/b/c", "hf:a b", "hf:a/b@", "hf:a/b:", "hf:../a"):
        assert "not a hub name" in refusal(wrong)


def test_hub_sets_with_several_splits_need_one(monkeypatch):
    fake_hub(monkeypatch, {"train": split_of(ROWS), "test": split_of(ROWS)})
    assert "holds several splits (train, test); give one as in hf:o/n@train" in refusal("hf:o/n")
    fake_hub(monkeypatch, {"test": split_of(ROWS)})
    assert load_problems("hf:o/n").problems == PROBLEMS


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    text = refusal("hf:o/n")
    assert "needs the library datasets, install it with pip install 'ttrl-guard-lab[hf]'" in text


def test_the_hub_is_asked_for_a_named_set_only_on_request(tmp_path, monkeypatch):
    monkeypatch.delenv("GUARD_DATA", raising=False)
    rows = [{"problem": f"{i}?", "answer": float(i), "id": i, "url": ""} for i in range(83)]
    calls = fake_hub(monkeypatch, split_of(rows))
    refusal("amc")
    assert not calls
    found = load_problems("amc", hub=True)
    assert calls == [("AI-MO/aimo-validation-amc", None, "train")]
    assert found.name == "amc" and found.problems[3] == Problem("3", "3?", "3.0")
    # A file is preferred, so that nothing is fetched twice.
    (tmp_path / "amc.json").write_text(json.dumps(make_set(83)))
    load_problems("amc", data_dir=str(tmp_path), hub=True)
    assert len(calls) == 1


def test_models_are_fetched_only_by_prefix(tmp_path, monkeypatch):
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
