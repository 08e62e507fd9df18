"""Equality of answers, and the check that decides it; hostile answers cost no more than a limit."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hostile_answers import CODE, TOWER, box, hostile

from lab.base.errors import UserError
from lab.trace.trace import Trace
from real import TrainConfig, train
from real.answers import UNSEEN, AnswerIds, Equality, classes
from real.answers.checker import Checker, Reply
from real.answers.equality import exact, form_of, formula
from real.commands import outcome
from real.tiny import CHECKPOINT
from real.tiny import problems as tiny_problems


@pytest.mark.parametrize(
    "group",
    [
        ("025", "25", "25.0", "50/2", r"\frac{50}{2}", r"5^2", r"\sqrt{625}", r"2.5\times10^{1}"),
        (r"\dfrac12", "1/2", "0.5", ".50", "2/4", r"\frac{-1}{-2}", r"2^{-1}", r"5\cdot10^{-1}"),
        (r"10\%", "10", "10 percent"),
        ("x=5", "5", "x = 5.0", r"\frac{10}{2}"),
        (r"0.\overline{3}", r"\frac13", r"0.3\overline{3}", "3/9"),
        (r"1\frac{4}{5}", "9/5", "1.8", "1 4/5", r"\tfrac{9}{5}"),
        ("1e3", "1000", "1,000", "1E+3", "\uff11\uff0c\uff10\uff10\uff10", r"10^3"),
        ("50", r"50\%", "50%", "\uff15\uff10\uff05"),
        (r"0.0000672", r"6.72\times10^{-5}", r"6.72 \cdot 10^{-5}"),
        (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt3}", r"1/\sqrt{3}", r"\frac13\sqrt3"),
        ("2(k+1)", "2k+2", "2+2k", r"k+k+2"),
        ("6-5i", "-5i+6", r"6 - 5\mathrm{i}"),
        (r"i\sqrt3", r"\sqrt{-3}"),
        (r"\log_2 3", r"\frac{\ln 3}{\ln 2}"),
        (r"1\pm\sqrt{19}", r"1-\sqrt{19}, 1+\sqrt{19}", r"\{1\pm\sqrt{19}\}", r"x=1\pm\sqrt{19}"),
        ("3, 5, 7", "7,5,3", r"\{5, 3, 7\}", "3, 5 and 7", r"3, 5, \text{ and } 7"),
        ("x=1,x=2", "1,2", "x = 2 or x = 1", r"\{1,2\}"),
        ("x=1,y=2", "y=2, x=1"),
        (r"x \in [-2,7]", "[-2,7]", r"-2\le x\le 7", r"7 \ge x \ge -2"),
        (r"(5,\infty)", "x>5", "5<x", r"\left(\frac{10}{2},\infty\right)"),
        (r"(0,9)\cup(9,36)", r"(9,36) \cup (0,9)", r"(0,9)\cup(9,6^2)"),
        (r"(3,\frac{\pi}{2})", r"(3,0.5\pi)", r"\left(3.0,\pi/2\right)"),
        (r"\begin{pmatrix}1/2\\3\end{pmatrix}", r"\begin{bmatrix}0.5\\\frac{6}{2}\end{bmatrix}"),
        ("5x-7y+11z+4=0", "10x - 14y + 22z + 8 = 0", "5x+11z=7y-4"),
    ],
)  # fmt: skip
def test_writings_of_one_answer(group: tuple[str, ...], equality: Equality) -> None:
    for truth in (group[0], group[-1], box(group[0])):
        ids, truth_id = classes([box(text) for text in group], truth, equality)
        assert ids.tolist() == [0] * len(group), dict(zip(group, ids, strict=True))
        assert truth_id == 0


@pytest.mark.parametrize(
    "group",
    [
        ("(1,2)", "(2,1)", "1,2", "[1,2]", "[1,2)", "1,2,2", "(1,2,2)", "x=1,y=2", "12", "1.2"),
        ("1/3", "0.33", "0.333333333", "3", r"\frac{1}{3}x"),
        (r"\sqrt{2}", "1.41", "1.4142135", "2", r"-\sqrt2"),
        ("0.0000672", "0.0000671", "0.0000673", r"10^{-12}", r"10^{-13}", r"2\cdot10^{-13}"),
        ("east", "seat", "west", "teas"),
        ("52_8", "52", "52_9", "52_{10}"),
        ("3R^2", "3r^2", "3R", "R^2"),
        ("p-q", "q-p", "p-q1", "p+q"),
        ("6-5i", "6+5i", "6-5", "5-6i"),
        (r"1\frac45", r"\frac{14}{5}", r"\frac45", "14/5x"),
        ("x+y=1", "x-y=1", "x+y=2", "x+y", "1"),
        (r"(0,9)\cup(9,36)", "(0,36)", r"[0,9)\cup(9,36)", "0,9,9,36"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}", "(1,2)", "1,2"),
        ("(x+1,2y)", "(1+x,3y)", "(x+2,y+y)"),  # some parts agree
        (r"2^{10}", r"2^10", "1023", "20"),
        (r"10^{20}+1", r"10^{20}", r"10^{20}-1"),
        (str(10**30), str(10**30 + 1)),
        ("C", "c", "D"),
    ],
)  # fmt: skip
def test_different_answers(group: tuple[str, ...], equality: Equality) -> None:
    ids, _ = classes([box(text) for text in group], None, equality)
    assert ids.tolist() == list(range(len(group))), dict(zip(group, ids, strict=True))


def test_numbers_and_words_start_no_process() -> None:
    equality = Equality()
    texts = ["7", "07", "7/1", "1,000", "0.5", r"\frac12", "(1,2)", "[1,2]", "1,2", "east", "(C)"]
    texts += [r"\{1,2\}", r"\begin{pmatrix}1\\2\end{pmatrix}", "1<x<2", r"2\cdot10^{3}", "52_8"]
    ids, truth_id = classes([box(text) for text in texts], "14/2", equality)
    assert truth_id == 0
    assert ids.tolist() == [0, 0, 0, 1, 2, 2, 3, 4, 5, 6, 7, 5, 8, 3, 9, 10]
    assert equality.checker.n_started == 0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("25", "25"), ("-1.50", "-3/2"), ("+3", "3"), ("2/4", "1/2"), (r"-\frac{3}{-2}", "3/2"),
        (r"-1\frac{4}{5}", "-9/5"), (r"2\frac{7}{3}", "14/3"), (r"0.1\overline{6}", "1/6"),
        (r"-12.\overline{34}", "-1222/99"), (r"3\cdot10^2", "300"), (r"10^{-3}", "1/1000"),
        ("1/0", None), (r"\frac{1}{0}", None), ("x", None), ("", None), ("1" * 41, None),
        (r"10^{1000}", None), ("9^9", None), ("1/2/3", None), ("1e5", "100000"),
        ("1.5E-3", "3/2000"), ("1e1000", None), ("2e", None), ("1e3e3", None), ("\u0663", None),
    ],
)  # fmt: skip
def test_exact_numbers(text: str, value: str | None) -> None:
    assert exact(text) == (None if value is None else Fraction(value))


@pytest.mark.parametrize(
    "text",
    [
        "5!!", "((5!)!)!", "1" * 41, "x" * 3, "52_8", "2^10", "1/2x", r"1/2\pi", "q1", "I", "x=y=z",
        r"\int_0^1x", r"\sum_n", r"\unknown", "x\n", "x'", '"', "a@b", "__import__",
        "x+" * 101 + "x", r"\text{x}", "x,y", "\u00e9", "<",
    ],
)  # fmt: skip
def test_what_never_reaches_the_checker(text: str) -> None:
    assert formula(text) is None


def test_forms_of_hostile_structure_stay_shallow() -> None:
    deep = ["(" * 400 + "1,2" + ")" * 400, r"\{" * 300, "(1,2", "1,2)", "," * 900, r"\pm" * 200]
    assert max(len(str(form_of(text))) for text in deep) < 20_000
    assert not form_of("(" * 400).parts
    assert not form_of(",".join(["1"] * 65)).parts


class Scripted(Checker):
    """All formulas share a key; the pairs given are equal, either way round."""

    def __init__(self, *equal: str) -> None:
        super().__init__()
        self.equal = [set(pair.split()) for pair in equal]
        self.asked: list[tuple[str, ...]] = []

    def ask(self, do: str, texts: tuple[str, ...], limit: float) -> Reply:
        self.asked.append(texts)
        return Reply("1" if do == "key" else set(texts) in self.equal, 0.01)


def test_new_writings_join_the_first_id_whose_first_writing_they_equal() -> None:
    # b equals a, c equals b but not a: no chain, since only first writings count.
    answer_ids = AnswerIds([None], Equality(checker=Scripted("a+1 b+1", "b+1 c+1", "c+1 d+1")))
    assert answer_ids.ids(0, list(map(box, ["a+1", "b+1", "c+1", "d+1"]))).tolist() == [0, 0, 1, 1]
    assert answer_ids.ids(0, list(map(box, ["d+1", "c+1", "b+1", "a+1"]))).tolist() == [1, 1, 0, 0]
    assert [answer_ids.text(0, answer) for answer in (0, 1)] == ["a+1", "c+1"]


def test_a_truth_that_equals_two_ids_is_the_first_and_merges_nothing() -> None:
    responses = [box("z+1"), box("a+1"), box("b+1")]
    for truth in (None, "t+1", "b+1"):
        equality = Equality(checker=Scripted("a+1 t+1", "b+1 t+1"))
        ids, truth_id = classes(responses, truth, equality)
        assert ids.tolist() == [0, 1, 2]
        assert truth_id == {None: -1, "t+1": 1, "b+1": 2}[truth]


def test_the_truth_is_looked_for_again_when_answers_come() -> None:
    checker = Scripted("a+1 t+1")
    answer_ids = AnswerIds(["t+1"], Equality(checker=checker))
    assert answer_ids.truth_id(0) == UNSEEN
    answer_ids.ids(0, [box("z+1")])
    assert [answer_ids.truth_id(0), answer_ids.truth_id(0)] == [UNSEEN, UNSEEN]
    asked = len(checker.asked)
    assert answer_ids.ids(0, [box("a+1")]).tolist() == [1]
    assert [answer_ids.truth_id(0), answer_ids.truth_id(0)] == [1, 1]
    assert answer_ids.ids(0, [box("t+1")]).tolist() == [1]
    assert len(checker.asked) <= asked + 3  # a's key, a with z, a with t


def test_known_answers_cost_no_question() -> None:
    checker = Scripted("a+1 b+1")
    equality = Equality(checker=checker)
    for _ in range(3):
        answer_ids = AnswerIds(["b+1"], equality)  # as each evaluation makes one
        assert answer_ids.ids(0, list(map(box, ["a+1", "b+1", "a+1"] * 20))).max() == 0
        assert answer_ids.truth_id(0) == 0
    assert sorted(checker.asked) == [("a+1",), ("a+1", "b+1"), ("b+1",)]


def test_a_book_with_merged_writings_survives_json(equality: Equality) -> None:
    visits = [["2k+2", "1/2", "k"], ["2(k+1)", "0.5", r"\sqrt{k^2+1}"], ["k+k+2", "(1,2)"]]
    answer_ids = AnswerIds(["2+2k", None], equality)
    for answers in visits:
        answer_ids.ids(0, list(map(box, answers)))
    copy = AnswerIds.from_values(json.loads(json.dumps(answer_ids.to_values())), equality)
    assert copy.to_values() == answer_ids.to_values()
    assert copy.truth_id(0) == answer_ids.truth_id(0) == 0
    more = list(map(box, ["4/8", "2k+4-2", "7", "(1,2)"]))
    assert np.array_equal(copy.ids(0, more), answer_ids.ids(0, more))
    assert copy.ids(0, [box("4/8"), box("2k+4-2")]).tolist() == [1, 0]


def test_math_verify_missing_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError('no math_verify')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UserError, match=r"no math_verify.*answer_check = strings"):
        classes([box("2k+2"), box("2(k+1)")], None, Equality())


def test_settings_choose_the_equality() -> None:
    assert TrainConfig().settled().answer_check == "strings"
    file = TrainConfig(model="m", problems="p.json")
    assert file.settled().answer_check == "math"
    assert TrainConfig(answer_check="math").settled().answer_check == "math"
    for wrong in ({"answer_check": "both"}, {"answer_timeout": 0.0}):
        with pytest.raises(UserError, match="answer_"):
            TrainConfig(**wrong)


def tiny_run(folder: Path, answers: str, **settings: Any) -> Trace:
    """The tiny model on problems from a file, `{}` in `answers` for twice the true digit."""
    rows = [
        {"prompt": p.prompt, "answer": answers.replace("{}", str(2 * int(p.answer or "")))}
        for p in tiny_problems(4)
    ]
    path = folder / "problems.json"
    path.write_text(json.dumps(rows))
    config = TrainConfig(
        model=str(CHECKPOINT), problems=str(path), prompt_suffix="", n_votes=8, n_samples=4,
        epochs=1, max_response_tokens=22, threads=1, **settings,
    )  # fmt: skip
    return train(config, progress=False)


@pytest.mark.parametrize(("check", "right"), [("math", True), ("strings", False)])
def test_a_run_rewards_what_its_equality_calls_equal(tmp_path: Path, check: str, right: bool):
    """The tiny model says 7, the file asks for 14/2: strings differ, the answers do not."""
    trace = tiny_run(tmp_path, "{}/2", answer_check=check)
    assert (trace.evals["pass_at_1"].max() > 0) == right
    assert trace.run.extra["answer_timeouts"] == 0
    assert not any("time limit" in line for line in outcome(trace))


def test_a_run_shows_what_hit_the_time_limit(tmp_path: Path) -> None:
    trace = tiny_run(tmp_path, r"\sin(\sin(\sin(x+{})))", answer_timeout=0.004)
    given_up = trace.run.extra["answer_timeouts"]
    assert given_up > 0
    assert any(f"{given_up} comparisons hit their" in line for line in outcome(trace))


def test_hostile_answers_cost_no_more_than_their_limit(
    checker: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checker.ask("key", ("k+1",), 5.0)
    answers, equality = hostile(), Equality(2.0, checker)
    assert len(answers) == 500
    groups = [answers[start : start + 100] for start in range(0, len(answers), 100)]
    answer_ids = AnswerIds(["7"] * len(groups), equality)
    spent: list[float] = []
    for problem, group in enumerate(groups):
        before = spent_by(checker)
        ids = answer_ids.ids(problem, [box(text) for text in group] + [box("7"), box("14/2")])
        spent.append(spent_by(checker) - before)
        assert ids[-1] == ids[-2] == answer_ids.truth_id(problem) >= 0
        assert ids.min() >= -1
    assert max(spent) < 10  # a group's limit is 2 s; 100 answers of 2 s each would be 200
    assert checker.n_started == 1
    assert list(tmp_path.iterdir()) == []
    ids, truth_id = classes([box("2k+2"), box("2(k+1)"), box("k")], "k+k+2", equality)
    assert (ids.tolist(), truth_id) == ([0, 0, 1], 0)


def spent_by(checker: Checker) -> float:
    """CPU seconds of this process and the checker's."""
    times = [process.cpu_times() for process in tree(checker)]
    # The children_* share counts workers that were killed.
    asked = sum(t.user + t.system + t.children_user + t.children_system for t in times)
    return time.process_time() + asked


