"""`guard-sim agree`: real runs and a response file in, the table of their agreement out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from lab.base.errors import UserError
from lab.base.files import whole
from sim.settings.config import Classical


@dataclass(kw_only=True)
class Agree:
    """Simulate real runs from a response file, with their settings, and compare both.

    Every cell, one arm at one learning rate, is compared in final pass@1, in the curves of pass@1,
    match rate and flip rate, in fates, problem by problem, and in the difference to TTRL. Beside
    the errors stand those of one half of the real seeds for the other half, of copying TTRL, and of
    classical policies whose step size is calibrated on the real TTRL runs. What cannot be compared
    is left out and named below the tables.

    Examples:
        guard-train measure --growth runs/pilot --out response.npz
        guard-sim agree --real runs/arms --response response.npz
        guard-sim agree --real runs/arms --response response.npz --out runs/agreement
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
    classical: tuple[Classical, ...] = get_args(Classical)
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
        from lab.base.columns import groups
        from lab.compare.agreement import cell_table, mean_table, ranking_table
        from lab.compare.collection import collect
        from lab.trace.response import read_response
        from sim.studies.agree import TABLE, Prediction, agree, left_out

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
        for (task,), cells in groups(table, ["task"]):
            print("\n".join([str(task), *cell_table(cells).lines(), ""]))
        for text in (mean_table(table), ranking_table(table)):
            print("\n".join([*text.lines(), ""]))
        for line in left_out(real, self.classical):
            print(f"left out: {line}")
        if self.out is not None:
            with whole(self.out / TABLE) as file:
                table.to_csv(file, index=False)
            print(self.out / TABLE)
