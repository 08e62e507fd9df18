"""A small response file, and small runs of rules."""

from types import SimpleNamespace

import numpy as np
import pytest

from lab.arm_settings import with_arm
from lab.base.arms import arm as named
from lab.trace.response import write_response
from sim import SimConfig
from sim.engine.run import Simulation


@pytest.fixture(scope="session")
def response_file(tmp_path_factory):
    """The path of a small response file."""
    from measured_response import small_response

    path = tmp_path_factory.mktemp("response") / "r.npz"
    write_response(path, small_response())
    return str(path)


SMALL = {"n_problems": 12, "epochs": 5, "replicates": 2, "n_votes": 16, "n_samples": 8}
SMALL |= {"n_answers": 6, "unparseable": 0.1, "step": 0.3}


def _small(name, **settings):
    return with_arm(SimConfig(**SMALL | settings), named(name))


def _finish(simulation):
    return list(simulation.run()), simulation.probabilities()


def _differences(first, second):
    found = []
    for epoch, (one, other) in enumerate(zip(first, second, strict=True)):
        for table in ("visits", "steps", "evals", "votes"):
            a, b = getattr(one, table), getattr(other, table)
            for name in a or ():
                x, y = (np.asarray(t[name], np.float64) for t in (a, b))
                if not np.array_equal(x, y, equal_nan=True):
                    found.append(f"{epoch}:{name}")
    return found


@pytest.fixture(scope="session")
def runs():
    """`small(arm, **settings)` settings, `play(config)` tables and probabilities at the end,
    `differences(tables, tables)` columns in which two runs differ."""
    return SimpleNamespace(
        small=_small,
        play=lambda config: _finish(Simulation(config)),
        finish=_finish,
        differences=_differences,
    )
