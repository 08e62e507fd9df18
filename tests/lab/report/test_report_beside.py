import os

import pytest

from lab.report import beside
from lab.report.beside import Beside
from lab.report.html import Html, tag


@pytest.fixture
def forks(monkeypatch):
    """Two cores and Linux, whatever the machine."""
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    monkeypatch.setattr(beside, "_may_fork", lambda: True)


def who() -> Html:
    return tag("p", os.getpid(), " <é>")


def test_another_process_makes_the_markup_as_it_is(forks):
    made = Beside({"who": who, "other": lambda: tag("b", "x")})
    assert made.result("other") == "<b>x</b>"
    found = made.result("who")
    assert found.endswith(" &lt;é&gt;</p>") and str(os.getpid()) not in found
    # Markup it is: an element around it does not escape it again.
    assert tag("div", found) == f"<div>{found}</div>"


def test_without_a_second_process_it_is_made_here(monkeypatch):
    monkeypatch.setattr(beside, "_may_fork", lambda: False)
    assert Beside({"who": who}).result("who") == who()


def test_what_fails_there_is_done_again_here(forks):
    here = os.getpid()

    def only_here() -> Html:
        if os.getpid() != here:
            raise MemoryError
        return who()

    assert Beside({"who": only_here}).result("who") == who()


def test_an_error_is_raised_where_it_can_be_told(forks):
    def wrong() -> Html:
        raise ValueError("no such arm")

    made = Beside({"wrong": wrong})
    with pytest.raises(ValueError, match="no such arm"):
        made.result("wrong")


def test_no_process_is_left_behind(forks):
    made = Beside({"who": who})
    made.result("who")
    with pytest.raises(ChildProcessError):
        os.waitpid(made._pid, os.WNOHANG)
