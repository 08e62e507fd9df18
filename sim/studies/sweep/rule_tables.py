"""`rules.csv` and `rules.md`: every rule at its own best step, and the CPU time of its visits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd

from lab.arm_settings import with_arm
from lab.arms import BASELINE, arm
from lab.columns import floats, groups, where
from lab.compare.rule_table import flat, rule_table
from lab.files import whole
from lab.report.rule_markdown import NOTE, effort_markdown, rule_markdown, steps_markdown
from sim.engine.simulation import Simulation
from sim.settings.config import SimConfig
from sim.studies.sweep.plan import CHOSEN, Sweep

TABLE, PAGE = "rules.csv", "rules.md"
COST_REPLICATES, COST_PROBLEMS, COST_ROUNDS = 64, 100, 3
"""Size of the runs on which the cost of a visit is measured."""
_COST = (
    "The time of a step is CPU per visit on {replicates} replicates x {problems} problems, in turn "
    "with TTRL's. Nothing is corrected for many comparisons."
)


def write_rules(rows: pd.DataFrame, sweep: Sweep, folder: Path) -> list[str]:
    """Write the tables of all cells as one CSV and as Markdown.

    Args:
        rows: of `run_sweep` over several steps.
        sweep: that they are of.
        folder: of the sweep.

    Returns:
        The page's lines, and the paths of both files.
    """
    by = [name for name in sweep.names if name != CHOSEN]
    rows = where(rows, status="done").drop_duplicates([*by, CHOSEN, "arm", "replicate"])
    costs = _costs(sweep)
    cost = _COST.format(replicates=COST_REPLICATES, problems=COST_PROBLEMS)
    lines = [
        "# Label-free rules, each at its own best step",
        "",
        NOTE.format(base="TTRL"),
        "",
        cost,
    ]
    tables = []
    for cell, part in groups(rows, by):
        table = rule_table(_rows(part)).assign(seconds=lambda t: t["arm"].map(costs))
        place = dict(zip(by, cell, strict=True))
        lines += ["", f"## {', '.join(f'{name} {value}' for name, value in place.items())}", ""]
        lines += rule_markdown(table, note=False).splitlines()
        lines += ["", "Final pass@1 / TotalDeg (%) at equal step sizes:", ""]
        lines += steps_markdown(_rows(part)).splitlines()
        lines += ["", "Points of pass@1 beyond TTRL at equal effort:", ""]
        lines += effort_markdown(_rows(part)).splitlines()
        tables.append(flat(table).assign(**place))
    with whole(folder / TABLE) as temporary:
        pd.concat(tables, ignore_index=True).to_csv(temporary, index=False)
    with whole(folder / PAGE) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [*lines, str(folder / TABLE), str(folder / PAGE)]


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


def _rows(part: pd.DataFrame) -> pd.DataFrame:
    """A sweep's rows under the names of `lab.compare.rule_table`; seeds are replicates here."""
    return part.rename(columns={CHOSEN: "step_size"}).assign(
        seed=part["replicate"], place=0, seconds=1.0, step_size=floats(part, CHOSEN)
    )


def _costs(sweep: Sweep) -> dict[str, float]:
    """CPU of a visit of every arm by TTRL's."""
    base = replace(sweep.base, replicates=COST_REPLICATES, n_problems=COST_PROBLEMS)
    costs = {}
    for name in sweep.arms:
        # Each is timed in turn with TTRL, since the load of the machine changes.
        pair = {plain: with_arm(base, arm(plain)) for plain in dict.fromkeys((BASELINE, name))}
        found = cpu_per_visit(pair, COST_ROUNDS)
        costs[name] = found[name] / found[BASELINE]
    return costs
