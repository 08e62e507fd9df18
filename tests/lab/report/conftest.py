"""Small run folders of both worlds, as the demo leaves them behind."""

from types import SimpleNamespace

import numpy as np
import pytest

from guard_core import GuardConfig
from lab.base.arms import DEMO_ARMS, arm
from lab.base.settings import to_values
from lab.report.digest import read

PROBLEMS, EPOCHS = 12, 9
_END = {"ttrl": 0.2, "guard": 0.3, "matched": 0.22, "frozen": 0.7, "memory": 0.6}
"""Label accuracy that an arm drifts to."""


def guarded(trace, rng):
    """Let the guard act on random visits."""
    visits, n = trace.visits, len(trace.visits)
    training = visits["visit"] > 0
    visits["route"] = np.where(training, rng.integers(0, 4, n), 0).astype(np.int8)
    visits["skipped"] = visits["route"] == 3
    visits["weight"] = np.where(training & (rng.random(n) < 0.5), 0.85, 1.0)
    visits["beta"] = np.where(training, rng.choice([0.0, 0.12], n), 0.0)
    visits["n_minority"] = np.where(training, rng.integers(0, 3, n), 0).astype(np.int16)


@pytest.fixture(scope="session")
def add_run(make_trace, save):
    """Write one run of an arm: `add_run(folder, "ttrl", seed=0, n_replicates=1, **changes)`."""

    def add(folder, name, seed=0, n_replicates=1, **changes):
        rng = np.random.default_rng([seed, len(name), *name.encode()])
        path = np.linspace(0.6, _END.get(name, 0.4), EPOCHS + 1)
        accuracy = np.clip(path + rng.normal(0, 0.15, (n_replicates, PROBLEMS, 1)), 0, 1)
        known = name in DEMO_ARMS
        guard = arm(name).guard if known else GuardConfig.off()
        values = {
            "seeds": [seed] * n_replicates,
            "config": {"guard": to_values(guard), "step_factor": 1.0, "seed": seed},
            "title": arm(name).title if known else name,
        } | changes
        trace = make_trace(name, accuracy, accuracy.mean(axis=1), **values)
        trace.visits["flipped"] = (rng.random(len(trace.visits)) < 0.2) & (trace.visits.visit > 0)
        if name == "guard":
            guarded(trace, rng)
        return save(trace, folder)

    return add


@pytest.fixture(scope="session")
def runs(tmp_path_factory, add_run):
    """Folders of five arms with four replicates of the simulator, and with three real seeds."""
    top = tmp_path_factory.mktemp("demo")
    for name in DEMO_ARMS:
        add_run(top / "sim" / name, name, n_replicates=4, task="llama-math500")
        for seed in range(3):
            add_run(top / "real" / name / f"seed-{seed}", name, seed, world="real", task="tiny")
    return SimpleNamespace(sim=top / "sim", real=top / "real")


@pytest.fixture(scope="session")
def worlds(runs):
    """What a report reads from `runs`: the simulated comparison and the real one."""
    return read([runs.sim, runs.real])[0]


@pytest.fixture
def visit(browser):
    """Open a page; at the end nothing went wrong and nothing was asked from outside."""
    opened, requests, troubles = [], [], []

    def go(path, width=1280):
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: (troubles.append(dialog.message), dialog.dismiss()))
        page.goto(path.as_uri())
        opened.append(page)
        return page

    yield go
    for page in opened:
        assert "owned" not in page.title()
        page.close()
    assert troubles == []
    assert requests[0].startswith("file:")
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