class Watched(Checker):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[tuple[str, ...], Reply]] = []

    def ask(self, do: str, texts: tuple[str, ...], limit: float) -> Reply:
        reply = super().ask(do, texts, limit)
        self.seen.append((texts, reply))
        return reply


@pytest.fixture(scope="module")
def checker() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.close()


def test_a_power_tower_is_killed_counted_and_remembered(checker: Watched) -> None:
    checker.seen.clear()
    equality = Equality(2.0, checker)
    answer_ids = AnswerIds([None, TOWER], equality)
    group = list(map(box, ["2k+2", TOWER, "2(k+1)", TOWER]))
    assert answer_ids.ids(0, group).tolist() == [0, 1, 0, 1]
    towers = [reply for texts, reply in checker.seen if TOWER in texts]
    assert [reply.given_up for reply in towers] == [True]
    assert towers[0].cpu == 0.5
    assert equality.n_given_up == 1
    # Another problem, its truth, and a resumed run ask no more.
    assert answer_ids.ids(1, [box("k+2"), box(TOWER)]).tolist() == [0, 1]
    assert answer_ids.truth_id(1) == 1
    later, values = Equality(2.0, checker), json.loads(json.dumps(answer_ids.to_values()))
    AnswerIds.from_values(values, later).ids(0, [box(TOWER)])
    assert AnswerIds([None], later).ids(0, [box(TOWER)]).tolist() == [0]
    assert later.n_given_up == 1
    assert len([texts for texts, _ in checker.seen if TOWER in texts]) == 1


