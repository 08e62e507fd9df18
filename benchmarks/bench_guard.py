"""Time of `Guard.step` on one core: python benchmarks/bench_guard.py."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Callable

import numpy as np

from guard_core import Draws, Guard, GuardConfig, GuardState, Votes

N_ANSWERS, N_VOTES, N_SAMPLES = 10, 64, 32
ROUNDS = 5
WIDTHS = (12, 14, 12, 14)


def visit(rng: np.random.Generator, n_problems: int) -> tuple[Votes, Draws]:
    """Votes of problems with a favourite answer each, and their draws."""
    shares = rng.dirichlet(np.full(N_ANSWERS, 0.5), size=n_problems)
    samples = rng.multinomial(N_SAMPLES, shares)
    counts = samples + rng.multinomial(N_VOTES - N_SAMPLES, shares)
    votes = Votes(counts.astype(np.int32), samples.astype(np.int32), N_VOTES, N_SAMPLES)
    return votes, Draws(*rng.random((3, n_problems)))


def warmed_rows(guard: Guard, visits: list[tuple[Votes, Draws]], n_problems: int) -> GuardState:
    """Rows with a full window of history, so that no branch is idle."""
    rows = guard.init(n_problems, n_answers=N_ANSWERS)
    for place in range(guard.config.W + 2):
        rows, _ = guard.step(rows, *visits[place % len(visits)])
    return rows


def best_seconds(call: Callable[[], object], repeats: int, calls: int) -> float:
    """The fastest repeat's mean time of one call; slower ones measure the machine's other load."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls)
    return min(times)


def measure(config: GuardConfig, n_problems: int, calls: int) -> tuple[float, float]:
    """Seconds of one step, and of one batch with `take` and `put`."""
    rng = np.random.default_rng(0)
    guard = Guard(config)
    visits = [visit(rng, n_problems) for _ in range(3)]
    rows = warmed_rows(guard, visits, n_problems)
    problems = rng.permutation(n_problems)

    def batch() -> None:
        stepped, _ = guard.step(rows.take(problems), *visits[0])
        rows.put(problems, stepped)

    step = best_seconds(lambda: guard.step(rows, *visits[0]), 3, calls)
    return step, best_seconds(batch, 3, calls)


def main() -> None:
    """Print one line per configuration."""
    configs = {
        "paper": GuardConfig.paper(),
        "release": GuardConfig.release(),
        "paper, memory": GuardConfig(label_from="memory", discount=0.9),
        "off": GuardConfig.off(),
    }
    best = {name: np.full(4, np.inf) for name in configs}
    # Rounds over all configurations, so that a busy minute does not fall on one of them.
    for _ in range(ROUNDS):
        for name, config in configs.items():
            large = np.array(measure(config, 1_000, 1)) * 1e6 / 1_000
            small = np.array(measure(config, 8, 200)) * 1e6
            best[name] = np.minimum(best[name], [*large, *small])
    print(f"guard.step, {N_ANSWERS} answers, fastest of {3 * ROUNDS}")
    print(f"{'':16}{'1,000 rows, us a row':>26}{'8 rows, us a call':>26}")
    print(f"{'config':16}" + f"{'step':>12}{'take+step+put':>14}" * 2)
    for name, times in best.items():
        cells = "".join(f"{time:{width}.1f}" for time, width in zip(times, WIDTHS, strict=True))
        print(f"{name:16}{cells}")


if __name__ == "__main__":
    main()
