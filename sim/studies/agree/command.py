"""`guard-sim agree`: real runs and a response file in, the table of their agreement out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from lab.arms import BASELINE
from lab.compare.agreement import MEASURED, compare_cells
from lab.compare.collection import Comparison, collect
from lab.errors import UserError
from lab.files import whole
from lab.report.content.agreement import cell_table, mean_table, ranking_table
from lab.trace.response import read_response
from lab.trace.trace import Trace
from sim.settings.machine_code import compilation_shown
from sim.studies.agree.runs import (
    CLASSICAL,
    Classical,
    Prediction,
    check_classical,
    simulate_arms,
    simulate_classical,
)

TABLE = "agreement.csv"


@dataclass(kw_only=True)
class Agree:
    """Simulate real runs from a response file, with their settings, and compare both.

    Every cell, one arm at one learning rate, is compared in final pass@1, in the curves of pass@1,
    match rate and flip rate, in fates, problem by problem, and in the difference to TTRL. Beside
    the errors stand those of one half of the real seeds for the other half, of copying TTRL, and of
    classical policies whose step size is calibrated on the real TTRL runs.
    """

    real: tuple[Path, ...]
    """Run folders of the trainer, or folders that hold some at any depth."""
    response: Path
    """Response file of `guard-train measure`, of the same model and problems."""
    out: Path | None = None
    """New folder for the simulated runs, which guard-report draws over the real ones, and for
    agreement.csv; without it the tables are only printed."""
    replicates: int = 16
    """Simulated runs per cell."""
    growth: float | None = None
    """As in `guard-sim run`: the response file's own if left out, 0 for the linear model."""
    classical: tuple[Classical, ...] = CLASSICAL
    """Classical policies to compare with."""
    seed: int = 0
    """Seed of the simulated runs."""
    quiet: bool = False
    """No progress bar."""

    def run(self) -> None:
        """Simulate, compare and print the tables."""
        if self.replicates < 1:
            raise UserError(f"replicates = {self.replicates}: must be at least 1")
        if self.out is not None and self.out.exists() and any(self.out.iterdir()):
            raise UserError(f"out: {self.out} exists and is not empty; give another name")
        prediction = Prediction(
            response=read_response(self.response),
            path=self.response,
            growth=self.growth,
            replicates=self.replicates,
            seed=self.seed,
        )
        real = [c for c in collect(self.real).comparisons if c.world == "real"]
        if not real:
            raise UserError(f"real: no run of the trainer in {', '.join(map(str, self.real))}")
        table = agree(real, prediction, self.out, self.classical, not self.quiet)
        for text in (cell_table(table), mean_table(table), ranking_table(table)):
            print("\n".join([*text.lines(), ""]))
        if self.out is not None:
            with whole(self.out / TABLE) as file:
                table.to_csv(file, index=False)
            print(self.out / TABLE)


def agree(
    real: Sequence[Comparison],
    prediction: Prediction,
    out: Path | None = None,
    classical: Sequence[Classical] = CLASSICAL,
    progress: bool = False,
) -> pd.DataFrame:
    """Simulate real comparisons and compare both.

    Args:
        real: comparisons of the trainer.
        prediction: settings of the simulations.
        out: new folder for the runs of the measured policy; in memory if None.
        classical: other policies, whose runs are not kept.
        progress: show a progress bar.

    Returns:
        As `lab.agreement`.

    Raises:
        UserError: model, problems or settings of a real run are not those of the response file.
    """
    for comparison in real:  # before the first run
        for runs in comparison.runs.values():
            prediction.of(runs)
            if classical and BASELINE in comparison.arms:
                check_classical(runs)
    several = len({comparison.family for comparison in real}) > 1
    parts = []
    bar = tqdm(total=sum(len(c.arms) for c in real), unit="cell", disable=not progress)
    with bar, compilation_shown(bar.set_postfix_str):
        for comparison in real:
            folder = None if out is None else out / _place(comparison, several)
            predictions: dict[str, dict[str, Trace]] = {MEASURED: {}}
            for arm, trace in simulate_arms(comparison, prediction, folder):
                predictions[MEASURED][arm] = trace
                bar.update()
            for policy in classical if BASELINE in comparison.arms else ():
                predictions[policy] = simulate_classical(comparison, prediction, policy)
            parts.append(compare_cells(comparison, predictions))
    return pd.concat(parts, ignore_index=True)


def _place(comparison: Comparison, several: bool) -> str:
    """Folder of one comparison's simulations."""
    name = "runs" if comparison.step_size is None else f"lr-{comparison.step_size:g}"
    return f"set-{comparison.family}/{name}" if several else name
