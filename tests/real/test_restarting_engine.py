from functools import partial
from itertools import count
from unittest.mock import Mock, call

import pytest
import torch
from tiny_runs import check_same

import real.run
from real import TrainConfig, train
from real.engines.make import RestartingEngine
from real.engines.rollouts import EngineDied, EngineError, Sampling
from real.engines.transformers_engine import TransformersEngine

SMALL = TrainConfig(n_problems=2, n_votes=4, n_samples=2, epochs=1, eval_samples=1)


@pytest.fixture(scope="module")
def undisturbed():
    return train(SMALL, progress=False)


UPDATE = call.update_weights(None, 7)


def recorded(error=None):
    """Engines as they are made, which fail with that error, and what makes them."""
    made = []

    def make():
        made.append(Mock(**{"sample.side_effect": error, "update_weights.side_effect": error}))
        return made[-1]

    return made, make


def test_no_more_restarts_than_allowed():
    made, make = recorded(EngineDied("gone"))
    engine, heard = RestartingEngine(make, restarts=2), []
    engine.notice = heard.append
    with pytest.raises(EngineDied, match="gone"):
        engine.update_weights(None, 7)
    assert heard == [f"gone; starting another engine, {left} more allowed" for left in (1, 0)]
    assert [fake.mock_calls for fake in made] == [*[[UPDATE, call.close()]] * 2, [UPDATE]]


def test_a_restart_in_a_release_gives_the_new_engine_the_weights():
    made, make = recorded()
    engine = RestartingEngine(make, restarts=1)
    engine.update_weights(None, 7)
    made[0].release.side_effect = EngineDied("gone")
    with pytest.warns(UserWarning, match="gone"):
        engine.release()
    calls = [UPDATE, call.release()]
    assert [fake.mock_calls for fake in made] == [[*calls, call.close()], calls]


def test_refusals_are_no_reason_to_restart():
    engine = RestartingEngine(recorded(EngineError("refused"))[1], restarts=2)
    with pytest.raises(EngineError, match="refused"):
        engine.sample([[1, 2]], 1, Sampling(2), torch.Generator())
    assert engine.left == 2


@pytest.mark.parametrize("place", [0, 1, 2, 4])
def test_a_run_goes_on_with_another_engine_as_if_nothing_happened(
    undisturbed, place, tmp_path, monkeypatch, capfd
):
    """The engine dies at the end of that call, of an update or a draw."""
    calls = count()

    def dying(do, *arguments):
        found = do(*arguments)
        if next(calls) >= place:
            raise EngineDied("gone")
        return found

    def make(config, policy, *_):
        one = policy.model, policy.eos_token_ids, policy.pad_token_id
        first, second = TransformersEngine(*one), TransformersEngine(*one)
        first.sample = partial(dying, first.sample)
        first.update_weights = partial(dying, first.update_weights)
        return RestartingEngine(iter([first, second]).__next__, 1)

    monkeypatch.setattr(real.run, "make_engine", make)
    check_same(train(SMALL, tmp_path / "run", progress=False), undisturbed)
    assert "notice: gone; starting another engine, 0 more allowed" in capfd.readouterr().err
