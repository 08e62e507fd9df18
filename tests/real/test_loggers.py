import importlib.util
import sys
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from tiny_runs import SMALL, Stopped, stop_at

from lab.base.errors import UserError
from lab.trace.manifest import Manifest
from lab.trace.trace import MemoryRun, load
from real import resume, train
from real.__main__ import main
from real.record.journal import LOGGERS, Journal


def fake_wandb():
    """What the trainer uses of the library; a run is the module itself."""
    made = Mock(spec_set=["init", "log", "finish", "Settings", "__spec__"])
    made.__spec__ = importlib.util.spec_from_loader("wandb", None, origin=__file__)
    made.init.return_value = made
    return made


def scalars(fake, name):
    logged = [(call.kwargs["step"], call.args[0]) for call in fake.log.mock_calls]
    return [(step, values[name]) for step, values in logged if name in values]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """A run with all loggers there are, which was stopped in its third batch of four."""
    fake, folder = fake_wandb(), tmp_path_factory.mktemp("resumed") / "run"
    has_tensorboard = importlib.util.find_spec("tensorboard") is not None
    log = ("wandb", "tensorboard") if has_tensorboard else ("wandb",)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "wandb", fake)
        patch.delenv("WANDB_MODE", raising=False)
        with pytest.raises(Stopped):
            train(replace(SMALL, log=log), folder, progress=stop_at(0.75))
        fake.finish.assert_called_once()
        return resume(folder, progress=False), fake, folder


def test_they_get_the_numbers_of_the_trace(resumed):
    trace, fake, folder = resumed
    tables = ("train", "update_norm", trace.steps), ("eval", "pass_at_1", trace.evals)
    for kind, column, known in tables:
        logged = dict(scalars(fake, f"{kind}/{column}"))
        assert logged == dict(zip(known["step"], known[column], strict=True))
    assert [step for step, _ in scalars(fake, "train/loss")] == [1, 2, 3, 3, 4]
    rates = trace.visits.groupby("step")["match_rate"].mean()
    votes = dict(scalars(fake, "votes/match_rate"))
    np.testing.assert_allclose([votes[step] for step in rates.index], rates)
    names = {name for call in fake.log.mock_calls for name in call.args[0]}
    assert not any("problem" in name.split("/") for name in names)
    first, second = (call.kwargs for call in fake.init.mock_calls)
    assert fake.finish.call_count == 2 and first["config"]["n_votes"] == 8
    assert first["mode"] == "offline" and first["dir"] == str(folder)
    assert first["id"] == second["id"] and second["resume"] == "allow"


def test_runs_that_start_in_one_second_are_two(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", fake := fake_wandb())
    started = "2026-01-01T00:00:00+00:00"
    for arm in ("ttrl", "guard", "guard"):
        one = Manifest("real", arm, "", n_problems=1, n_votes=1, started=started)
        LOGGERS["wandb"](tmp_path / arm / "seed-0", one, None)
    first, second, third = (call.kwargs["id"] for call in fake.init.mock_calls)
    assert first != second == third


def test_a_missing_library_is_told_before_anything_is_made(tmp_path, monkeypatch, capsys):
    found = importlib.util.find_spec
    missing = {"tensorboard"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n in missing else found(n))
    out = tmp_path / "run"
    assert main(["run", "--out", str(out), "--log", "tensorboard", "--epochs", "1"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "log: tensorboard not installed; install with pip install -e '.[log]'" in line
    assert not out.exists()


def test_runs_in_memory_are_refused():
    with pytest.raises(UserError, match="needs a run folder"):
        train(replace(SMALL, log=("tensorboard",)), progress=False)


def test_a_logger_that_fails_is_left_out_and_the_others_go_on(capsys):
    """As one whose disk is full from the second call on."""
    broken, sound = Mock(**{"scalars.side_effect": [None, OSError("no space")]}), Mock()
    recorder = MemoryRun(Manifest.new("real", "ttrl", "TTRL", n_problems=1, n_votes=1, seeds=[0]))
    recorder.write = lambda table, columns: None
    with Journal(recorder, loggers=[("broken", broken), ("sound", sound)]) as journal:
        for step in range(5):
            journal.write("evals", {"step": step, "a": 1.0})
        assert broken.scalars.call_count == 2 and sound.scalars.call_count == 5
        assert capsys.readouterr().err.count("log broken: failed and is left out (no space)") == 1
    assert not broken.close.called and sound.close.called


def test_tensorboard_writes_real_event_files(resumed):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trace, _, folder = resumed
    events = EventAccumulator(str(folder / "tensorboard"), {"scalars": 0})
    events.Reload()
    columns = ("train/update_norm", "train/seconds_update", "eval/pass_at_1")
    for name, table in zip(columns, (trace.steps, trace.steps, trace.evals), strict=True):
        found, column = events.Scalars(name), name.partition("/")[2]
        # Of the third batch, which came twice, only the second time is shown.
        assert [event.step for event in found] == table["step"].tolist()
        np.testing.assert_allclose([e.value for e in found], table[column], rtol=1e-6)
    shown = events.Tensors("config/text_summary")
    assert len(shown) == 1 and "n_votes" in shown[0].tensor_proto.string_val[0].decode()
    assert load(folder).run.status == "finished"
