"""CPU time of `Guard.step`: python benchmarks/bench_guard.py."""

from __future__ import annotations

import time
import timeit
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


def measure(config: GuardConfig, n_problems: int, calls: int) -> tuple[float, float]:
    """Seconds of one step, and of one batch with `take` and `put`; the fastest of three."""
    rng = np.random.default_rng(0)
    guard = Guard(config)
    visits = [visit(rng, n_problems) for _ in range(3)]
    rows = guard.init(n_problems, n_answers=N_ANSWERS)
    for place in range(guard.config.rates.W + 2):  # a full window of history: no branch is idle
        rows, _ = guard.step(rows, *visits[place % len(visits)])
    problems = rng.permutation(n_problems)

    def step() -> None:
        guard.step(rows, *visits[0])

    def batch() -> None:
        rows.put(problems, guard.step(rows.take(problems), *visits[0])[0])

    one, whole = (timeit.repeat(work, "", time.process_time, 3, calls) for work in (step, batch))
    return min(one) / calls, min(whole) / calls


def main() -> None:
    """Print one line per configuration."""
    best = {name: np.full((len(SIZES), 2), np.inf) for name in CONFIGS}
    # In plain Python first: once a large call was compiled, all calls are. Rounds over all
    # configurations, so that a busy minute does not fall on one of them.
    for part in (slice(0, 2), slice(2, 4)):
        for _, (name, config) in product(range(ROUNDS), CONFIGS.items()):
            times = [measure(config, *size) for size in SIZES[part]]
            best[name][part] = np.minimum(best[name][part], times)
    print(f"guard.step, {N_ANSWERS} answers, fastest of {3 * ROUNDS}; {TARGETS}")
    many = (f"{SIZES[1][0]} rows, us a row", "100,000 rows, us a row")
    heads = ("8 rows, us a call", *many, "8 rows, compiled")
    print(f"{'':16}" + "".join(f"{head:>28}" for head in heads))
    print(f"{'config':16}" + f"{'step':>14}{'take+step+put':>14}" * len(SIZES))
    rows = np.array([[1], [SIZES[1][0]], [SIZES[2][0]], [1]])
    for name, times in best.items():
        print(f"{name:16}" + "".join(f"{1e6 * time:14.3f}" for time in (times / rows).flat))


if __name__ == "__main__":
    main()
