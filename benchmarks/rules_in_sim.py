"""Cost of each rule in the simulator: CPU time per visit relative to plain TTRL, without the trace.

500 problems, V = 64, K = 32, 10 answers, batch 8, attractor policy, 64 replicates side by side; the
best of a few epochs, in turn with all others.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from guard_core.rules import RULES
from lab.arm_settings import with_arm
from lab.arms import arm
from sim import SimConfig
from sim.engine.simulation import Simulation

BUDGET = 3.0
"""Times plain TTRL's visit; rules beyond it may have compiled rewards."""


def rows(replicates: int, problems: int, rounds: int) -> list[tuple[str, float, float]]:
    """Name, nanoseconds per visit, ratio to TTRL, cheapest first."""
    base = SimConfig(replicates=replicates, n_problems=problems)
    times: dict[str, float] = {}
    # A few at a time with TTRL: every run holds memory, and TTRL's time is that of the moment.
    names = [name for name in RULES if name != "ttrl"]
    ratios: dict[str, float] = {"ttrl": 1.0}
    for start in range(0, len(names), 7):
        group = ["ttrl", *names[start : start + 7]]
        found = cpu_per_visit({name: with_arm(base, arm(name)) for name in group}, rounds)
        times |= found
        ratios |= {name: time / found["ttrl"] for name, time in found.items()}
    return sorted(((n, times[n], ratios[n]) for n in times), key=lambda row: row[2])


def cpu_per_visit(configs: Mapping[str, SimConfig], rounds: int) -> dict[str, float]:
    """Nanoseconds of CPU per visit, all threads of this process, the best of some epochs.

    Visit 0 and the first epoch, which compiles and fills caches, are not counted.

    Args:
        configs: settings by name.
        rounds: epochs that are timed per name, in turn.
    """
    runs = {
        name: Simulation(replace(c, epochs=rounds + 1, vote_replicates=0))
        for name, c in configs.items()
    }
    for run in runs.values():
        run.before()
        run.epoch(1)
    best = dict.fromkeys(runs, float("inf"))
    for epoch in range(2, rounds + 2):
        for name, run in runs.items():
            start = time.process_time()
            run.epoch(epoch)
            visits = run.config.replicates * run.config.n_problems
            best[name] = min(best[name], 1e9 * (time.process_time() - start) / visits)
    return best
