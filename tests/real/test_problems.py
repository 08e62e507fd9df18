import json
import os
import subprocess
import sys
import types
from datetime import date
from decimal import Decimal
from pathlib import Path
from unittest.mock import Mock, call

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lab
from lab.base.errors import UserError
from real.answers import Equality
from real.model.folder import model_folder
from real.other_trainers import GuardedRun, is_right
from real.problems import NAMED, Problem, Turn, load_problems
from real.problems.load import read_problems
from real.problems.problem import check_answers, reference
from real.settings.config import TrainConfig
from real.settings.groups import FieldMap
from real.tiny import problems_of

ROWS = [
    {"problem": "1+1?", "answer": "2", "unique_id": "a"},
    {"problem": "1+2?", "answer": None, "unique_id": "b"},
]
PROBLEMS = [Problem("a", "1+1?", "2"), Problem("b", "1+2?", None)]


def refusal(*args, **options):
    with pytest.raises(UserError) as found:
        load_problems(*args, **options)
    assert "\n" not in str(found.value)
    return str(found.value)


def make_set(n):
    return [{"id": str(i), "prompt": f"{i}?", "answer": str(i)} for i in range(n)]


DATA = Path(__file__).parents[3] / "shared" / "data"


def write(folder, text, name="problems.json"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def message(path, **fields):
    text = refusal(path, FieldMap(**fields))
    assert str(path) in text
    return text


def load(folder, rows, **fields):
    return load_problems(write(folder, json.dumps(rows)), FieldMap(**fields))


def rows_refused(folder, rows, **fields):
    return message(write(folder, json.dumps(rows)), **fields)


def row(**fields):
    return {"id": "a", "prompt": "1+1=", "answer": "2", **fields}


def test_json_and_jsonl_give_the_same_problems(tmp_path):
    rows = [row(id=1, source="x"), row(id="b", answer=142.0), row(id="c", answer=None)]
    rows.append({"id": "d", "prompt": "a\u2028b"})
    written = [("1", "1+1=", "2"), ("b", "1+1=", "142.0"), ("c", "1+1=", None)]
    expected = [Problem(*values) for values in [*written, ("d", "a\u2028b", None)]]
    lines = "\ufeff" + "\n\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "\n"
    assert load_problems(write(tmp_path, json.dumps(rows))).problems == expected
    assert load_problems(write(tmp_path, lines, "problems.jsonl")).problems == expected
    # `datasets` writes lines into .json, too.
    assert load_problems(write(tmp_path, lines, "lines.json")).problems == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"id": None}, "row 2: field 'id' is missing"),
        ({"id": True}, "row 2: id is true or false"),
        ({"id": "first"}, "row 2 (id 'first'): duplicate id, row 1 has it too; give each row"),
        ({"prompt": None}, "row 2 (id 'a'): field 'prompt' is missing"),
        ({"prompt": ["x"]}, "row 2 (id 'a'): prompt: Expected `object`, got `str` - at `$[0]`"),
        (
            {"prompt": [{"role": "bot", "content": "x"}]},
            "Invalid enum value 'bot' - at `$[0].role`; write text, or messages",
        ),
        (
            {"prompt": [{"role": "user", "content": 1}]},
            "Expected `str`, got `int` - at `$[0].content`",
        ),
        ({"prompt": [{"role": "assistant", "content": "x"}]}, "the last message of prompt is by"),
        ({"prompt": " \n"}, "row 2 (id 'a'): empty prompt"),
        ({"prompt": "\ud800"}, "row 2 (id 'a'): prompt holds half a surrogate pair"),
        ({"answer": True}, "row 2 (id 'a'): answer is true or false"),
        ({"answer": float("nan")}, "row 2 (id 'a'): answer is nan"),
        ({"answer": "so it is #### "}, "row 2 (id 'a'): empty answer"),
        ({"id": "x" * 1000, "prompt": ""}, "...'): empty prompt"),
    ],
)
def test_wrong_rows_are_named(tmp_path, fields, expected):
    assert expected in rows_refused(tmp_path, [row(id="first"), row(**fields)])


