"""CPU time of a visit under different arms, measured in turn so that drifts hit all alike."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from sim.engine.simulation import Simulation
from sim.settings.config import SimConfig


def cpu_per_visit(configs: Mapping[str, SimConfig], rounds: int = 5) -> dict[str, float]:
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
