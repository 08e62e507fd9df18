"""vLLM in a process of its own, and training through it."""

from __future__ import annotations

import copy
import os
import signal
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from drawn import logprob_gap
from vllm_models import change, make_model

import real.run
from guard_core import GuardConfig
from real import TrainConfig, train
from real.engines import child_engine, weights
from real.engines.child_engine import ChildEngine
from real.engines.make import RestartingEngine
from real.engines.rollouts import EngineDied, Rollouts, Sampling
from real.engines.vllm_engine import VllmSettings
from real.model.prepare import add_lora
from real.settings.groups import MemorySettings

CONFIG = TrainConfig(
    engine="vllm",
    guard=GuardConfig.paper(),
    n_problems=12,
    n_votes=16,
    n_samples=8,
    batch_size=4,
    epochs=2,
    lr=1e-3,
    eval_every=0,
    engine_timeout=240.0,
    restart_engine=2,
)
"""Six batches of the tiny task."""
STEPS = 6


class Watch:
    """Notes all rollouts of a run, and can interfere before one."""

    def __init__(self) -> None:
        self.rollouts: list[Rollouts] = []
        self.before: dict[int, Any] = {}
        self.before_load: dict[int, Any] = {}
        """By the version of the weights."""

    def __call__(self, engine: Any) -> Any:
        sample, load = engine.sample, engine.update_weights

        def watched(*arguments: Any) -> Rollouts:
            self.before.pop(len(self.rollouts), lambda _: None)(engine)
            self.rollouts.append(sample(*arguments))
            return self.rollouts[-1]

        def loaded(model: Any, version: int) -> Any:
            self.before_load.pop(version, lambda _: None)(engine)
            return load(model, version)

        engine.sample, engine.update_weights = watched, loaded
        return engine


def run(monkeypatch: pytest.MonkeyPatch, config: TrainConfig, watch: Watch) -> Any:
    make = real.run.make_engine
    with monkeypatch.context() as patch:
        patch.setattr(real.run, "make_engine", lambda *arguments: watch(make(*arguments)))
        return train(config, progress=False)


@pytest.fixture(scope="module")
def undisturbed() -> Any:
    watch = Watch()
    with pytest.MonkeyPatch.context() as patch:
        return run(patch, CONFIG, watch), watch.rollouts


def test_training_through_vllm(undisturbed: Any) -> None:
    trace, rollouts = undisturbed
    steps = trace.steps
    assert len(steps) == STEPS
    # Every batch was sampled by the weights that the batch before it left behind.
    trained = [r.version for r in rollouts if r.tokens_PNT.shape[:2] == (4, 16)]
    assert [v for v in range(STEPS) if v in trained] == list(range(STEPS))
    assert (steps.mismatch_kl < 1e-6).all()
    assert (steps.update_norm > 0).any()
    assert (steps.seconds_sync > 0).all()


def test_votes_of_vllm_learn_what_those_of_transformers_learn(undisturbed: Any) -> None:
    """Other random numbers, the same course: the match rate rises as the votes agree."""
    through_vllm = undisturbed[0].visits
    visits = train(replace(CONFIG, engine="transformers", restart_engine=0), progress=False).visits
    for found in (visits, through_vllm):
        rates = found.groupby("epoch").match_rate.mean()
        assert rates.loc[2] > rates.loc[0] + 0.05
    starts = [found[found.step == 0].label_accuracy.mean() for found in (visits, through_vllm)]
    assert abs(starts[0] - starts[1]) < 0.15


