"""The run folder, and the guard's part of verl's checkpoints."""

import random
from dataclasses import replace

import pytest
from test_votes import batch, config, read

from lab.base.errors import UserError
from lab.trace.trace import load as load_trace
from real.other_trainers import FOLDER, Problems, load, opened
from real.settings.presets import manifest_of


def opened_run(tmp_path, problems, saved=None, **facts):
    manifest = replace(manifest_of(config(), 3, "tiny", "verl"), **facts)
    return opened(tmp_path / "run", manifest, problems, saved)


def visit(problems, run, step):
    texts, numbers = batch(random.Random(step), [4, 9])
    place = {"step": step, "epoch": step}
    run.visit(read(problems, texts, numbers), dict.fromkeys(texts, 2), place)


def test_a_checkpoint_touches_no_other_runs_folder(tmp_path):
    problems = Problems(config(), [4, 9, 2], [None] * 3)
    with opened_run(tmp_path, problems) as run:
        run.save(tmp_path, 0)
    (tmp_path / "run").rename(tmp_path / "moved")
    with opened_run(tmp_path, problems, started="2026-01-01T00:00:00+00:00") as other:
        visit(problems, other, 1)
    saved = load(tmp_path, problems)
    with pytest.raises(UserError, match=r"run: not the run of the checkpoint; name that run"):
        opened_run(tmp_path, problems, saved).__enter__()
    assert len(load_trace(tmp_path / "run").visits) == 2
    (tmp_path / "run").rename(tmp_path / "other")
    (tmp_path / "moved").rename(tmp_path / "run")
    with opened_run(tmp_path, problems, saved) as run:
        assert len(run.folder.manifest.extra["resumed"]) == 1


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    problems = Problems(config(), [4, 9, 2], [None] * 3)
    with opened_run(tmp_path, problems) as run:
        run.save(tmp_path, 0)
    with pytest.raises(UserError, match=r"settings differ .* n_votes = 16 \(was 8\)"):
        load(tmp_path, Problems(config(n_votes=16), [4, 9, 2], [None] * 3))
    with pytest.raises(UserError, match="problems: others than the checkpoint"):
        load(tmp_path, Problems(config(), [4, 9, 5], [None] * 3))
    (tmp_path / FOLDER / "visits.json").write_bytes(b"{}")
    with pytest.raises(UserError, match=r"visits\.json is damaged"):
        load(tmp_path, problems)
