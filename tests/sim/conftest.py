"""Rows of a sweep with scores of one's choice, and small runs of rules."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lab.arm_settings import with_arm
from lab.base.arms import arm as named
from lab.measures import MEASURES
from lab.trace.response import write_response
from sim import SimConfig
from sim.engine.run import Simulation

sys.path.insert(0, str(Path(__file__).parent))  # tests share what others have built


@pytest.fixture(scope="session")
def response_file(tmp_path_factory):
    """The path of a small response file."""
    from measured_response import small_response

    path = tmp_path_factory.mktemp("response") / "r.npz"
    write_response(path, small_response())
    return str(path)


START = 55.0
COMMON = np.random.default_rng(8).normal(size=12)
"""Effect of a replicate that all arms share: paired differences cancel it."""


def _rows(scores, **others):
    parts = []
    for (kappa, step, arm), mean in scores.items():
        noise = np.random.default_rng(len(parts)).normal(scale=0.1, size=12)
        part = pd.DataFrame(dict.fromkeys(MEASURES, 0.0), index=range(12))
        part["pass_final"] = mean + 5 * COMMON + noise
        part["pass_start"] = START + 5 * COMMON
        part["update_norm"] = step
        settings = {"kappa_att": kappa, "step": step, "arm": arm, "status": "done", **others}
        parts.append(part.assign(replicate=range(12), **settings))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="session")
def scored():
    """Rows from mean scores by (kappa_att, step, arm), 55 before training, 12 replicates."""
    return _rows


SMALL = {"n_problems": 12, "epochs": 5, "replicates": 2, "n_votes": 16, "n_samples": 8}
SMALL |= {"n_answers": 6, "unparseable": 0.1, "step": 0.3}


def _small(name, **settings):
    return with_arm(SimConfig(**SMALL | settings), named(name))


def _play(simulation):
    parts = list(simulation.run())
    c = simulation.config
    p_RNA = np.empty((c.replicates, c.n_problems, c.n_answers))
    problems_RN = np.tile(np.arange(c.n_problems), (c.replicates, 1))
    simulation.policy.probabilities(problems_RN, p_RNA)
    return parts, p_RNA


def _differences(first, second, tolerance=0.0):
    found = []
    for epoch, (one, other) in enumerate(zip(first, second, strict=True)):
        for table in ("visits", "steps", "evals", "votes"):
            a, b = getattr(one, table), getattr(other, table)
            for name in a or ():
                x, y = (np.asarray(t[name], np.float64) for t in (a, b))
                close = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
                if x.shape != y.shape or not np.allclose(x, y, **close):
                    found.append(f"{epoch}:{name}")
    return found


@pytest.fixture(scope="session")
def runs():
    """`small(arm, **settings)` settings, `play(config)` tables and probabilities at the end,
    `differences(tables, tables)` columns in which two runs differ."""
    return SimpleNamespace(
        small=_small,
        play=lambda config: _play(Simulation(config)),
        finish=_play,
        differences=_differences,
    )
