import random

import pytest
from test_votes import batch, config, visit

from lab.base.errors import UserError
from lab.trace.trace import load as load_trace
from real.other_trainers import FOLDER, GuardedRun

IDS = [4, 9, 2]


def opened_run(tmp_path, run):
    return run.opened(tmp_path / "run", "tiny", "verl")


def made(**changed):
    return GuardedRun(config(**changed), IDS, ["1", None, "0"])


def test_a_checkpoint_touches_no_other_runs_folder(tmp_path, monkeypatch):
    run = made()
    with opened_run(tmp_path, run):
        run.save(tmp_path)
    (tmp_path / "run").rename(tmp_path / "moved")
    started = "2026-01-01T00:00:00+00:00"
    monkeypatch.setattr("lab.trace.manifest.now", lambda: started)
    with opened_run(tmp_path, other := made()):
        visit(other, IDS, batch(random.Random(1), [4, 9]))
    monkeypatch.undo()
    run.load(tmp_path)
    with pytest.raises(UserError, match=r"run: not the run of the checkpoint; name that run"):
        opened_run(tmp_path, run).__enter__()
    assert len(load_trace(tmp_path / "run").visits) == 2
    (tmp_path / "run").rename(tmp_path / "other")
    (tmp_path / "moved").rename(tmp_path / "run")
    with opened_run(tmp_path, run):
        assert len(run.folder.manifest.extra["resumed"]) == 1


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    run = made()
    with pytest.raises(UserError, match="guard: missing"):
        run.load(tmp_path)
    with opened_run(tmp_path, run):
        run.save(tmp_path)
    with pytest.raises(UserError, match=r"settings differ .* n_votes = 16 \(was 8\)"):
        made(n_votes=16).load(tmp_path)
    with pytest.raises(UserError, match="problems: not the checkpoint"):
        GuardedRun(config(), [4, 9, 5], [None] * 3).load(tmp_path)
    (tmp_path / FOLDER / "answers.json").write_bytes(b"{}")
    with pytest.raises(UserError, match=r"answers\.json is damaged"):
        run.load(tmp_path)
