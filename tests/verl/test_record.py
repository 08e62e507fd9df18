"""The run folder, and the guard's part of verl's checkpoints."""

import random

import numpy as np
import pytest
from test_votes import batch, config

from lab.errors import UserError
from lab.trace.trace import load as load_trace
from real.verl.plugin.record import PLACE, load, new_manifest, opened, save
from real.verl.plugin.votes import Problems


def manifest():
    return new_manifest(config(), 3, "tiny", "verl")


def visit(problems, run, step):
    texts, numbers = batch(random.Random(step), [4, 9])
    decided, _ = problems.visit(problems.read(texts, numbers))
    run.write_visits({**decided.rows, "step": step, "epoch": step})


def test_a_resumed_run_goes_on_where_the_checkpoint_was(tmp_path):
    first = Problems(config(), [4, 9, 2], ["1", None, "0"])
    with opened(tmp_path / "run", manifest(), None) as run:
        for step in (1, 2, 3):
            visit(first, run, step)
            if step == 2:
                run.note(marked=True)
                save(tmp_path / "global_step_2", first, run)
    second = Problems(config(), [4, 9, 2], ["1", None, "0"])
    saved = load(tmp_path / "global_step_2", second)
    assert second.visits_N.tolist() == [2, 2, 0]
    with opened(tmp_path / "run", manifest(), saved) as run:
        visit(second, run, 3)
    for name, array in first.supervisor.arrays().items():
        np.testing.assert_array_equal(second.supervisor.arrays()[name], array)
    trace = load_trace(tmp_path / "run")
    assert trace.visits["step"].tolist() == [1, 1, 2, 2, 3, 3]
    assert trace.visits["visit"].tolist() == [1, 1, 2, 2, 3, 3]
    assert trace.run.extra["marked"] and len(trace.run.extra["resumed"]) == 1


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    problems = Problems(config(), [4, 9, 2], [None] * 3)
    with opened(tmp_path / "run", manifest(), None) as run:
        save(tmp_path, problems, run)
    assert (tmp_path / "guard" / PLACE).is_file()
    with pytest.raises(UserError, match=r"settings differ .* n_votes = 16 \(was 8\)"):
        load(tmp_path, Problems(config(n_votes=16), [4, 9, 2], [None] * 3))
    with pytest.raises(UserError, match=r"data\.train_files: other problems"):
        load(tmp_path, Problems(config(), [4, 9, 5], [None] * 3))
