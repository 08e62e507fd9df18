import sys
from types import SimpleNamespace

import pytest

import lab.progress
from lab.progress import Bar


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves."""
    made = SimpleNamespace(now=0.0, monotonic=lambda: made.now)
    monkeypatch.setattr(lab.progress, "time", made)
    return made


def test_lines_have_step_numbers_and_a_time_left_that_the_start_does_not_spoil(clock, capsys):
    with Bar(total=200, desc="run", unit="step") as bar:
        clock.now += 1000.0  # votes before training
        for step in range(200):
            clock.now += 2.0 if step % 2 else 1.0
            bar.set_postfix_str(f"loss {step}")
            bar.update()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 20 and lines[0] == "  5% run  step 10/200, loss 9, 04:55 left"
    assert lines[9] == " 50% run  step 100/200, loss 99, 02:30 left"
    assert lines[-1] == "100% run  step 200/200, loss 199"


def test_a_terminal_is_redrawn_twice_a_second(clock, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Bar(total=6000) as bar:
        for _ in range(6000):
            clock.now += 0.01
            bar.set_postfix_str("phase")
            bar.update()
    assert 60 <= capsys.readouterr().err.count("\r") <= 2 * 60 + 10


def test_a_resumed_bar_writes_no_line_for_what_was_done(capsys):
    with Bar(total=10, initial=5, unit="step") as bar:
        assert capsys.readouterr().err == ""
        bar.update(1)
    assert capsys.readouterr().err == " 60%  step 6/10\n"
