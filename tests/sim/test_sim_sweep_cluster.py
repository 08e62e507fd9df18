"""A sweep on clusters gives the same result, with a worker lost midway."""

import importlib.util
import os
from dataclasses import replace

import psutil
import pytest
from pandas.testing import assert_frame_equal

from lab.errors import UserError
from sim import SimConfig
from sim.studies.sweep import Sweep, run_sweep
from sim.studies.sweep import pool as pool_module
from sim.studies.sweep.pool import Pool

SWEEP = Sweep(
    base=SimConfig(n_problems=40, epochs=9, replicates=3, seed=4),
    arms=("ttrl", "guard", "matched"),
    groups=({"step": (0.05, 0.1, 0.2, 0.3)},),
)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return run_sweep(SWEEP, tmp_path_factory.mktemp("here") / "s")


def missing(package):
    """Continuous integration must not skip by itself: there the import fails."""
    return importlib.util.find_spec(package) is None and not os.environ.get("CI")


class Killer:
    """Kills one worker process once, after the first outcome."""

    def __init__(self, find):
        self.find = find
        self.killed = []

    def __call__(self, outcome):
        if not self.killed:
            process = self.find()
            process.kill()
            self.killed.append(process.pid)


def loky_worker():
    children = psutil.Process().children(recursive=True)
    return next(p for p in children if "popen_loky" in " ".join(p.cmdline()))


def test_a_lost_process_loses_no_cell(expected, tmp_path):
    killer = Killer(loky_worker)
    rows = run_sweep(SWEEP, tmp_path / "s", Pool(workers=2), on_outcome=killer)
    assert len(killer.killed) == 1
    assert_frame_equal(rows, expected, check_exact=True)


@pytest.mark.skipif(missing("distributed"), reason="needs the extra dask")
def test_dask_loses_one_of_two_workers_and_returns_every_cell(expected, tmp_path):
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        killer = Killer(lambda: psutil.Process(cluster.workers[0].pid))
        pool = Pool(backend="dask", address=cluster.scheduler_address)
        rows = run_sweep(SWEEP, tmp_path / "s", pool, on_outcome=killer)
        assert len(killer.killed) == 1
    assert_frame_equal(rows, expected, check_exact=True)


@pytest.mark.skipif(missing("distributed"), reason="needs the extra dask")
def test_a_dask_address_where_nothing_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(pool_module, "PATIENCE", 1)
    with pytest.raises(UserError, match="no Dask scheduler answers"):
        run_sweep(SWEEP, tmp_path / "s", Pool(backend="dask", address="tcp://127.0.0.1:9"))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")
def test_ray_returns_the_same_cells(tmp_path):
    sweep = replace(SWEEP, arms=("ttrl",))
    rows = run_sweep(sweep, tmp_path / "s", Pool(backend="ray", workers=2))
    assert_frame_equal(rows, run_sweep(sweep, tmp_path / "here"), check_exact=True)


def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch):
    def absent(name):
        raise ImportError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(pool_module.importlib, "import_module", absent)
    with pytest.raises(UserError, match=r"backend dask: distributed is not installed; .*\[dask\]"):
        run_sweep(SWEEP, tmp_path / "s", Pool(backend="dask", workers=2))


def test_workers_that_die_again_and_again_end_the_sweep(tmp_path, monkeypatch):
    def broken(work, tasks, pool):
        raise pool_module.BrokenProcessPool("a worker was killed")
        yield

    monkeypatch.setattr(pool_module, "_unordered", broken)
    with pytest.raises(UserError, match="lost 3 times in a row"):
        run_sweep(SWEEP, tmp_path / "s", Pool(workers=2))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"workers": 0}, "workers = 0"), ({"address": "tcp://x:1"}, "needs --backend dask or ray")],
)
def test_wrong_pools_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        Pool(**options)