def test_killed_engines_change_nothing(
    undisturbed: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One is killed awake, one asleep, and one while weights are sent to it."""

    def kill(engine: RestartingEngine) -> None:
        assert isinstance(engine.engine, ChildEngine)
        os.kill(engine.engine.pid, signal.SIGKILL)

    def kill_in_load(engine: RestartingEngine) -> None:
        send, engines = child_engine.send, [engine]

        def sent(pipe: Any, message: Any) -> None:
            dying = engines.pop() if message["do"] == "load" and engines else None
            if dying is not None:  # stopped first: it could answer before it is killed
                os.kill(dying.engine.pid, signal.SIGSTOP)
                os.waitid(os.P_PID, dying.engine.pid, os.WSTOPPED | os.WNOWAIT)
            send(pipe, message)
            if dying is not None:
                kill(dying)

        monkeypatch.setattr(child_engine, "send", sent)

    watch = Watch()
    watch.before[4] = kill
    watch.before_load |= {2: kill, 5: kill_in_load}
    trace = run(monkeypatch, replace(CONFIG, restart_engine=3), watch)
    said = capsys.readouterr().err
    assert said.count("died during sample (signal SIGKILL)") == 1
    assert said.count("died during load (signal SIGKILL)") == 2
    assert not watch.before and not watch.before_load
    expected = undisturbed[0]
    for table in ("visits", "evals"):
        assert getattr(trace, table).equals(getattr(expected, table))
    assert trace.steps.update_norm.equals(expected.steps.update_norm)


def lagging(engine: Any) -> Any:
    """Let votes come from the weights before the last ones, in turns with the update."""
    sample, load, kept = engine.sample, engine.update_weights, []

    def sampled(prompts: Any, n: int, sampling: Sampling, *others: Any) -> Rollouts:
        votes = sampling.logprobs  # else an evaluation
        load(kept[max(0, len(kept) - 1 - votes)], len(kept) - 1)
        return sample(prompts, n, sampling, *others)

    def loaded(model: Any, version: int) -> Any:
        kept.append(copy.deepcopy(model))
        return load(model, version)

    engine.sample, engine.update_weights = sampled, loaded
    return engine


def test_votes_one_batch_ahead_are_those_of_the_weights_before_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = replace(CONFIG, n_problems=6, batch_size=2, epochs=1, restart_engine=0)
    ahead = train(replace(config, async_level=1), progress=False)
    make = real.run.make_engine
    monkeypatch.setattr(real.run, "make_engine", lambda *arguments: lagging(make(*arguments)))
    turns = train(replace(config, engine="vllm_inprocess"), progress=False)
    for table in ("visits", "votes", "evals"):
        assert getattr(ahead, table).equals(getattr(turns, table))
    assert ahead.steps.staleness.tolist() == [0, 1, 1]
    assert ahead.steps.update_norm.tolist() == pytest.approx(turns.steps.update_norm.tolist())
    kl = ahead.steps.mismatch_kl.tolist()  # of two versions of the weights
    assert kl[0] < 1e-6 < kl[1] and kl == pytest.approx(turns.steps.mismatch_kl.tolist(), rel=1e-3)


def test_training_with_vllm_in_the_same_process(
    undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch()
    config = replace(CONFIG, engine="vllm_inprocess", restart_engine=0, epochs=1, n_problems=4)
    assert (run(monkeypatch, config, watch).steps.mismatch_kl < 1e-6).all()
    assert watch.rollouts[0].tokens_PNT.equal(undisturbed[1][0].tokens_PNT[:4])
    assert {r.version for r in watch.rollouts} == {0, 1}


PROMPTS = [[1, 2, 3], [(7 * i) % 30 + 1 for i in range(100)]]


def start(folder: Path, **more: Any) -> ChildEngine:
    sizes = {"max_model_len": 256, "eos_token_ids": (5, 6), "threads": 1}
    return ChildEngine(asdict(VllmSettings(model=str(folder), **sizes, **more)), 240.0)


def sample(engine: ChildEngine) -> Rollouts:
    return engine.sample(PROMPTS, 4, Sampling(12, 0.7), torch.Generator().manual_seed(0))


@pytest.mark.parametrize("n_gpus", [1, 2])
def test_adapters_alone_give_the_log_probs_of_the_adapted_model(folder: Path, n_gpus: int) -> None:
    pytest.importorskip("peft")
    model = make_model()
    add_lora(model, MemorySettings(lora_rank=4))
    engine = start(folder, adapter_rank=4, n_gpus=n_gpus)
    for version in (0, 1, 2):
        engine.update_weights(model, version)
        found = sample(engine)
        assert logprob_gap(model, PROMPTS, found, 0.7) < 2e-4
        assert found.version == version
        engine.release()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter += 0.1 * torch.randn(parameter.shape)
        assert logprob_gap(model, PROMPTS, found, 0.7) > 1e-2
    # A stopped engine is an error in time.
    engine.update_weights(model, 3)
    os.kill(engine.pid, signal.SIGSTOP)
    began, engine.timeout = time.monotonic(), 3.0
    with pytest.raises(EngineDied, match="no sign of life for 3 s during sample"):
        sample(engine)
    assert time.monotonic() - began < 15
    engine.close()


def test_an_engine_of_two_processes_gets_their_parts_of_the_weights(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In buckets that are filled again and again, as where there is little room."""
    monkeypatch.setattr(weights, "BUCKET", 20_000)
    monkeypatch.setattr(weights, "SPARE", 0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=40_000))
    model = make_model()
    engine = start(folder, n_gpus=2)
    for version in (0, 1):
        engine.update_weights(model, version)
        found = sample(engine)
        assert logprob_gap(model, PROMPTS, found, 0.7) < 5e-5
        assert found.version == version
        change(model)
    engine.close()
