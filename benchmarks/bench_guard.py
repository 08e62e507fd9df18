"""CPU time of `Guard.step`: python benchmarks/bench_guard.py."""

from __future__ import annotations

import time
import timeit
from functools import partial
from itertools import product

import numpy as np

from guard_core import Draws, Guard, GuardConfig, Votes
from guard_core.machine_code import COMPILED_FROM

N_ANSWERS, N_VOTES, N_SAMPLES, ROUNDS = 10, 64, 32, 5
SIZES = ((8, 200), (COMPILED_FROM - 1, 1), (100_000, 1), (8, 200))
"""Rows of a call and calls of a measurement; from the third size on they are compiled."""
TARGETS = "targets of step, compiled: 0.150 us a row of 100,000, 100 us a call of 8 rows"
CONFIGS = {
    "paper": GuardConfig.paper(),
    "release": GuardConfig.release(),
    "paper, memory": GuardConfig().set(label_from="memory", discount=0.9),
    "off": GuardConfig.off(),
}


def visit(rng: np.random.Generator, n_problems: int) -> tuple[Votes, Draws]:
    """Votes of problems with a favourite answer each, and their draws."""
    shares = rng.dirichlet(np.full(N_ANSWERS, 0.5), size=n_problems)
    samples = rng.multinomial(N_SAMPLES, shares)
    counts = samples + rng.multinomial(N_VOTES - N_SAMPLES, shares)
    votes = Votes(counts.astype(np.int32), samples.astype(np.int32), N_VOTES, N_SAMPLES)
    return votes, Draws(*rng.random((3, n_problems)))


def measure(config: GuardConfig, n_problems: int, calls: int) -> float:
    """Seconds of one step, the fastest of three measurements."""
    rng = np.random.default_rng(0)
    guard = Guard(config)
    visits = [visit(rng, n_problems) for _ in range(3)]
    rows = guard.init(n_problems, n_answers=N_ANSWERS)
    for place in range(guard.config.rates.W + 2):  # a full window of history: no branch is idle
        rows, _ = guard.step(rows, *visits[place % len(visits)])
    step = partial(guard.step, rows, *visits[0])
    return min(timeit.repeat(step, "", time.process_time, 3, calls)) / calls


def main() -> None:
    """Print one line per configuration."""
    best = {name: np.full(len(SIZES), np.inf) for name in CONFIGS}
    # In plain Python first: once a large call was compiled, all calls are. Rounds over all
    # configurations, so that a busy minute does not fall on one of them.
    for part in (slice(0, 2), slice(2, 4)):
        for _, (name, config) in product(range(ROUNDS), CONFIGS.items()):
            times = [measure(config, *size) for size in SIZES[part]]
            best[name][part] = np.minimum(best[name][part], times)
    print(f"guard.step, {N_ANSWERS} answers, fastest of {3 * ROUNDS}; {TARGETS}")
    heads = [f"{rows:,} rows, us a {'call' if rows == 8 else 'row'}" for rows, _ in SIZES]
    heads[-1] = "8 rows, compiled"
    print(f"{'config':16}" + "".join(f"{head:>24}" for head in heads))
    rows = [1 if rows == 8 else rows for rows, _ in SIZES]
    for name, times in best.items():
        print(f"{name:16}" + "".join(f"{1e6 * time:24.3f}" for time in times / rows))


if __name__ == "__main__":
    main()