@pytest.mark.parametrize(
    ("name", "make", "expected"),
    [
        ("p.json", "", "the file is empty"),
        ("p.json", "[]", "no problems"),
        ("p.json", '{"id": 1}', "not a list"),
        ("p.json", '[\n{"id": "a", "prompt" "x"}]', "line 2, column 22: malformed JSON"),
        ("p.json", "[" * 100_000, "too large"),
        ("p.json", "[" + "1" * 10_000 + "]", "too large"),
        ("p.json", "[3]", "row 1: holds a number"),
        ("p.jsonl", '{"prompt": "x"}\n\n{broken\n', "row 3, column 2: malformed JSON"),
        ("p.json", '{"prompt": "x"}\n{"id": "b"\n', "row 2, column 11: malformed JSON"),
        ("p.csv", "id,prompt\n", "use one of .json, .jsonl, .parquet"),
        ("p.json", b'[{"id": "a", "prompt": "\xe9"}]', "not UTF-8"),
        ("p.parquet", "no table", "cannot be read as a table"),
        ("p.json", None, "cannot be read (no such file"),
        ("p.parquet", Path.mkdir, "cannot be read (is a directory"),
    ],
)
def test_malformed_and_unreadable_files_are_refused(tmp_path, name, make, expected):
    path = tmp_path / name
    if callable(make):
        make(path)
    elif make is not None:
        path.write_bytes(make.encode() if isinstance(make, str) else make)
    assert expected in message(path)


def test_values_of_a_table_that_python_has_none_for_are_refused(tmp_path):
    """A date beyond the year 9999, and text that is not UTF-8."""
    ends, text = (pa.py_buffer(held) for held in (b"\0\0\0\0\1\0\0\0", b"\xff"))
    broken = pa.Array.from_buffers(pa.string(), 1, [None, ends, text])
    for values in (pa.array([2**40], pa.timestamp("s")), broken):
        pq.write_table(pa.table({"prompt": ["1+1?"], "more": values}), tmp_path / "p.parquet")
        assert "holds a value that cannot be read (" in message(tmp_path / "p.parquet")


LETTERED = "2+2?\nA) 3\nB) 4"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "2+2?", "choices": ["3", "4"], "answer": 0}, "choices: '3' is not in the prom"),
        ({"prompt": "2+2?", "options": {"A": "x", "B": "y"}, "answer": "b"}, "options: 'x' is not"),
        ({"prompt": "2+2?", "choices": {"text": ["x", "y"], "label": ["A", "B"]}}, "choices: 'x'"),
        ({"prompt": "A bird", "endings": ["flies", "swims"], "label": "1"}, "endings: 'flies' is"),
        (
            {"prompt": LETTERED, "choices": ["3", "4"], "answer": 1},
            "answer '1': the prompt gives n",
        ),
        ({"prompt": "1 + 4?\nA) 1\nB) 5", "choices": ["1", "5"], "answer": 1}, "answer '1': the"),
        ({"prompt": "1 + 4?\n(0) 1 (1) 5", "choices": ["1", "5"], "answer": 1}, ""),
        ({"prompt": "2+2?", "A": "3", "B": "4", "C": None, "answer": "B"}, "choices: '3' is not"),
        ({"prompt": "2+2?", "opa": "3", "opb": "4", "answer": "a"}, "choices: '3' is not"),
        ({"prompt": LETTERED, "option_a": "3", "option_b": "4", "answer": "B"}, ""),
        ({"prompt": "1+1?", "a": "1", "b": "1", "answer": "2"}, ""),
        ({"prompt": LETTERED, "choices": ["3", "4"], "answer": "(B)"}, ""),
        ({"prompt": LETTERED, "choices": ["3", "4"]}, ""),
        ({"prompt": LETTERED, "choices": ["3", "4"], "answerKey": "B"}, ""),
        ({"prompt": "2+2?", "choices": ["3", "4"], "answer": "4"}, ""),
        ({"prompt": "2+2?", "options": ["easy", "short"], "answer": "17"}, ""),
        ({"prompt": "2+2?", "choices": ["4"], "answer": "A"}, ""),
        ({"prompt": "2+2?", "options": "easy", "answer": "A"}, ""),
        ({"prompt": "2+2?", "options": "a ) 3 , b ) 4 m", "answer": "b"}, "options: '3' is not in"),
        ({"prompt": "2+2?", "options": "[ 'a ) 3' , 'b ) 4' ]", "answer": "b"}, "options: '3' is"),
        ({"prompt": "2+2?", "options": '{"A": "x", "B": "y"}', "answer": "A"}, "options: 'x' is"),
        ({"prompt": LETTERED, "options": "a ) 3 , b ) 4", "answer": "b"}, ""),
        ({"prompt": "2+2? A. 3m B. 4m", "options": "(A) 3 m (B) 4 m", "answer": "B"}, ""),
        ({"prompt": "2+2?", "options": ["A)3", "B)4"], "answer": "B"}, "options: '3' is not in"),
        ({"prompt": "2+2? A. 3 B. 4", "options": ["A)3", "(B) 4"], "answer": "B"}, ""),
        ({"prompt": "2+2?", "options": "(A) f(a) (B) g(b)", "answer": "B"}, ""),
        (
            {"prompt": LETTERED, "answer": "B", "choices": [{"label": x, "text": x} for x in "34"]},
            "",
        ),
        ({"prompt": "2+_=4", "option1": "3", "option2": "5", "answer": "1"}, "choices: '3' is not"),
        ({"prompt": "2+2?", "answerA": "3", "answerB": "4", "label": "2"}, "choices: '3' is not"),
    ],
)
def test_choices_stand_in_the_prompt_where_the_answer_is_one_s_letter_or_place(row, said, tmp_path):
    path = write(tmp_path, json.dumps([row]))
    if said:
        assert said in message(path) and "row 1" in message(path)
    else:
        assert len(load_problems(path)) == 1


