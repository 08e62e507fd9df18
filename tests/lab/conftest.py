"""Builders of small traces, shared by the tests of lab."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from guard_core import Route
from lab.trace.manifest import Manifest
from lab.trace.schema import TABLES, VISITS
from lab.trace.trace import MemoryRun, RunFolder, Trace


def _manifest(arm="ttrl", **changes):
    values = {"n_problems": 2, "n_votes": 64, "config": {"step": 0.1}, "seeds": [0], "task": "test"}
    world = changes.pop("world", "sim")
    return Manifest.new(world, arm, changes.pop("title", arm), **(values | changes))


def _visits(accuracy, *, replicates=None, **columns):
    """Visit columns from label accuracies (R, N, 1 + visits); the first is before training."""
    accuracy_RNE = np.asarray(accuracy, float)
    n_replicates, n_problems, n_visits = accuracy_RNE.shape
    replicates = range(n_replicates) if replicates is None else replicates
    replicate, problem, visit = np.meshgrid(
        list(replicates), np.arange(n_problems), np.arange(n_visits), indexing="ij"
    )
    size = accuracy_RNE.size
    table: dict[str, Any] = {c.name: np.zeros(size, c.dtype) for c in VISITS}
    table |= {
        "replicate": replicate.ravel(),
        "problem": problem.ravel(),
        **dict.fromkeys(("step", "epoch", "visit"), visit.ravel()),
        "n_votes": np.full(size, 64),
        "weight": np.ones(size),
        "label_accuracy": accuracy_RNE.ravel(),
        "label_correct": accuracy_RNE.ravel() > 0.5,
        "correct_competitive": accuracy_RNE.ravel() >= 0.25,
    }
    return table | {name: np.ravel(values) for name, values in columns.items()}


def _steps(replicates, n_steps, norm=1.0):
    """Step columns; `norm` is one number or one per replicate."""
    norms = np.broadcast_to(np.asarray(norm, float), (len(replicates),))
    return {
        "replicate": np.repeat(list(replicates), n_steps),
        **dict.fromkeys(("step", "epoch"), np.tile(np.arange(1, n_steps + 1), len(replicates))),
        "lr": 0.1,
        "update_norm": np.repeat(norms, n_steps),
        "n_problems": 2,
        "n_skipped": 0,
    }


def _evals(pass_at_1, replicates=None):
    """Evaluation columns from (R, 1 + epochs) scores; the first is before training."""
    pass_RE = np.asarray(pass_at_1, float)
    replicates = range(len(pass_RE)) if replicates is None else replicates
    replicate, epoch = np.meshgrid(list(replicates), np.arange(pass_RE.shape[1]), indexing="ij")
    return {
        "replicate": replicate.ravel(),
        **dict.fromkeys(("step", "epoch"), epoch.ravel()),
        "pass_at_1": pass_RE.ravel(),
        "maj_accuracy": np.where(epoch.ravel() == 0, 0.5, np.nan),
    }


def _in_memory(manifest, **tables):
    """A trace without a folder, from the columns of its tables."""
    memory = MemoryRun(manifest)
    for table in TABLES:
        if table in tables:
            memory.write(table, tables[table])
    return Trace.of(memory)


LIFE = {4: [40, 30, 10], 9: [20, 30, 50], 2: [3, 3, 3]}
"""Votes of each answer at visits 0 to 2; the last of 64 responses cannot be read."""


def _lived(*, votes=True, **columns):
    """A run whose problem 1 goes from answer 4, the true one, to answer 9, see `LIFE`."""
    counts, label = np.array(list(LIFE.values())), np.array([4, 9, 9])
    own = {
        "label": label,
        "label_correct": label == 4,
        "match_rate": counts.max(axis=0) / 64,
        "n_unparseable": np.ones(3, int),
        "flipped": np.array([False, True, False]),
        "flip_rate": np.array([0, 0.2, 0.4]),
        "weight": np.array([1, 0.9, 0.7]),
        "route": np.array([Route.STABLE, Route.STABLE, Route.AT_RISK]),
    }
    both = {name: np.concatenate([np.zeros_like(values), values]) for name, values in own.items()}
    tables = {
        "visits": _visits([[[0.5] * 3, counts[0] / 64]], **(both | columns)),
        "steps": _steps([0], 2),
        "evals": _evals([[0.5] * 3]),
    }
    if votes:
        times = dict.fromkeys(("step", "epoch", "visit"), np.tile(range(3), len(LIFE)))
        ids = {"replicate": 0, "problem": 1, "answer": np.repeat(list(LIFE), 3)}
        tables["votes"] = {**times, **ids, "count": counts.ravel()}
    return _in_memory(_manifest(), **tables)


def _timed(seconds, update, replicates=2):
    """Three timed steps of each replicate; the first is ten times slower."""
    slow = np.tile([10.0, 1.0, 1.0], replicates)
    factor = slow * np.repeat(1.0 + np.arange(replicates), 3)
    parts = {"rollout": 2.0, "guard": 0.5, "update": update, "step": seconds}
    times = {f"seconds_{name}": own * factor for name, own in parts.items()}
    return pd.DataFrame(_steps(range(replicates), 3) | times)


def _trace(arm, accuracy, pass_at_1, norm=1.0, **changes):
    """A trace in memory from label accuracies (R, N, 1 + E) and scores (R, 1 + E)."""
    accuracy_RNE = np.asarray(accuracy, float)
    manifest = _manifest(arm, n_problems=accuracy_RNE.shape[1], **changes)
    replicates = range(len(accuracy_RNE))
    steps = _steps(replicates, accuracy_RNE.shape[2] - 1, norm)
    visits, evals = _visits(accuracy_RNE), _evals(pass_at_1)
    return _in_memory(manifest, visits=visits, steps=steps, evals=evals)


def _write_tables(run, trace):
    for table in list(TABLES)[:3]:
        columns = getattr(trace, table).items()
        run.write(table, {name: own.to_numpy() for name, own in columns})


def _save(trace, folder):
    with RunFolder.create(folder, trace.run) as run:
        _write_tables(run, trace)
    return folder


make_manifest = pytest.fixture(lambda: _manifest, scope="session")
make_visits = pytest.fixture(lambda: _visits, scope="session")
make_evals = pytest.fixture(lambda: _evals, scope="session")
lived = pytest.fixture(lambda: _lived, scope="session")
timed = pytest.fixture(lambda: _timed, scope="session")
make_trace = pytest.fixture(lambda: _trace, scope="session")
write_tables = pytest.fixture(lambda: _write_tables, scope="session")
save = pytest.fixture(lambda: _save, scope="session")
