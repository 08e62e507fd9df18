"""Workers for the jobs of a sweep: processes of this machine, or a Dask or Ray cluster.

All of them are used through joblib. A lost worker does not lose its jobs: Dask gives them to
another worker by itself, loky and Ray break the whole pool, and a new one takes the jobs that are
left.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing.resource_tracker
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import joblib
from joblib.externals.loky.backend import resource_tracker as loky_tracker
from joblib.externals.loky.process_executor import BrokenProcessPool

from lab.errors import UserError
from lab.signals import stops_held

Backend = Literal["local", "dask", "ray"]
MOST_LOSSES = 3
"""Times in a row that a pool may break before any job of it ends."""
PATIENCE = 20
"""Seconds to wait for a cluster."""
_WATCH_SECONDS = 1.0
_WAVE = 2
"""Jobs per worker that are handed out at once where results come back together only."""


class Keyed(Protocol):
    """The outcome of a job."""

    @property
    def key(self) -> str:
        """Key of the job."""
        ...


T = TypeVar("T")
Result = TypeVar("Result", bound=Keyed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Workers that jobs are sent to."""

    backend: Backend = "local"
    workers: int = 1
    """Processes on this machine; a cluster that is given by its address has its own number."""
    address: str | None = None
    """Of a running cluster; without one, `dask` and `ray` start one on this machine."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.workers < 1:
            raise UserError(f"workers = {self.workers}: must be at least 1")
        if self.address is not None and self.backend == "local":
            raise UserError("address: needs --backend dask or ray")

    def map(self, work: Callable[[T], Result], tasks: Mapping[str, T]) -> Generator[Result]:
        """Yield the outcomes of `work` in the order in which the jobs end.

        Args:
            work: a function of a module, which workers can import.
            tasks: by the key that the outcome has.

        Raises:
            UserError: the library is missing, no cluster answers, or workers are lost again and
                again.
        """
        left = dict(tasks)
        losses = 0
        with _context(self) as lost:
            while left:
                try:
                    for outcome in _unordered(work, list(left.values()), self):
                        losses = 0
                        del left[outcome.key]
                        yield outcome
                except lost as error:
                    losses += 1
                    if losses == MOST_LOSSES:
                        raise UserError(
                            f"sweep: workers were lost {losses} times in a row "
                            f"({type(error).__name__}), perhaps for lack of memory; take fewer "
                            "--workers or --replicates and repeat the command to continue"
                        ) from error


def _unordered(work: Callable[[T], Result], tasks: list[T], pool: Pool) -> Iterator[Result]:
    if pool.backend == "local" and pool.workers == 1:
        yield from map(work, tasks)
        return
    delayed = joblib.delayed(work)
    if pool.backend != "ray":
        # Their first start unblocks signals, so they start before those are held back.
        for tracker in (multiprocessing.resource_tracker, loky_tracker):
            tracker.ensure_running()
        with stops_held():
            outcomes = _parallel(return_as="generator_unordered")(delayed(task) for task in tasks)
        yield from outcomes
        return
    # joblib knows Ray as a pool of processes, which returns lists only.
    wave = _WAVE * joblib.effective_n_jobs(-1)
    for start in range(0, len(tasks), wave):
        part = tasks[start : start + wave]
        yield from _parallel()(delayed(task) for task in part)


def _parallel(**options: Any) -> Any:
    """joblib.Parallel with one job at a time, so that each is kept as soon as it ends."""
    return joblib.Parallel(**{"batch_size": 1, **options})


@contextmanager
def _context(pool: Pool) -> Iterator[tuple[type[BaseException], ...]]:
    """Set the backend of joblib; yield the exceptions that mean a lost worker."""
    with ExitStack() as stack:
        if pool.backend == "dask":
            yield _dask(pool, stack)
        elif pool.backend == "ray":
            yield _ray(pool, stack)
        else:
            # One thread each: the workers themselves use the cores.
            config = joblib.parallel_config(
                "loky",
                n_jobs=pool.workers,
                inner_max_num_threads=1,
                initializer=_end_with,
                initargs=(os.getpid(),),
            )
            stack.enter_context(config)
            yield (BrokenProcessPool,)


def _end_with(parent: int) -> None:
    """End this worker soon after its parent was killed, which would leave it waiting for jobs."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _dask(pool: Pool, stack: ExitStack) -> tuple[type[BaseException], ...]:
    distributed = _library("distributed", "dask")
    if pool.address is None:
        cluster = distributed.LocalCluster(
            n_workers=pool.workers, threads_per_worker=1, dashboard_address=None
        )
        stack.enter_context(cluster)
        client = distributed.Client(cluster, set_as_default=False)
    else:
        try:
            client = distributed.Client(pool.address, set_as_default=False, timeout=PATIENCE)
        except (OSError, ValueError) as error:
            raise UserError(f"address {pool.address}: no Dask scheduler answers") from error
    stack.enter_context(client)
    stack.enter_context(joblib.parallel_config("dask", client=client))
    return (distributed.KilledWorker,)


def _ray(pool: Pool, stack: ExitStack) -> tuple[type[BaseException], ...]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = _library("ray", "ray")
    quiet: dict[str, Any] = {"include_dashboard": False, "logging_level": logging.ERROR}
    if pool.address is None:
        ray.init(num_cpus=pool.workers, **quiet)
    else:
        try:
            ray.init(address=pool.address, logging_level=logging.ERROR)
        except (ConnectionError, ValueError) as error:
            raise UserError(f"address {pool.address}: no Ray cluster answers") from error
    stack.callback(ray.shutdown)
    importlib.import_module("ray.util.joblib").register_ray()
    stack.enter_context(joblib.parallel_config("ray", n_jobs=-1))
    return (importlib.import_module("ray.exceptions").RayError,)


def _library(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"backend {extra}: {error.name} is not installed; pip install 'ttrl-guard-lab[{extra}]'"
        ) from error
