"""Restarts of an engine that died: how many, with which weights, and for which errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from real.engines.rollouts import EngineDied, EngineError, Sampling
from real.engines.wrappers import RestartingEngine


class Fake:
    """Fails as configured, and records its arguments."""

    def __init__(self, errors: list[Exception]) -> None:
        self.errors = errors
        self.seen: list[Any] = []

    def do(self, what: Any) -> None:
        self.seen.append(what)
        if self.errors:
            raise self.errors.pop(0)

    def sample(self, *arguments: Any) -> None:
        self.do("sample")

    def release(self) -> None:
        self.do("release")

    def update_weights(self, model: Any, version: int) -> None:
        self.do(version)

    def close(self) -> None:
        self.seen.append("close")


def test_no_more_restarts_than_allowed() -> None:
    made: list[Fake] = []

    def make() -> Any:
        made.append(Fake([EngineDied("gone")]))
        return made[-1]

    engine, heard = RestartingEngine(make, restarts=2), []
    engine.notice = heard.append
    with pytest.raises(EngineDied, match="gone"):
        engine.update_weights(None, 7)
    assert heard == [f"gone; starting another engine, {left} more allowed" for left in (1, 0)]
    assert [fake.seen for fake in made] == [[7, "close"], [7, "close"], [7]]


def test_a_restart_in_a_release_gives_the_new_engine_the_weights() -> None:
    made: list[Fake] = []

    def make() -> Any:
        made.append(Fake([]))
        return made[-1]

    engine = RestartingEngine(make, restarts=1)
    engine.update_weights(None, 7)
    made[0].errors.append(EngineDied("gone"))
    with pytest.warns(UserWarning, match="gone"):
        engine.release()
    assert [fake.seen for fake in made] == [[7, "release", "close"], [7, "release"]]


def test_refusals_are_no_reason_to_restart() -> None:
    engine = RestartingEngine(lambda: Fake([EngineError("refused")]), restarts=2)
    with pytest.raises(EngineError, match="refused"):
        engine.sample([[1, 2]], 1, Sampling(2), torch.Generator())
    assert engine.left == 2
