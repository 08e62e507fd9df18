import os
import signal
import time
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from copied_engine import lagging
from drawn import logprob_gap
from vllm_models import EXPERTS, change, make_model

import real.run
from guard_core import GuardConfig
from real import TrainConfig, train
from real.engines import weights
from real.engines.child_engine import ChildEngine
from real.engines.rollouts import EngineDied, Sampling
from real.engines.vllm_engine import VllmSettings
from real.engines.weights import Route
from real.model.prepare import add_lora
from real.settings.groups import MemorySettings

CONFIG = TrainConfig(
    engine="vllm", guard=GuardConfig.paper(), n_problems=6, n_votes=16, n_samples=8, batch_size=2,
    epochs=1, lr=1e-3, eval_every=0, engine_timeout=240.0,
)  # fmt: skip
"""Three batches of the tiny task."""


def run(monkeypatch, config, changed):
    """Train with an engine that `changed` has changed."""
    make = real.run.make_engine
    with monkeypatch.context() as patch:
        patch.setattr(real.run, "make_engine", lambda *arguments: changed(make(*arguments)))
        return train(config, progress=False)


def test_training_through_vllm(monkeypatch):
    rollouts = []

    def watched(engine):
        sample = engine.sample
        engine.sample = lambda *given: rollouts.append(sample(*given)) or rollouts[-1]
        return engine

    steps = run(monkeypatch, CONFIG, watched).steps
    # Every batch was sampled by the weights that the batch before it left behind.
    trained = [r.version for r in rollouts if r.tokens_PNT.shape[:2] == (2, 16)]
    assert len(steps) == 3 and [v for v in range(3) if v in trained] == [0, 1, 2]
    assert (steps.mismatch_kl < 1e-6).all()
    assert (steps.update_norm > 0).any()
    assert (steps.seconds_sync > 0).all()


def test_votes_one_batch_ahead_are_those_of_the_weights_before_the_last(monkeypatch):
    """Beside the update in an engine of its own, and in turns in one in the same process."""
    ahead = train(replace(CONFIG, async_level=1), progress=False)
    turns = run(monkeypatch, replace(CONFIG, engine="vllm_inprocess"), lagging)
    for table in ("visits", "votes", "evals"):
        assert getattr(ahead, table).equals(getattr(turns, table))
    assert ahead.steps.staleness.tolist() == [0, 1, 1]
    assert ahead.steps.update_norm.tolist() == pytest.approx(turns.steps.update_norm.tolist())
    kl = ahead.steps.mismatch_kl.tolist()  # of two versions of the weights
    assert kl[0] < 1e-6 < kl[1] and kl == pytest.approx(turns.steps.mismatch_kl.tolist(), rel=1e-3)


PROMPTS = [[1, 2, 3], [(7 * i) % 30 + 1 for i in range(100)]]


def start(folder, **more):
    sizes = {"max_model_len": 256, "eos_token_ids": (5, 6), "threads": 1}
    settings = VllmSettings(model=str(folder), **sizes, **more)
    route = Route(n_gpus=settings.n_gpus, adapters=settings.adapter_rank > 0)
    return ChildEngine(asdict(settings), 240.0, route)


def sample(engine):
    return engine.sample(PROMPTS, 4, Sampling(12, 0.7), torch.Generator().manual_seed(0))


def test_adapters_alone_give_the_log_probs_of_the_adapted_model(folder):
    """In an engine of two processes."""
    pytest.importorskip("peft")
    model = make_model()
    add_lora(model, MemorySettings(lora_rank=4))
    engine = start(folder, adapter_rank=4, n_gpus=2)
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


@pytest.mark.parametrize("kind", [{}, EXPERTS])
def test_an_engine_of_two_processes_gets_their_parts_of_the_weights(kind, tmp_path, monkeypatch):
    """In buckets that are filled again and again, as where there is little room."""
    monkeypatch.setattr(weights, "BUCKET", 20_000)
    monkeypatch.setattr(weights, "SPARE", 0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=40_000))
    model = make_model(**kind)
    model.save_pretrained(tmp_path)
    engine = start(tmp_path, n_gpus=2)
    for version in (0, 1):
        engine.update_weights(model, version)
        found = sample(engine)
        assert logprob_gap(model, PROMPTS, found, 0.7) < 5e-5
        assert found.version == version
        change(model)
    engine.close()
