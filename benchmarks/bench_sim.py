"""How fast the simulator is: `python benchmarks/bench_sim.py [--study] [--memory]`.

The run is MATH-500: 500 problems, 30 epochs, V = 64, K = 32, 10 answers, batch 8, attractor policy.
Times are CPU seconds of this process, the best of a few repetitions, since wall time on a shared
machine measures the neighbours. A run is held against drawing its votes alone, in batches of the
same shape, in the same process and in turn with it.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from guard_core import GuardConfig
from sim import SimConfig, simulate
from sim.engine import Simulation
from sim.sampling import draw_votes

STUDY = [GuardConfig(tau_FR=value / 100) for value in range(10, 55, 5)]
STUDY += [GuardConfig(W=value) for value in (2, 3, 5, 8, 12, 20)]
STUDY += [GuardConfig(beta_max=value / 100) for value in (5, 10, 15, 20, 25, 30, 35, 40, 50)]
"""The paper's sensitivity study: 24 settings."""


def cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


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


def in_folder(config: SimConfig) -> float:
    """CPU time of a run whose trace is written as it goes and read back at the end."""
    with tempfile.TemporaryDirectory() as folder:
        return cpu(lambda: simulate(config, Path(folder) / "run"))


def ways(config: SimConfig) -> Iterator[tuple[str, Callable[[], float]]]:
    """What is timed, each next to the drawing of the same votes."""
    off = replace(config, guard=GuardConfig.off())
    slow = replace(config, engine="reference")
    yield "guard", lambda: cpu(lambda: simulate(config))
    yield "guard, no trace kept", lambda: cpu(lambda: [None for _ in Simulation(config).run()])
    yield "guard, into a folder", lambda: in_folder(config)
    yield "TTRL", lambda: cpu(lambda: simulate(off))
    yield "guard, engine=reference", lambda: cpu(lambda: simulate(slow))


def ratios(replicates: int, repeats: int) -> None:
    config = SimConfig(replicates=replicates)
    draw = draw_only(config)
    visits = replicates * config.n_problems * (config.epochs + 1)
    for name, run in ways(config):
        runs, draws = zip(*((run(), cpu(draw)) for _ in range(repeats)), strict=True)
        print(
            f"R = {replicates:<4}{name:<25}{min(runs):7.2f} s{1e9 * min(runs) / visits:8.0f} "
            f"ns/visit{min(draws):8.3f} s drawing{min(runs) / min(draws):7.1f} x drawing"
        )


def memory() -> None:
    """Peak memory of fresh processes, so that no run hides behind a larger one before it."""
    code = "import sys, resource; from sim import SimConfig, simulate\n"
    code += "r = int(sys.argv[1]); r and simulate(SimConfig(replicates=r))\n"
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    for replicates in (0, 16, 32, 64, 128):
        command = [sys.executable, "-c", code, str(replicates)]
        peak = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        print(f"R = {replicates:<4}peak memory {peak} MiB" + " (imports)" * (replicates == 0))


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
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="peak memory of fresh processes")
    parser.add_argument("--study", action="store_true", help="run the whole sensitivity study")
    options = parser.parse_args()
    first = cpu(lambda: simulate(SimConfig(n_problems=20, epochs=1)))
    print(f"first call, compiling or loading from the cache: {first:.1f} s")
    for replicates in options.replicates:
        ratios(replicates, options.repeats)
    if options.memory:
        memory()
    if options.study:
        study()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process {peak:.0f} MiB")


if __name__ == "__main__":
    main()
