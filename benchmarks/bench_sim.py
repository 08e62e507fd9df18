"""Speed of the simulator: `python benchmarks/bench_sim.py [--study] [--memory]`.

The run is MATH-500: 500 problems, 30 epochs, V = 64, K = 32, 10 answers, batch 8, attractor policy.
A run is held against drawing its votes alone, in batches of the same shape, in the same process and
in turn with it. Times are the best of a few repetitions, each held against the best drawing:

* CPU: all threads of this process. The number to go by on a shared machine.
* main thread: its CPU time alone, without the thread that writes the trace. What the clock would
  show on a machine with two idle cores.
* clock: what it did show; on a shared machine this measures the neighbours.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from guard_core import GuardConfig
from sim import SimConfig, simulate
from sim.engine.simulation import Simulation
from sim.world.sampling import draw_votes

STUDY = [GuardConfig(tau_FR=value / 100) for value in range(10, 55, 5)]
STUDY += [GuardConfig(W=value) for value in (2, 3, 5, 8, 12, 20)]
STUDY += [GuardConfig(beta_max=value / 100) for value in (5, 10, 15, 20, 25, 30, 35, 40, 50)]
"""The paper's sensitivity study: 24 settings."""


def cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


class Spent(NamedTuple):
    """Seconds that something took."""

    cpu: float
    main: float
    """CPU time of this thread."""
    clock: float


def spent(work: Callable[[], object]) -> Spent:
    def now() -> tuple[float, float, float]:
        return time.process_time(), time.thread_time(), time.perf_counter()

    start = now()
    work()
    return Spent(*(after - before for before, after in zip(start, now(), strict=True)))


def draw_only(config: SimConfig) -> Callable[[], None]:
    """Draws as many votes as a run does, in batches of the same shape, and nothing else."""
    c = config
    p_RNA = Simulation(c).population.p0_RNA
    starts = range(0, c.n_problems, c.batch_size)
    batches = [np.ascontiguousarray(p_RNA[:, start : start + c.batch_size]) for start in starts]

    def draw() -> None:
        for epoch in range(c.epochs + 1):
            for p_RPA in batches:
                problems_RP = np.tile(np.arange(p_RPA.shape[1]), (c.replicates, 1))
                counts_RPA = np.empty(p_RPA.shape, np.int64)
                samples_RPA = np.empty_like(counts_RPA)
                seeds = (c.seed, 0, epoch)
                votes = (c.n_votes, counts_RPA, samples_RPA, c.n_samples)
                draw_votes(*seeds, problems_RP, p_RPA, 1.0, *votes)

    return draw


def to_disk(config: SimConfig) -> Spent:
    """A run whose trace is written as it goes; nothing of it is kept or read."""
    with tempfile.TemporaryDirectory() as folder:
        return spent(lambda: simulate(config, Path(folder) / "run"))


def read_back(config: SimConfig) -> Spent:
    """Reading such a trace."""
    with tempfile.TemporaryDirectory() as folder:
        trace = simulate(config, Path(folder) / "run")
        return spent(lambda: (trace.visits, trace.steps, trace.evals))


def bytes_per_visit(config: SimConfig) -> float:
    """Size of a run folder, all its tables and the manifest."""
    with tempfile.TemporaryDirectory() as folder:
        simulate(config, Path(folder) / "run")
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return size / (config.replicates * config.n_problems * (config.epochs + 1))


def ways(config: SimConfig) -> Iterator[tuple[str, Callable[[], Spent]]]:
    """The timed configurations, each in turn with the drawing of the same votes."""
    off = replace(config, guard=GuardConfig.off())
    yield "guard, no trace kept", lambda: spent(lambda: [None for _ in Simulation(config).run()])
    yield "guard, trace to disk", lambda: to_disk(config)
    yield "reading it from disk", lambda: read_back(config)
    yield "guard, trace in memory", lambda: spent(lambda: simulate(config))
    yield "TTRL, trace in memory", lambda: spent(lambda: simulate(off))


def best(times: Sequence[Spent]) -> Spent:
    return Spent(*map(min, zip(*times, strict=True)))


def ratios(replicates: int, repeats: int) -> None:
    config = SimConfig(replicates=replicates)
    draw = draw_only(config)
    visits = replicates * config.n_problems * (config.epochs + 1)
    for name, run in ways(config):
        runs, draws = zip(*((run(), spent(draw)) for _ in range(repeats)), strict=True)
        found, drawing = best(runs), best(draws)
        cpu, main, clock = (a / b for a, b in zip(found, drawing, strict=True))
        print(
            f"R = {replicates:<4}{name:<24}{found.cpu:7.3f} s CPU{1e9 * found.cpu / visits:7.0f} "
            f"ns/visit; times drawing ({drawing.cpu:.3f} s):{cpu:5.2f} CPU{main:6.2f} main thread"
            f"{clock:6.2f} clock",
            flush=True,
        )
    print(f"R = {replicates:<4}{bytes_per_visit(config):.2f} bytes on disk per visit")


def memory() -> None:
    """Peak memory of fresh processes; first, since each starts with its parent's peak."""
    code = "import sys, resource, tempfile; from sim import SimConfig, simulate\n"
    code += "r, folder = int(sys.argv[1]), sys.argv[2] or None\n"
    code += "r and simulate(SimConfig(replicates=r), folder)\n"
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    for replicates in (0, 16, 32, 64, 128):
        for way in ("memory", "folder") if replicates else ("imports",):
            with tempfile.TemporaryDirectory() as place:
                folder = f"{place}/run" if way == "folder" else ""
                command = [sys.executable, "-c", code, str(replicates), folder]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(f"R = {replicates:<4}peak memory {done.stdout.strip()} MiB ({way})", flush=True)


def study() -> None:
    """The whole sensitivity study, on two processes."""
    start = time.perf_counter()
    with ProcessPoolExecutor(2) as pool:
        seconds = list(pool.map(one_setting, STUDY))
    print(
        f"study: {len(STUDY)} settings x 20 seeds, {time.perf_counter() - start:.1f} s on two "
        f"processes, their start included; {sum(seconds):.1f} s of CPU time"
    )


def one_setting(guard: GuardConfig) -> float:
    return cpu(lambda: simulate(SimConfig(replicates=20, guard=guard)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicates", type=int, nargs="*", default=[1, 20, 64])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help="peak memory of fresh processes")
    parser.add_argument("--study", action="store_true", help="run the whole sensitivity study")
    options = parser.parse_args()
    if options.memory:
        memory()
    first = cpu(lambda: simulate(SimConfig(n_problems=20, epochs=1)))
    print(f"first call, compiling or loading from the cache: {first:.1f} s")
    for replicates in options.replicates:
        ratios(replicates, options.repeats)
    if options.study:
        study()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process {peak:.0f} MiB")


if __name__ == "__main__":
    main()
