"""`guard-sim run` and `guard-sim compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from lab.arm_settings import arm_of
from lab.base.arms import DEMO_ARMS, for_cell, with_rule
from lab.cli import arms_of
from lab.trace.manifest import check_new
from sim.settings.config import SimConfig, settings_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(kw_only=True)
class Run:
    """Simulate one arm and leave its run folder.

    Examples:
        guard-sim run --out runs/guard
        guard-sim run --arm ttrl --population llama-amc --replicates 20 --out runs/amc
        guard-sim run --guard.W 3 --step 0.1 --seed 1 --out runs/window
    """

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
    settings: SimConfig = field(default_factory=SimConfig)

    @classmethod
    def defaults(cls, argv: Sequence[str]) -> dict[str, Any]:
        """Settings of --config, --population, --profile and --arm for what is not given."""
        return {"settings": settings_of(argv)}

    def run(self) -> None:
        """Simulate, then print a summary."""
        # What can be refused is refused before the imports, which take a second.
        check_new(self.out)
        cell, rule = self.settings.population, self.settings.rule
        asked = None if self.arm is None else with_rule(for_cell(self.arm, cell), rule)
        arm = arm_of(self.settings, asked)
        from sim.engine.run import simulate
        from sim.studies.compare import rows_of
        from sim.studies.words import print_short, print_summary
        from sim.world.measured import Trust

        print_short(self.settings.epochs)
        trace = simulate(self.settings, self.out, progress=not self.quiet, arm=arm)
        print_summary(rows_of({trace.run.arm: trace}, self.settings))
        if (trust := trace.run.extra.get("trust")) is not None:
            print(Trust(**trust).line())
        print(self.out)


@dataclass(kw_only=True)
class Compare:
    """Simulate several arms with paired seeds, each into its own folder below --out.

    The same command goes on with a comparison that was interrupted.

    Examples:
        guard-sim compare --out runs/sim
        guard-sim compare --own-best --workers 2 --out runs/best
        guard-sim compare --preset paper --out runs/paper
    """

    SHORT: ClassVar[tuple[str, ...]] = (
        *("policy", "response", "lr", "population", "n_problems", "epochs", "n_votes"),
        *("n_samples", "step", "replicates", "seed"),
    )

    out: Path
    """Folder; every arm gets a folder of its name in it."""
    arms: tuple[str, ...] = DEMO_ARMS
    """Arms: ttrl, guard, frozen, memory, memory_guard, truth; the profile release, the ablations
    frs, mps, rcsu; a rule by name (scope) or with one of these (scope+guard); the controls matched
    (same update norm) and random_skip (same share of skipped visits) of the guard, or of another
    arm as in matched_release or matched_scope+guard; permuted and replayed, the guard's decisions
    on other problems or of another replicate; or an arm with settings of its own, such as
    'guard: flip_rate=instant, theta_MR=.5'. With --rule scope, guard is scope+guard."""
    preset: Literal["paper"] | None = None
    """paper: all cells of the paper, beside its numbers."""
    own_best: bool = False
    """Also run all arms at seven step sizes from .001 to 1 and compare each at its own best."""
    steps: tuple[float, ...] = ()
    """Also run all arms at these step sizes, instead of the seven of `own_best`."""
    null: bool = False
    """Also run all arms with independent problems: the null model."""
    workers: int = 1
    """Processes on this machine."""
    profile: str | None = None
    """The guard of the arm `guard`: paper (default), release, frs, mps or rcsu."""
    config: Path | None = None
    """TOML file with settings; options on the command line win."""
    quiet: bool = False
    """No progress bar."""
    settings: SimConfig = field(default_factory=lambda: SimConfig(replicates=20))

    @classmethod
    def defaults(cls, argv: Sequence[str]) -> dict[str, Any]:
        """Settings of --config, --population and --profile for what is not given."""
        settings = settings_of(argv, has_arms=True, replicates=20)
        return {"settings": settings, "arms": arms_of(argv, DEMO_ARMS)}

    def run(self) -> None:
        """Simulate all arms, write every difference, then print a summary."""
        if self.preset is not None:
            from sim.studies.paper import run_paper

            print(*run_paper(self.settings, self.out, not self.quiet), self.out, sep="\n")
            return
        import pandas as pd

        from sim.studies.compare import compare, rows_of, run_grid
        from sim.studies.controls import named
        from sim.studies.sweep import STEPS
        from sim.studies.words import print_short

        cell, rule = self.settings.population, self.settings.rule
        names = tuple(with_rule(for_cell(name, cell), rule) for name in self.arms)
        arms = [named(name, self.settings) for name in names]
        print_short(self.settings.epochs)
        traces = compare(self.settings, arms, self.out, not self.quiet, self.workers)
        rows = rows_of(traces, self.settings)
        steps = self.steps or (STEPS if self.own_best else ())
        if steps or self.null:
            traces.clear()
            options = {"workers": self.workers, "progress": not self.quiet}
            grid = run_grid(self.settings, names, self.out, steps, self.null, **options)
            rows = pd.concat([rows, grid], ignore_index=True)
            rows = rows.drop_duplicates(["policy", "step", "arm", "replicate"])
        self._report(rows)
        print(self.out)

    def _report(self, rows: pd.DataFrame) -> None:
        import numpy as np

        from lab.base.columns import equals, floats, groups, select, unique
        from sim.studies.compare import TABLE, contrasts
        from sim.studies.words import (
            print_contrasts,
            print_failures,
            print_own_best,
            print_summary,
        )

        settings = ["policy", "step"]
        table = contrasts(rows, settings, self.settings.seed)
        table.to_parquet(self.out / TABLE, index=False)
        several = len(unique(rows, "policy")) * len(unique(rows, "step")) > 1
        print_summary(rows, settings if several else ())
        # Printed at the step of the settings and at the best; the file has every step.
        near = np.isnan(floats(table, "step")) | equals(table, "step", self.settings.step)
        print_contrasts(select(table, near), settings)
        for (policy,), part in groups(rows, ["policy"]):
            if len(unique(part, "step")) > 1:
                print(f"\npolicy {policy}", end="")
                print_own_best(part, self.settings.seed)
        print_failures(rows)
