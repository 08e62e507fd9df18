"""Votes that are sampled one batch ahead: by which weights, and that nothing else changes."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from copied_engine import CopiedEngine, copied, lagging
from scripted_child import TinyModel
from tiny_runs import SMALL, check_same

import real.run
from real import resume, train
from real.engines.child_engine import ChildEngine
from real.engines.make import make_engine
from real.engines.rollouts import EngineDied, EngineError, Sampling, shard_requests
from real.engines.transformers_engine import TransformersEngine
from real.model.policy import load_policy
from real.tiny import CHECKPOINT
from real.update.correction import importance_weights
from real.update.logprobs import Scorer, group_scores
from real.update.optimizer import PolicyOptimizer

TURNS = replace(SMALL, epochs=3, eval_every=2, checkpoint_keep=9, lr=1e-3, max_mismatch=10.0)
"""Six batches; sampling and update take turns."""
AHEAD = replace(TURNS, async_level=1)


@pytest.fixture(scope="module")
def whole():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real.run, "make_engine", copied)
        return train(AHEAD, progress=False)


def test_votes_are_those_of_the_weights_before_the_last_update(whole, monkeypatch):
    def make(config, policy, *_):
        engine = lagging(CopiedEngine(policy, config))
        engine.release = lambda: None  # it has its turn
        return engine

    monkeypatch.setattr(real.run, "make_engine", make)
    steps = whole.steps.drop(columns="staleness")
    check_same(train(TURNS, progress=False), replace(whole, steps=steps))


def test_steps_tell_the_version_and_the_time_beside_the_update(whole):
    steps = whole.steps
    assert steps["staleness"].tolist() == [0, 1, 1, 1, 1, 1]
    own, waited = steps["seconds_ahead"].to_numpy(), steps["seconds_rollout"].to_numpy()
    assert own[0] == 0 and bool((own[1:] > 0).all())
    # The trainer waits for the votes of the next batch after the update, in all for a part of
    # their time: on a busy machine a single row may wait longer.
    assert waited[1:-1].sum() < own[2:].sum()
    speed = steps["tokens_sampled"][1:] / own[1:]
    np.testing.assert_allclose(steps["sampled_per_second"][1:], speed)


def test_a_run_whose_engine_fails_meanwhile_goes_on(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(real.run, "make_engine", copied)
    monkeypatch.setattr(CopiedEngine, "fails_at", 4)
    with pytest.raises(EngineDied, match="as the test wants it; go on with guard-train resume"):
        train(AHEAD, tmp_path / "run", progress=False)
    monkeypatch.setattr(CopiedEngine, "fails_at", None)
    # The fifth draw was begun in the third batch, which was not trained to its end.
    trace = resume(tmp_path / "run", progress=False)
    assert [entry["step"] for entry in trace.run.extra["resumed"]] == [2]
    check_same(trace, whole)
    assert not (tmp_path / "run/checkpoints/step-000006/votes.safetensors").exists()
    kept = json.loads((tmp_path / "run/checkpoints/step-000004/votes.json").read_text())
    assert kept["version"] == 3


def logprobs(scorer, group):
    return group_scores(scorer, [group], TURNS)[0][0]


@pytest.mark.parametrize("cap", [0.0, 1.5])
def test_the_loss_is_corrected_for_one_update(cap, monkeypatch):
    monkeypatch.setattr(real.run, "make_engine", copied)
    trained_on = []
    step = PolicyOptimizer.step

    def recorded(self, groups):
        """Note groups, and their log-probs by the weights before the step."""
        trained_on.extend((group, logprobs(self.scorer, group)) for group in groups)
        return step(self, groups)

    monkeypatch.setattr(PolicyOptimizer, "step", recorded)
    train(replace(AHEAD, epochs=1, tis_cap=cap, mini_batch=2), progress=False)
    group, now = next(pair for pair in trained_on[2:] if not pair[0].silent)
    inside = group.real_KT
    sampled = logprobs(Scorer(load_policy(CHECKPOINT, "cpu").model), group)[inside]
    assert float((now[inside] - sampled).abs().max()) > 1e-2
    if not cap:
        torch.testing.assert_close(group.old_KT[inside], sampled)
        return
    torch.testing.assert_close(group.old_KT[inside], now[inside])
    expected = importance_weights(now[inside][None], sampled[None], cap)
    torch.testing.assert_close(group.correction_KT[inside], expected[0])


@pytest.mark.slow
def test_a_model_in_its_own_process_draws_what_it_would_draw_in_this_one(request):
    policy = load_policy(CHECKPOINT, "cpu", head_dtype="float32")
    child = make_engine(replace(AHEAD, max_rows=16).settled(), policy)
    assert isinstance(child, ChildEngine)
    request.addfinalizer(child.close)
    prompts, sampling = [[3, 4, 5], [6, 7], [8, 9, 10]], Sampling(9, 0.8, stats=True)
    with pytest.raises(EngineError, match="no weights of the trainer's"):
        child.sample(prompts, 8, sampling, torch.Generator())
    with torch.no_grad():
        policy.model.model.layers[0].mlp.up_proj.weight.mul_(1.1)
    child.update_weights(policy.model, 5)
    alone = TransformersEngine(policy.model, policy.eos_token_ids, 0, max_rows=16)
    alone.update_weights(policy.model, 5)
    generators = [torch.Generator().manual_seed(4) for _ in range(2)]
    for share in ((0, 1), (1, 3)):
        child.share = alone.share = share
        found, expected = (
            engine.sample(prompts, 8, sampling, generator)
            for engine, generator in zip((child, alone), generators, strict=True)
        )
        assert found.version == 5
        assert len(found.tokens_PNT) == (3 if share == (0, 1) else len(shard_requests(3, 8, share)))
        for name, tensor in expected.packed().items():
            assert torch.equal(found.packed()[name], tensor), name
    assert torch.equal(*(generator.get_state() for generator in generators))
    with pytest.raises(EngineError, match=r"its model has no weight weight"):
        child.update_weights(TinyModel(4.0), 6)