def test_a_group_costs_no_more_than_its_limit(checker: Watched) -> None:
    checker.seen.clear()
    equality = Equality(1.0, checker)
    towers = [f"{base}^{{9^{{9^9}}}}" for base in range(2, 32)]
    ids = AnswerIds([None], equality).ids(0, list(map(box, towers)))
    assert ids.tolist() == list(range(30))
    assert sum(reply.cpu for _, reply in checker.seen) <= 1.0
    assert equality.n_given_up == 30
    answer_ids = AnswerIds([None], equality)
    assert answer_ids.ids(0, list(map(box, ["k+1", "1+k"]))).tolist() == [0, 0]  # the next group


def test_memory_and_depth_are_bounded() -> None:
    checker = Checker(memory_mib=600)
    for text in ("2^{10^{11}}", r"\binom{1000000}{500000}", "(" * 60 + "1" + ")" * 60):
        assert checker.ask("key", (text,), 0.5).value is None
        assert checker.ask("same", ("k+1", "1+k"), 5.0).value is True
        for process in psutil.Process(checker.pid).children():
            assert process.memory_info().vms <= 600 * 2**20
    checker.close()


def test_code_is_not_run_even_unscreened(
    checker: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "touched"
    for text in CODE:
        for texts in ((text.replace("TARGET", str(target)),), (str(target), text)):
            checker.ask("key" if len(texts) == 1 else "same", texts, 2.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("which", ["worker", "all"])
def test_a_killed_checker_comes_back(checker: Watched, which: str) -> None:
    assert checker.ask("same", ("k+1", "1+k"), 5.0).value is True
    for process in tree(checker)[which == "worker" :]:
        process.kill()
    reply = checker.ask("same", ("k+3", "3+k"), 5.0)
    assert reply.given_up or (which == "worker" and reply.value is True)
    for number in range(4):  # each question gets its own answer
        texts = ("k+3", "3+k") if number % 2 else ("k+3", "4+k")
        assert checker.ask("same", texts, 5.0).value == (number % 2 == 1)


def test_a_question_cut_short_leaves_no_stray_answer(
    checker: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checker.ask("same", ("k+1", "1+k"), 5.0).value is True

    def interrupted(seconds: float) -> dict[str, object]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checker, "read", interrupted)
        checker.ask("same", ("k+1", "1+k"), 5.0)
    assert checker.pid is None
    assert checker.ask("same", ("k+1", "2+k"), 5.0).value is False


def tree(checker: Checker) -> list[psutil.Process]:
    root = psutil.Process(checker.pid)
    return [root, *root.children()]


def gone(processes: list[psutil.Process], seconds: float = 20.0) -> bool:
    """None is left, not even as a zombie of ours."""
    return not psutil.wait_procs(processes, timeout=seconds)[1]


def test_close_and_collection_leave_no_process() -> None:
    for end in (Checker.close, lambda checker: None):
        checker = Checker()
        checker.ask("key", ("k+1",), 5.0)
        processes = tree(checker)
        assert len(processes) == 2
        end(checker)
        del checker
        assert gone(processes)


SCRIPT = """
import os, sys, time
from real.answers.checker import Checker
import psutil
checker = Checker()
checker.ask("key", ("k+1",), 5.0)
root = psutil.Process(checker.pid)
print(root.pid, root.children()[0].pid, flush=True)
if sys.argv[1] == "wait":
    time.sleep(60)
if sys.argv[1] == "fork":
    if os.fork() == 0:
        print(checker.ask("same", ("k+1", "1+k"), 5.0).value, checker.n_started, flush=True)
        checker.close()
        os._exit(0)
    os.wait()
    print(checker.ask("same", ("k+1", "1+k"), 5.0).value, checker.n_started, flush=True)
"""


@pytest.mark.parametrize("how", ["fork", "wait"])
def test_the_end_of_the_program_ends_the_checker(how: str) -> None:
    """After a fork that used a checker of its own, and killed."""
    with subprocess.Popen([sys.executable, "-c", SCRIPT, how], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        pids = list(map(int, program.stdout.readline().split()))
        processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
        if how == "wait":
            program.kill()
        rest = program.stdout.read().decode().split()
    assert rest == (["True", "2", "True", "1"] if how == "fork" else [])
    assert len(pids) == 2
    assert gone(processes)
