from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lab.errors import UserError
from real.problems import Problem, load_problems

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"


def data_file(name: str) -> Path:
    path = DATA / f"{name}.json"
    if not path.exists() and not os.environ.get("CI"):
        pytest.skip(f"{path.name} is not next to this checkout")
    return path


def write(folder: Path, text: str, name: str = "problems.json") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def message(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load_problems(path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


def row(**fields: object) -> dict[str, object]:
    return {"id": "a", "prompt": "1+1=", "answer": "2", **fields}


@pytest.mark.parametrize(
    ("name", "n"), [("math500", 500), ("amc", 83), ("aime24", 30), ("aime25", 30)]
)
def test_public_sets_load_whole(name: str, n: int) -> None:
    problems = load_problems(data_file(name))
    assert len(problems) == n
    assert len({problem.id for problem in problems}) == n
    assert all(problem.prompt.strip() and problem.answer for problem in problems)


def test_json_and_jsonl_give_the_same_problems(tmp_path: Path) -> None:
    rows = [row(id=1, source="x"), row(id="b", answer=142.0), row(id="c", answer=None)]
    rows.append({"id": "d", "prompt": "a\u2028b"})
    expected = [
        Problem("1", "1+1=", "2"),
        Problem("b", "1+1=", "142.0"),
        Problem("c", "1+1=", None),
        Problem("d", "a\u2028b", None),
    ]
    lines = "\ufeff" + "\n\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "\n"
    assert load_problems(write(tmp_path, json.dumps(rows))).problems == expected
    assert load_problems(write(tmp_path, lines, "problems.jsonl")).problems == expected
    # `datasets` writes lines into .json, too.
    assert load_problems(write(tmp_path, lines, "lines.json")).problems == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the file is empty"),
        ("[]", "no problems"),
        (" \n ", "the file is empty"),
        ('{"id": 1}', "not a list"),
        ('"text"', "not a list"),
        ('[\n{"id": "a", "prompt" "x"}]', "line 2, column 22: malformed JSON"),
        ("[" * 100_000, "too large"),
        ("[" + "1" * 10_000 + "]", "too large"),
        ("[3]", "row 1: holds a number"),
        ("[null]", "row 1: holds null"),
        ('["x"]', "row 1: holds text"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in message(write(tmp_path, text))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"id": None}, "row 2: field 'id' is missing"),
        ({"id": ""}, "row 2: empty id"),
        ({"id": 1.5}, "row 2: id is a number"),
        ({"id": True}, "row 2: id is true or false"),
        ({"id": "first"}, "row 2 (id 'first'): duplicate id, row 1 has it too; give each row"),
        ({"prompt": None}, "row 2 (id 'a'): field 'prompt' is missing"),
        ({"prompt": []}, "row 2 (id 'a'): prompt is a list of no messages"),
        ({"prompt": ["x"]}, "row 2 (id 'a'): message 1 of prompt is text"),
        ({"prompt": [{"role": "bot", "content": "x"}]}, "has the role 'bot', use one of system"),
        ({"prompt": [{"role": "user", "content": 1}]}, "has a number as content"),
        ({"prompt": [{"role": "assistant", "content": "x"}]}, "the last message of prompt is by"),
        ({"prompt": [{"role": "user", "content": " "}]}, "row 2 (id 'a'): empty prompt"),
        ({"prompt": " \n"}, "row 2 (id 'a'): empty prompt"),
        ({"prompt": 3}, "row 2 (id 'a'): prompt is a number"),
        ({"prompt": "\ud800"}, "row 2 (id 'a'): prompt holds half a surrogate pair"),
        ({"answer": ["2"]}, "row 2 (id 'a'): answer is a list"),
        ({"answer": {}}, "row 2 (id 'a'): answer is an object"),
        ({"answer": True}, "row 2 (id 'a'): answer is true or false"),
        ({"answer": float("nan")}, "row 2 (id 'a'): answer is nan"),
        ({"answer": " "}, "row 2 (id 'a'): empty answer"),
        ({"answer": "so it is #### "}, "row 2 (id 'a'): empty answer"),
        ({"id": "x" * 1000, "prompt": ""}, "...'): empty prompt"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, fields: dict[str, object], expected: str) -> None:
    rows = [row(id="first"), row(**fields)]
    assert expected in message(write(tmp_path, json.dumps(rows)))


def test_jsonl_errors_name_the_line(tmp_path: Path) -> None:
    text = json.dumps(row()) + "\n\n{broken\n"
    assert "row 3, column 2: malformed JSON" in message(write(tmp_path, text, "p.jsonl"))
    text = json.dumps(row()) + "\n\n" + json.dumps(row())
    assert "row 3 (id 'a'): duplicate id, row 1" in message(write(tmp_path, text, "q.jsonl"))


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    assert "no such file" in message(tmp_path / "absent.json")
    assert "use one of .json, .jsonl, .parquet, .arrow" in message(
        write(tmp_path, "id,prompt\n", "p.csv")
    )
    folder = tmp_path / "folder.json"
    folder.mkdir()
    assert "cannot be read" in message(folder)
    text = '{"id": "a", "prompt": "x"}\n{"id": "b"\n'
    assert "row 2, column 11: malformed JSON" in message(write(tmp_path, text, "lines.json"))
    latin = tmp_path / "latin.json"
    latin.write_bytes('[{"id": "a", "prompt": "é"}]'.encode("latin-1"))
    assert "not UTF-8" in message(latin)