@pytest.mark.parametrize("prompt", ["prompt", "problem", "question", "input"])
@pytest.mark.parametrize(
    "answer", ["answer", "solution", "ground_truth", "target", "label", "answerKey"]
)
@pytest.mark.parametrize("identity", ["id", "unique_id", "idx"])
def test_usual_names_are_found(tmp_path, prompt, answer, identity):
    row = {"level": 3, prompt: "1+1?", answer: "2", identity: "a"}
    found = load(tmp_path, [row])
    assert found.problems == [Problem("a", "1+1?", "2")]
    assert found.fields == {"prompt": prompt, "answer": answer, "id": identity}
    assert found.by_usual_name == ("prompt", "answer", "id")
    # As in the hub's MATH-500: this project's own name for a field wins.
    both = load(tmp_path, [{"solution": "so \\boxed{3}", "problem": "1+1?", "answer": "2"}])
    assert both.problems[0].answer == "2"


def test_dots_reach_into_objects_but_a_field_of_that_name_wins(tmp_path):
    rows = [{"q": {"text": "1+1?", "id": 7}, "answer": None}]
    found = load(tmp_path, rows, prompt="q.text", id="q.id")
    assert found.problems == [Problem("7", "1+1?", None)]
    rows = [{"q.text": "2+2?", "q": {"text": "1+1?"}}]
    assert load(tmp_path, rows, prompt="q.text").problems[0].prompt == "2+2?"


def test_verl_s_rows_are_understood(tmp_path):
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    answer = {"style": "rule", "ground_truth": "2"}
    found = load(tmp_path, [{"data_source": "math", "prompt": turns, "reward_model": answer}])
    (problem,) = found.problems
    assert (problem.prompt, problem.answer) == ("1+1?", "2")
    assert problem.before == (Turn("system", "Be brief."),)
    assert found.fields == {"prompt": "prompt", "answer": "reward_model.ground_truth"}


@pytest.mark.parametrize(
    ("row", "fields", "expected"),
    [
        ({"problem": "a", "question": "b"}, {}, "problem, question could each be the prompt; name"),
        ({"input": "a", "solution": "b", "target": "c"}, {}, "solution, target could each be the"),
        ({"problem": "a", "idx": 1, "unique_id": 2}, {}, "unique_id, idx could each be the id"),
        (
            {"problem": "a", "level": 1},
            {"answer": "gold"},
            "fields.answer = 'gold': no row has it; fields are problem, level",
        ),
        ({f"f{i}": i for i in range(40)}, {"prompt": "text"}, "f11, ... (40 in all)"),
        (
            {"text": "1+1?"},
            {},
            "row 1: field 'prompt' is missing, add the problem's text or name its field with "
            "--fields.prompt",
        ),
    ],
)
def test_ambiguous_and_missing_fields_are_refused(tmp_path, row, fields, expected):
    assert expected in rows_refused(tmp_path, [row], **fields)
    with pytest.raises(UserError, match=r"fields.answer = 3: must be of type str"):
        FieldMap(answer=3)
    with pytest.raises(UserError, match=r"fields.prompt = ''"):
        FieldMap(prompt="")


