"""The command line `guard-sim`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import tyro

from lab.arm_settings import arm_of
from lab.arms import DEMO_ARMS, under
from lab.cli import run_cli
from lab.columns import equals, floats, groups, select, unique, where
from sim.engine.run import simulate
from sim.explore.command import Explore
from sim.settings.config import SimConfig
from sim.settings.options import FLAT, settings_of
from sim.studies.agree.command import Agree
from sim.studies.calibrate.command import Calibrate
from sim.studies.search.command import SearchCommand
from sim.studies.sweep.command import SweepCommand
from sim.theory.command import Theory
from sim.world.measured.policy import Trust

COMPARISON = "comparison.parquet"


@dataclass(kw_only=True)
class Run:
    """Simulate one arm and leave its run folder."""

    out: Path
    """New folder for the run."""
    profile: str | None = None
    """The guard: paper (default), release, off, recommended, frs, mps or rcsu."""
    arm: str | None = None
    """A named arm in place of a profile: ttrl, guard, frozen, memory, memory_guard, truth, a rule
    by name (scope), or a rule with one of them (scope+guard); --rule scope --arm guard is the
    same."""
    config: Path | None = None
    """TOML file with settings; options on the command line win."""
    quiet: bool = False
    """No progress bar."""
    settings: Annotated[SimConfig, FLAT] = field(default_factory=SimConfig)

    @classmethod
    def defaults(cls, argv: Sequence[str]) -> Run:
        """Settings of --config, --population, --profile and --arm for what is not given."""
        return cls(out=tyro.MISSING, settings=settings_of(argv, SimConfig()))

    def run(self) -> None:
        """Simulate, then print a summary."""
        from sim.studies.arms.words import print_summary
        from sim.studies.compare import rows_of

        asked = None if self.arm is None else under(self.arm, self.settings.rule)
        arm = arm_of(self.settings, asked)
        trace = simulate(self.settings, self.out, progress=not self.quiet, arm=arm)
        print_summary(rows_of({trace.run.arm: trace}, self.settings))
        if (trust := trace.run.extra.get("trust")) is not None:
            print(Trust(**trust).line())
        print(self.out)


@dataclass(kw_only=True)
class Compare:
    """Simulate several arms with paired seeds, each into its own folder below --out."""

    out: Path
    """New folder; every arm gets a folder of its name in it."""
    arms: tuple[str, ...] = DEMO_ARMS
    """Arms: ttrl, guard, frozen, memory, memory_guard, truth; the profile release, the ablations
    frs, mps, rcsu; a rule by name (scope) or with one of these (scope+guard); the controls matched
    (same update norm) and random_skip (same share of skipped visits) of the guard, or of another
    arm as in matched_release or matched_scope+guard. With --rule scope, guard is scope+guard."""
    own_best: bool = False
    """Also run all arms at seven step sizes from .001 to 1 and compare each at its own best."""
    steps: tuple[float, ...] = ()
    """Also run all arms at these step sizes, instead of the seven of `own_best`."""
    null: bool = False
    """Also run all arms with independent problems: the null model."""
    workers: int = 1
    """Processes for --own-best, --steps and --null."""
    profile: str | None = None
    """The guard of the arm `guard`: paper (default), release, frs, mps or rcsu."""
    config: Path | None = None
    """TOML file with settings; options on the command line win."""
    quiet: bool = False
    """No progress bar."""
    settings: Annotated[SimConfig, FLAT] = field(default_factory=lambda: SimConfig(replicates=20))

    @classmethod
    def defaults(cls, argv: Sequence[str]) -> Compare:
        """Settings of --config, --population and --profile for what is not given."""
        return cls(out=tyro.MISSING, settings=settings_of(argv, SimConfig(replicates=20)))

    def run(self) -> None:
        """Simulate all arms, write every difference, then print a summary."""
        from sim.studies.arms.controls import named
        from sim.studies.compare import compare, rows_of, run_grid
        from sim.studies.sweep.pool import Pool
        from sim.studies.sweep.presets import STEPS

        pool = Pool(workers=self.workers)
        names = tuple(under(name, self.settings.rule) for name in self.arms)
        arms = [named(name, self.settings) for name in names]
        traces = compare(self.settings, arms, self.out, progress=not self.quiet)
        rows = rows_of(traces, self.settings)
        steps = self.steps or (STEPS if self.own_best else ())
        if steps or self.null:
            traces.clear()
            grid = run_grid(self.settings, names, self.out, steps, self.null, pool, not self.quiet)
            rows = pd.concat([rows, grid], ignore_index=True)
            rows = rows.drop_duplicates(["policy", "step", "arm", "replicate"])
        self._report(rows)
        print(self.out)

    def _report(self, rows: pd.DataFrame) -> None:
        from sim.studies.arms.contrast import contrasts
        from sim.studies.arms.words import (
            print_contrasts,
            print_failures,
            print_own_best,
            print_summary,
        )

        settings = ["policy", "step"]
        table = contrasts(rows, settings, self.settings.seed)
        table.to_parquet(self.out / COMPARISON, index=False)
        several = len(unique(rows, "policy")) * len(unique(rows, "step")) > 1
        print_summary(rows, settings if several else ())
        # Printed at the step of the settings and at the best; the file has every step.
        near = np.isnan(floats(table, "step")) | equals(table, "step", self.settings.step)
        print_contrasts(select(table, near), settings)
        for (policy,), part in groups(rows, ["policy"]):
            if len(unique(part, "step")) > 1:
                print(f"\npolicy {policy}", end="")
                print_own_best(part, where(table, policy=policy))
        print_failures(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `guard-sim`."""
    return run_cli(
        "guard-sim",
        {
            "run": Run,
            "compare": Compare,
            "sweep": SweepCommand,
            "search": SearchCommand,
            "agree": Agree,
            "calibrate": Calibrate,
            "theory": Theory,
            "explore": Explore,
        },
        argv,
        description="Simulate test-time reinforcement learning with and without a guard.",
    )


if __name__ == "__main__":
    sys.exit(main())
