"""Restarts of an engine that died: how many, with which weights, and for which errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import real.run
from real import TrainConfig, train
from real.engines.make import RestartingEngine
from real.engines.rollouts import EngineDied, EngineError, Sampling
from real.engines.transformers_engine import TransformersEngine
from real.model.policy import Policy


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


def recorded(*errors: Exception) -> tuple[list[Fake], Callable[[], Any]]:
    """Engines as they are made, and what makes them."""
    made: list[Fake] = []

    def make() -> Any:
        made.append(Fake([*errors]))
        return made[-1]

    return made, make


def test_no_more_restarts_than_allowed():
    made, make = recorded(EngineDied("gone"))
    engine, heard = RestartingEngine(make, restarts=2), []
    engine.notice = heard.append
    with pytest.raises(EngineDied, match="gone"):
        engine.update_weights(None, 7)
    assert heard == [f"gone; starting another engine, {left} more allowed" for left in (1, 0)]
    assert [fake.seen for fake in made] == [[7, "close"], [7, "close"], [7]]


def test_a_restart_in_a_release_gives_the_new_engine_the_weights():
    made, make = recorded()
    engine = RestartingEngine(make, restarts=1)
    engine.update_weights(None, 7)
    made[0].errors.append(EngineDied("gone"))
    with pytest.warns(UserWarning, match="gone"):
        engine.release()
    assert [fake.seen for fake in made] == [[7, "release", "close"], [7, "release"]]


def test_refusals_are_no_reason_to_restart():
    engine = RestartingEngine(recorded(EngineError("refused"))[1], restarts=2)
    with pytest.raises(EngineError, match="refused"):
        engine.sample([[1, 2]], 1, Sampling(2), torch.Generator())
    assert engine.left == 2


def test_a_run_goes_on_with_another_engine_and_says_so(tmp_path, monkeypatch, capfd):
    def make(config: TrainConfig, policy: Policy, *_: Any) -> Any:
        sound = TransformersEngine(policy.model, policy.eos_token_ids, policy.pad_token_id)
        engines = iter([Fake([EngineDied("gone")]), sound])
        return RestartingEngine(lambda: next(engines), 1)

    monkeypatch.setattr(real.run, "make_engine", make)
    config = TrainConfig(n_problems=2, n_votes=4, n_samples=2, epochs=1, eval_samples=1)
    assert train(config, tmp_path / "run", progress=False).run.status == "finished"
    assert "notice: gone; starting another engine, 0 more allowed" in capfd.readouterr().err
