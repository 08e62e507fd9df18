"""How fast the simulator is: `python benchmarks/bench_sim.py [--replicates 64]`.

Times are CPU seconds of this process, the best of a few repetitions, since wall time on a shared
machine measures the neighbours. The ratio holds a whole run against drawing its votes alone.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable

import numpy as np

from guard_core import GuardConfig
from sim import SimConfig, simulate
from sim.engine import Simulation
from sim.sampling import draw_votes


def best(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def draw_only(config: SimConfig) -> None:
    """Draw as many votes as a run does, in batches of the same shape, and nothing else."""
    c = config
    p_RNA = Simulation(c).population.p0_RNA
    for epoch in range(c.epochs + 1):
        for start in range(0, c.n_problems, c.batch_size):
            p_RPA = np.ascontiguousarray(p_RNA[:, start : start + c.batch_size])
            problems_RP = np.tile(np.arange(p_RPA.shape[1]), (c.replicates, 1))
            counts_RPA = np.empty(p_RPA.shape, np.int64)
            samples_RPA = np.empty_like(counts_RPA)
            draw_votes(
                c.seed,
                0,
                epoch,
                problems_RP,
                p_RPA,
                1.0,
                c.n_votes,
                counts_RPA,
                samples_RPA,
                c.n_samples,
            )


def report(name: str, config: SimConfig, repeats: int) -> None:
    rows = config.replicates * config.n_problems * (config.epochs + 1)
    run = best(lambda: simulate(config), repeats)
    draw = best(lambda: draw_only(config), repeats)
    print(
        f"{name:<28}{run:8.2f} s{1e9 * run / rows:9.0f} ns/visit"
        f"{draw:8.2f} s drawing{run / draw:7.1f} x drawing"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicates", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    start = time.process_time()
    simulate(SimConfig(n_problems=20, epochs=1))
    simulate(SimConfig(n_problems=20, epochs=1, policy="independent"))
    print(f"first call, compiling or loading from the cache: {time.process_time() - start:.1f} s")
    off = GuardConfig.off()
    for replicates in (1, 20, options.replicates):
        report(f"guard, R = {replicates}", SimConfig(replicates=replicates), options.repeats)
        report(
            f"TTRL, R = {replicates}", SimConfig(replicates=replicates, guard=off), options.repeats
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:.0f} MiB")


if __name__ == "__main__":
    main()
