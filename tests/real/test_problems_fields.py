"""Fields of a problem file: named, found, nested, ambiguous; ids from prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.errors import UserError
from real.problems import Problem, ProblemSet, Turn, fingerprint, load_problems
from real.settings.config import FieldMap

Rows = list[dict[str, Any]]


def load(folder: Path, rows: Rows, **fields: str) -> ProblemSet:
    path = folder / "set.json"
    path.write_text(json.dumps(rows))
    return load_problems(path, FieldMap(**fields))


def refusal(folder: Path, rows: Rows, **fields: str) -> str:
    with pytest.raises(UserError) as found:
        load(folder, rows, **fields)
    assert "\n" not in str(found.value) and "set.json" in str(found.value)
    return str(found.value)


@pytest.mark.parametrize("prompt", ["prompt", "problem", "question", "input"])
@pytest.mark.parametrize("answer", ["answer", "solution", "ground_truth", "target", "label"])
@pytest.mark.parametrize("identity", ["id", "unique_id", "idx"])
def test_usual_names_are_found(tmp_path: Path, prompt: str, answer: str, identity: str):
    found = load(tmp_path, [{"level": 3, prompt: "1+1?", answer: "2", identity: "a"}])
    assert found.problems == [Problem("a", "1+1?", "2")]
    assert found.fields == {"prompt": prompt, "answer": answer, "id": identity}
    assert found.by_usual_name == ("prompt", "answer", "id")


def test_the_hub_s_math500_is_understood(tmp_path: Path):
    """It has a solution and an answer: this project's own name for a field wins."""
    row = {"problem": "1+1?", "solution": "so \\boxed{2}", "answer": "2", "unique_id": "test/1"}
    assert load(tmp_path, [row]).problems == [Problem("test/1", "1+1?", "2")]


def test_named_fields_win_and_are_not_called_found(tmp_path: Path):
    rows: Rows = [{"prompt": "not this", "text": "1+1?", "answer": "9", "gold": 2, "id": "a"}]
    found = load(tmp_path, rows, prompt="text", answer="gold")
    assert found.problems == [Problem("a", "1+1?", "2")]
    assert found.fields == {"prompt": "text", "answer": "gold", "id": "id"}
    assert found.by_usual_name == ("id",)


def test_dots_reach_into_objects_but_a_field_of_that_name_wins(tmp_path: Path):
    rows: Rows = [{"q": {"text": "1+1?", "id": 7}, "answer": None}]
    found = load(tmp_path, rows, prompt="q.text", id="q.id")
    assert found.problems == [Problem("7", "1+1?", None)]
    rows = [{"q.text": "2+2?", "q": {"text": "1+1?"}}]
    assert load(tmp_path, rows, prompt="q.text").problems[0].prompt == "2+2?"


def test_verl_s_rows_are_understood(tmp_path: Path):
    row = {
        "data_source": "math",
        "prompt": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "1+1?"},
        ],
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"index": 0},
    }
    found = load(tmp_path, [row])
    (problem,) = found.problems
    assert (problem.prompt, problem.answer) == ("1+1?", "2")
    assert problem.before == (Turn("system", "Be brief."),)
    assert found.fields == {"prompt": "prompt", "answer": "reward_model.ground_truth"}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"problem": "a", "question": "b"}, "problem, question could each be the prompt; name one"),
        (
            {"problem": "a", "solution": "b", "target": "c"},
            "solution, target could each be the answer; name one with --fields.answer",
        ),
        ({"problem": "a", "idx": 1, "unique_id": 2}, "unique_id, idx could each be the id"),
    ],
)
def test_ambiguous_names_are_refused(tmp_path: Path, row: dict[str, Any], expected: str):
    assert expected in refusal(tmp_path, [row])


def test_a_column_without_values_is_no_candidate(tmp_path: Path):
    found = load(tmp_path, [{"problem": "a", "question": None, "solution": None}])
    assert found.fields == {"prompt": "problem"}


def test_a_named_field_that_no_row_has_is_refused(tmp_path: Path):
    row = {"problem": "a", "level": 1}
    expected = "fields.answer = 'gold': no row has it; fields are problem, level"
    assert expected in refusal(tmp_path, [row], answer="gold")
    many = {f"f{i}": i for i in range(40)}
    assert "f11, ... (40 in all)" in refusal(tmp_path, [many], prompt="text")


def test_no_prompt_field_names_the_remedy(tmp_path: Path):
    assert "row 1: field 'prompt' is missing" in refusal(tmp_path, [{"text": "1+1?"}])
    assert "--fields.prompt" in refusal(tmp_path, [{"text": "1+1?"}])


def test_fields_of_wrong_type_and_empty_prompt_are_refused():
    with pytest.raises(UserError, match=r"fields.answer = 3: must be of type str"):
        FieldMap(answer=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match=r"fields.prompt = ''"):
        FieldMap(prompt="")


def test_ids_from_prompts_follow_the_prompt_not_the_place(tmp_path: Path):
    rows: Rows = [{"prompt": f"{i} + 1?", "answer": str(i + 1)} for i in range(5)]
    first = {p.prompt: p.id for p in load(tmp_path, rows)}
    assert len(set(first.values())) == 5
    assert {p.prompt: p.id for p in load(tmp_path, rows[::-1])} == first
    # Known for good: an id that changed would cut a resumed or repeated run off from its history.
    assert first["0 + 1?"] == "7244e60cd135d9bb"


def test_equal_prompts_get_numbered_ids_and_a_notice(tmp_path: Path):
    rows: Rows = [{"prompt": p} for p in ("a", "b", "a", "a")]
    found = load(tmp_path, rows)
    a, b = found.problems[0].id, found.problems[1].id
    assert [p.id for p in found] == [a, b, f"{a}-2", f"{a}-3"]
    assert found.notices == ("2 problems repeat the prompt of another",)


def test_earlier_messages_are_part_of_the_id(tmp_path: Path):
    def chat(system: str) -> dict[str, Any]:
        return {
            "prompt": [
                {"role": "system", "content": system},
                {"role": "user", "content": "1+1?"},
            ]
        }

    found = load(tmp_path, [chat("a"), chat("b"), {"prompt": "1+1?"}])
    assert len({p.id for p in found}) == 3 and not found.notices


def test_no_ids_and_no_answers_can_be_asked_for(tmp_path: Path):
    rows: Rows = [{"id": 1, "prompt": "a", "answer": "2"}, {"id": 1, "prompt": "b", "answer": "3"}]
    assert "--fields.id ''" in refusal(tmp_path, rows)
    found = load(tmp_path, rows, id="", answer="")
    assert len({p.id for p in found}) == 2 and {p.answer for p in found} == {None}


def test_worked_solutions_end_in_the_answer(tmp_path: Path):
    (problem,) = load(tmp_path, [{"question": "1+1?", "answer": "One and one\n#### 1,002"}])
    assert problem.answer == "1,002"


def test_missing_answers_are_counted(tmp_path: Path):
    rows: Rows = [{"prompt": "a", "answer": "1"}, {"prompt": "b"}, {"prompt": "c", "answer": None}]
    assert load(tmp_path, rows).notices == ("2 of 3 problems have no reference answer",)


def test_fingerprint_tells_sets_apart(tmp_path: Path):
    rows: Rows = [{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "2"}]
    same = fingerprint(load(tmp_path, rows).problems)
    assert fingerprint(load(tmp_path, json.loads(json.dumps(rows))).problems) == same
    for changed in (rows[::-1], rows[:1], [rows[0], {**rows[1], "answer": "3"}]):
        assert fingerprint(load(tmp_path, changed).problems) != same
