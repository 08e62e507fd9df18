"""Restarts of an engine that died: how many, with which weights, and for which errors.

A run that the last death ended is resumed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import check_same

import real.run
from lab.trace.trace import Trace, load
from real import TrainConfig
from real.__main__ import main
from real.engines.child_engine import ChildEngine
from real.engines.make import RestartingEngine, make_child
from real.engines.rollouts import EngineDied, EngineError, Rollouts, Sampling
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


WORDS = "--n-problems 4 --batch-size 2 --n-votes 8 --n-samples 4 --epochs 2 --eval-samples 2"


def command(out: Path) -> list[str]:
    return ["run", "--out", str(out), "--checkpoint-every", "1", *WORDS.split(), "--quiet"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main(command(out)) == 0
    return load(out)


class Killed:
    """An engine's process, killed as it is to sample with a version of the weights."""

    def __init__(self, engine: ChildEngine, last: int) -> None:
        self.engine, self.last = engine, last
        self.queues, self.release = engine.queues, engine.release
        self.update_weights, self.close = engine.update_weights, engine.close

    def sample(self, *arguments: Any) -> Rollouts:
        found = self.engine.sample(*arguments)
        if found.version == self.last:
            os.kill(self.engine.pid, signal.SIGKILL)
            return self.engine.sample(*arguments)
        return found


def test_a_run_that_a_dead_engine_ended_goes_on(whole, tmp_path, monkeypatch, capfd):
    """Its last process dies in the evaluation after the second batch, before a checkpoint."""
    broken = iter([Fake([EngineDied("gone")])])

    def make(config: TrainConfig, policy: Policy, *others: Any) -> Any:
        def start() -> Any:
            return next(broken, None) or Killed(make_child(config, policy, *others), 2)

        return RestartingEngine(start, 1)

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(real.run, "make_engine", make)
        assert main(command(out)) == 2
    died = "engine: its process died during sample (signal SIGKILL)"
    said = capfd.readouterr().err.splitlines()
    *notices, line = [line for line in said if "too few for the fates" not in line]
    assert notices == ["guard-train: notice: gone; starting another engine, 0 more allowed"]
    assert line.startswith(f"guard-train: {died}")
    assert line.endswith(f"; go on with guard-train resume {out}")
    failed = load(out)
    assert failed.run.status == "failed" and died in (failed.run.error or "")
    assert failed.steps["step"].tolist() == [1, 2]
    assert main(["resume", str(out), "--quiet"]) == 0
    check_same(load(out), whole)
    assert [entry["step"] for entry in load(out).run.extra["resumed"]] == [1]