def test_ids_from_prompts_follow_the_prompt_not_the_place(tmp_path):
    rows = [{"prompt": f"{i} + 1?", "answer": str(i + 1)} for i in range(5)]
    first = {p.prompt: p.id for p in load(tmp_path, rows)}
    assert len(set(first.values())) == 5
    assert {p.prompt: p.id for p in load(tmp_path, rows[::-1])} == first
    # Known for good: an id that changed would cut a resumed or repeated run off from its history.
    assert first["0 + 1?"] == "7244e60cd135d9bb"


def test_equal_prompts_get_numbered_ids_and_a_notice(tmp_path):
    rows = [{"prompt": p} for p in ("a", "b", "a", "a")]
    found = load(tmp_path, rows)
    a, b = found.problems[0].id, found.problems[1].id
    assert [p.id for p in found] == [a, b, f"{a}-2", f"{a}-3"]
    assert found.notices == ("2 problems repeat the prompt of another",)


def test_no_ids_and_no_answers_can_be_asked_for(tmp_path):
    rows = [{"id": 1, "prompt": "a", "answer": "2"}, {"id": 1, "prompt": "b", "answer": "3"}]
    assert "--fields.id ''" in rows_refused(tmp_path, rows)
    found = load(tmp_path, rows, id="", answer="")
    assert len({p.id for p in found}) == 2 and {p.answer for p in found} == {None}


def test_references_that_no_response_can_equal_are_counted_and_refused_as_labels(tmp_path):
    prose = "We add the digits of both numbers and see that their sum must be even."
    answers = ["7", "x" * 1001, r"\text{}", prose, prose + r" So \boxed{4}."]
    answers += [r"\square", "your answer", "{5", r"\frac{1", r"\{1, 2\}", "[1, 2)"]
    answers.append("red blue green pink gold grey teal cyan")
    rows = [{"id": f"p{i}", "prompt": f"{i}", "solution": a} for i, a in enumerate(answers)]
    path = write(tmp_path, json.dumps(rows))
    found = load_problems(path)
    (notice,) = [line for line in found.notices if "can equal no response" in line]
    assert notice.startswith("7 of 12") and "'p1': longer than 1,000 characters" in notice
    config = TrainConfig(model="m", problems=str(path), n_problems=2)
    with pytest.raises(UserError, match=r"labels = 'truth'.*'p1'.*longer"):
        read_problems(config, with_answers=True)
    truths, settings = answers[:2], TrainConfig(labels="truth").settled()
    with pytest.raises(UserError, match=r"'p1' of the data set.*longer"):
        GuardedRun(settings, ["p0", "p1"], truths)
    assert len(GuardedRun(TrainConfig().settled(), ["p0", "p1"], truths).notices) == 1
    with pytest.raises(UserError, match="problem 'p1' of the set has no answer"):
        check_answers([("p0", "7"), ("p1", None)], "the set")


def test_other_trainers_read_references_as_problem_files_do():
    answers = ["so\n#### 1,002", 7, np.int64(8), 0.5, np.float32(0.5), None, " 9 "]
    run = GuardedRun(TrainConfig(answer_check="math").settled(), range(7), answers)
    texts = [rf"\boxed{{{n}}}" for n in ("1002", 7, 8, "1/2", ".50", 3, 9)]
    found = [is_right(text, a, Equality()) for text, a in zip(texts, answers, strict=True)]
    assert found == [1.0] * 5 + [None, 1.0]
    ids = run.supervisor.answer_ids
    for problem, text in enumerate(texts):
        assert (ids.ids(problem, [text])[0] == ids.truth_id(problem)) == bool(found[problem])
    for wrong in (["7", "8"], {"value": 7}, True, float("nan")):
        with pytest.raises(UserError, match="the answer in row 1 is "):
            GuardedRun(TrainConfig().settled(), range(2), ["7", wrong])


