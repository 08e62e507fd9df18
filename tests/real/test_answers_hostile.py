r"""Hostile answers: nothing hangs, crashes, runs code or costs more than the limit."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hostile_answers import CODE, TOWER, box, hostile

import real.answers.equality
from real.answers import AnswerIds, Equality, classes
from real.answers.checker import Checker, Reply


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
    """Keeps what was asked and answered."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[tuple[str, ...], Reply]] = []

    def ask(self, do: str, texts: tuple[str, ...], limit: float) -> Reply:
        reply = super().ask(do, texts, limit)
        self.seen.append((texts, reply))
        return reply


@pytest.fixture(scope="module")
def shared() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.close()


@pytest.fixture
def checker(shared: Watched) -> Watched:
    shared.seen.clear()
    return shared


@pytest.fixture
def unscreened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything reaches the checker."""
    monkeypatch.setattr(real.answers.equality, "formula", lambda text: text)


@pytest.mark.usefixtures("unscreened")
def test_a_power_tower_is_killed_counted_and_remembered(checker: Watched) -> None:
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


@pytest.mark.usefixtures("unscreened")
def test_a_group_costs_no_more_than_its_limit(checker: Watched) -> None:
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
        patch.setattr(checker, "_read", interrupted)
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
