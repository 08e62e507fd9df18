"""Speed of the simulator: `python benchmarks/bench_sim.py [--replicates R ...] [--repeats N]`.

The run is MATH-500: 500 problems, 30 epochs, V = 64, K = 32, 10 answers, batch 8, attractor policy.
A run is held against drawing its votes alone, in batches of the same shape, in the same process and
in turn with it. Times are CPU seconds of all threads, the best of a few repetitions, each held
against the best drawing; on a shared machine the clock would measure the neighbours. Targets, as
shares of commit 27bea8ec's time on the same machine: 64 replicates without a trace 0.73, with a
trace in memory 0.87.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np

from sim import SimConfig, simulate
from sim.engine.run import Simulation
from sim.world.sampling import VOTES, draw_votes


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
                key = (c.seed, 0, VOTES, epoch)
                draw_votes(*key, problems_RP, p_RPA, 1.0, c.n_votes, c.n_samples)

    return draw


def run_alone(config: SimConfig) -> object:
    return deque(Simulation(config).run(), maxlen=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicates", type=int, nargs="*", default=[1, 20, 64])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    first = cpu(lambda: simulate(SimConfig(n_problems=20, epochs=1)))
    print(f"first call, compiling or loading from the cache: {first:.1f} s")
    for replicates in options.replicates:
        config = SimConfig(replicates=replicates)
        draw, visits = draw_only(config), replicates * config.n_problems * (config.epochs + 1)
        for name, work in (("no trace kept", run_alone), ("trace in memory", simulate)):
            times = [(cpu(partial(work, config)), cpu(draw)) for _ in range(options.repeats)]
            seconds, drawing = map(min, zip(*times, strict=True))
            print(
                f"R = {replicates:<4}{name:<24}{seconds:7.3f} s{1e9 * seconds / visits:7.0f} "
                f"ns/visit{seconds / drawing:6.2f} times drawing",
                flush=True,
            )


if __name__ == "__main__":
    main()