def test_other_trainers_tell_what_share_of_votes_repeats_its_question(tmp_path):
    prompts = ["Solve 7 * 8.", [{"role": "user", "content": "9 + 4"}]]
    config = TrainConfig(n_problems=2, n_votes=4, n_samples=2, batch_size=2).settled()
    run = GuardedRun(config, ["a", "b"], [None, None], prompts)
    boxes = ["7 \\cdot 8", "56", "9 + 4", "7 + 8", "9+4", "13", "9+4", "13"]
    texts = {i: rf"\boxed{{{box}}}" for i, box in enumerate(boxes)}
    with run.opened(tmp_path / "run", "set", "trl"):
        run.prime([run.read(texts, {i: i // 4 for i in texts})])
        run.visit(run.read(texts, {i: i // 4 for i in texts}), dict.fromkeys(texts, 5))
        row = run.end_step({"lr": 1e-5, "update_norm": 0.1}, 1.0)
        assert row["repeated"] == 3 / 8
    assert "alarm: answers repeat" in lab.load(tmp_path / "run").run.extra["notices"][-1]


def test_numbers_have_no_exponents_and_other_values_are_named(tmp_path):
    numbers = 1e-5, -1e22, 2.5, 3.0
    found = load(tmp_path, [{"prompt": str(n), "answer": n} for n in numbers])
    assert [p.answer for p in found] == ["0.00001", f"-1{22 * '0'}", "2.5", "3.0"]
    assert reference(np.float32(1e-5)) == "0.00001" and reference("1e-5") == "1e-5"
    with pytest.raises(UserError, match="answer is a date, write text or a number"):
        reference(date(2026, 1, 1))


def test_evaluations_of_other_trainers_leave_out_problems_without_a_true_answer(tmp_path):
    """As those of this project's trainer do, also where none has one."""
    answers = ["7", None, r"\text{}", "8"]
    run = GuardedRun(TrainConfig().settled(), range(4), answers)
    scores = [is_right(r"\boxed{7}", answer, None) for answer in answers]
    with run.opened(tmp_path / "run", "set", "verl"):
        run.prime([])
        run.evaluated(np.array(scores, float), 1)
        run.evaluated(np.array(scores[1:3], float), 1)
    np.testing.assert_array_equal(lab.load(tmp_path / "run").evals["pass_at_1"], [0.5, np.nan])


def test_a_damaged_page_of_a_parquet_file_is_no_wrong_path(tmp_path):
    path = tmp_path / "set.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path, compression="NONE", use_dictionary=False)
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"\xff" * 40 + content[44:])
    assert "cannot be read as a table (Couldn't deserialize thrift" in refusal(path)


def test_parquet_gives_the_same_problems_and_its_types_become_text(tmp_path):
    path = tmp_path / "set.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    found = load_problems(path)
    assert found.problems == PROBLEMS and found.name == "set"
    assert found.fields == {"prompt": "problem", "answer": "answer", "id": "unique_id"}
    rows = [{"idx": 3, "prompt": [{"role": "user", "content": "x"}], "answer": Decimal("1.50")}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert load_problems(path).problems == [Problem("3", "x", "1.50")]
    pq.write_table(pa.Table.from_pylist([{"prompt": "x", "answer": b"2"}]), path)
    assert "row 1: answer is binary data" in refusal(path)


def test_settings_and_comparisons_import_nothing_of_the_trainer():
    code = """import sys, real.settings.config, real.problems
assert not {'datasets', 'pyarrow', 'torch', 'huggingface_hub'} & set(sys.modules)
import real.commands, real.compare
sys.exit('torch' in sys.modules)"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("name", list(NAMED))
def test_named_sets_are_read_from_the_data_folder(name, monkeypatch):
    if not (DATA / f"{name}.json").exists() and not os.environ.get("CI"):
        pytest.skip(f"{name}.json is not next to this checkout")
    monkeypatch.delenv("GUARD_DATA", raising=False)
    found = load_problems(name, data_dir=str(DATA))
    assert len({p.id for p in found}) == NAMED[name].n_problems and found.name == name
    assert all(problem.prompt.strip() and problem.answer for problem in found)
    monkeypatch.setenv("GUARD_DATA", str(DATA))
    assert load_problems(name) == found
    config = TrainConfig(problems=name, model="m", n_problems=4)
    assert problems_of(config).problems == found.problems[:4]


def test_a_named_set_of_another_size_is_refused(tmp_path):
    (tmp_path / "amc.json").write_text(json.dumps(make_set(82)))
    text = refusal("amc", data_dir=str(tmp_path))
    assert "amc.json: holds 82 problems, AMC has 83; give the whole set" in text
    # The same file by its path is a set like any other.
    assert len(load_problems(tmp_path / "amc.json")) == 82


def test_a_missing_named_set_says_where_to_get_it(tmp_path, monkeypatch):
    monkeypatch.delenv("GUARD_DATA", raising=False)
    text = refusal("math500")
    for part in ("MATH-TTT/test.json", "math500.json", "--data-dir", "GUARD_DATA", "--hub"):
        assert part in text
    assert f"{tmp_path} holds no math500.json" in refusal("math500", data_dir=str(tmp_path))
    nowhere = str(tmp_path / "nowhere")
    assert f"data_dir = {nowhere}: no such folder" in refusal("math500", data_dir=nowhere)
    monkeypatch.setenv("GUARD_DATA", nowhere)
    assert f"GUARD_DATA = {nowhere}: no such folder" in refusal("math500")


def test_the_seed_chooses_the_problems_of_the_tiny_task():
    sets = [problems_of(TrainConfig(problem_seed=seed, n_problems=8)) for seed in (0, 1)]
    assert [problems.name for problems in sets] == ["tiny", "tiny-1"]
    assert not {p.prompt for p in sets[0]} & {p.prompt for p in sets[1]}
    assert [p.id for p in sets[1]][:2] == ["tiny-1-000", "tiny-1-001"]


def split_of(rows):
    """As the library gives one in the format `arrow`."""
    table = pa.Table.from_pylist(rows)
    return types.SimpleNamespace(with_format={"arrow": table}.__getitem__)


def fake_hub(monkeypatch, answer):
    """The function of the library `datasets` that loads a set, here always the same."""
    load_dataset = Mock(return_value=answer)
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return load_dataset


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("owner/name:main@test", call("owner/name", "main", split="test")),
        ("owner/na-me_1.0", call("owner/na-me_1.0", None, split=None)),
        ("owner/name@test[:10%]", call("owner/name", None, split="test[:10%]")),
    ],
)
def test_hub_sets_are_read_by_name_configuration_and_split(monkeypatch, name, asked):
    load_dataset = fake_hub(monkeypatch, split_of(ROWS))
    found = load_problems(f"hf:{name}")
    assert load_dataset.mock_calls == [asked]
    assert found.problems == PROBLEMS and found.name == name


def test_a_hub_set_needs_a_name_one_of_several_splits_and_the_library(monkeypatch):
    for wrong in ("hf:", "hf:a/b/c", "hf:a b", "hf:a/b@", "hf:a/b:", "hf:../a"):
        assert "not a hub name" in refusal(wrong)
    fake_hub(monkeypatch, {"train": split_of(ROWS), "test": split_of(ROWS)})
    assert "holds several splits (train, test); give one as in hf:o/n@train" in refusal("hf:o/n")
    fake_hub(monkeypatch, {"test": split_of(ROWS)})
    assert load_problems("hf:o/n").problems == PROBLEMS
    monkeypatch.setitem(sys.modules, "datasets", None)
    needed = "needs the library datasets, install it with pip install -e '.[hf]'"
    assert needed in refusal("hf:o/n")


def test_the_hub_is_asked_for_a_named_set_only_on_request(tmp_path, monkeypatch):
    monkeypatch.delenv("GUARD_DATA", raising=False)
    rows = [{"problem": f"{i}?", "answer": float(i), "id": i, "url": ""} for i in range(83)]
    load_dataset = fake_hub(monkeypatch, split_of(rows))
    refusal("amc")
    assert not load_dataset.called
    found = load_problems("amc", hub=True)
    load_dataset.assert_called_once_with("AI-MO/aimo-validation-amc", None, split="train")
    assert found.name == "amc" and found.problems[3] == Problem("3", "3?", "3.0")
    # A file is preferred, so that nothing is fetched twice.
    (tmp_path / "amc.json").write_text(json.dumps(make_set(83)))
    load_problems("amc", data_dir=str(tmp_path), hub=True)
    assert load_dataset.call_count == 1


def test_models_are_fetched_only_by_prefix(tmp_path, monkeypatch):
    download = Mock(side_effect=[str(tmp_path), OSError("404 Client Error\nmore")])
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(UserError, match=r"no such folder; give a local .* or hf:owner/name"):
        model_folder("o/n")
    assert not download.called
    assert model_folder("hf:o/n") == tmp_path
    assert download.call_args.args == ("o/n",)
    # Neither pickled weights nor code.
    patterns = " ".join(download.call_args.kwargs["allow_patterns"])
    assert "safetensors" in patterns and ".bin" not in patterns and ".py" not in patterns
    assert "consolidated*.safetensors" in download.call_args.kwargs["ignore_patterns"]
    with pytest.raises(UserError, match=r"model hf:o/none: could not be fetched \(404 Client") as e:
        model_folder("hf:o/none")
    assert "\n" not in str(e.value)
