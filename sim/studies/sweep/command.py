"""`guard-sim sweep`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from lab.arms import GUARD, under
from lab.cli import read_option
from lab.errors import UserError
from sim.settings.config import SimConfig
from sim.settings.options import FLAT, settings_of
from sim.studies.sweep.axes import Range, parse
from sim.studies.sweep.plan import RandomCells, Sweep
from sim.studies.sweep.pool import Backend, Pool
from sim.studies.sweep.presets import PRESETS, Preset, preset, preset_settings


@dataclass(kw_only=True)
class SweepCommand:
    """Run arms over many settings with paired seeds; the same command continues a sweep."""

    out: Path
    """Folder of the sweep: new, empty, or with an unfinished sweep of the same settings."""
    vary: tuple[str, ...] = ()
    """Axes: `guard.W=2,3,5`, `step=loguniform:.01:.1:5` (5 values), or with --random a law such as
    `step=loguniform:.01:.1`. Several axes make a grid. Any setting below can be varied."""
    random: int | None = None
    """Draw this many cells at random in place of a grid."""
    preset: Preset | None = None
    """A named sweep: the paper's sensitivities (24 settings, or one of its rows), where each arm
    wins over step size, coupling and positive transfer, or all label-free rules."""
    arms: tuple[str, ...] = ()
    """Arms, as in guard-sim compare; the preset's, or guard, if left out."""
    workers: int = 1
    """Processes on this machine."""
    backend: Backend = "local"
    """Processes of this machine, or a Dask or Ray cluster."""
    address: str | None = None
    """Of a running cluster; without one a cluster of --workers is started on this machine."""
    traces: bool = False
    """Also keep the run folder of every run."""
    retry_failed: bool = False
    """Run cells again that failed before."""
    winners: bool = False
    """Also say which arm is best in every cell, in words and as winners.html, winners.csv and
    own_best.csv; --preset winners does so by itself."""
    profile: str | None = None
    """The guard of the arm `guard`: paper (default), release, frs, mps or rcsu."""
    config: Path | None = None
    """TOML file with settings; options on the command line win."""
    quiet: bool = False
    """No progress bar."""
    settings: Annotated[SimConfig, FLAT] = field(default_factory=lambda: SimConfig(replicates=20))

    @classmethod
    def defaults(cls, argv: Sequence[str]) -> SweepCommand:
        """Settings of --config, --preset, --population, --profile and --rule."""
        name = read_option(argv, "--preset")
        base = preset_settings(_preset(name)) if name is not None else SimConfig(replicates=20)
        return cls(out=tyro.MISSING, settings=settings_of(argv, base))

    def run(self) -> None:
        """Run the sweep, then print a summary."""
        from sim.studies.arms.words import print_failures, print_summary
        from sim.studies.sweep.run import run_sweep

        sweep = self._sweep()
        rows = run_sweep(
            sweep,
            self.out,
            Pool(backend=self.backend, workers=self.workers, address=self.address),
            progress=not self.quiet,
            traces=self.traces,
            retry_failed=self.retry_failed,
        )
        charts = self.winners or self.preset == "winners"
        if self.preset not in ("winners", "rules"):
            print_summary(rows, sweep.names)
        print_failures(rows)
        if charts:
            from sim.studies.sweep.winners_page import write_winners

            for line in write_winners(rows, sweep.names, self.settings.seed, self.out):
                print(line)
        if self.preset == "rules":
            from sim.studies.sweep.rule_tables import write_rules

            for line in write_rules(rows, sweep, self.out):
                print(line)
        print(self.out)

    def _sweep(self) -> Sweep:
        own = tuple(under(name, self.settings.rule) for name in self.arms)
        if self.preset is not None:
            if self.vary or self.random is not None:
                raise UserError("--preset: has its own axes; give it or --vary")
            return preset(self.preset, self.settings, own)
        axes = dict(parse(text) for text in self.vary)
        if len(axes) < len(self.vary):
            raise UserError("vary: a setting is there twice; give all its values at once")
        arms = own or (under(GUARD, self.settings.rule),)
        if self.random is not None:
            draws = RandomCells(cells=self.random, axes=axes)
            return Sweep(base=self.settings, arms=arms, draws=draws)
        laws = [name for name, axis in axes.items() if isinstance(axis, Range)]
        if laws:
            raise UserError(f"vary {laws[0]}: a law needs --random, or a count for a grid")
        groups = ({n: a for n, a in axes.items() if isinstance(a, tuple)},)
        return Sweep(base=self.settings, arms=arms, groups=groups)


def _preset(name: str) -> Preset:
    for known in PRESETS:
        if name == known:
            return known
    raise UserError(f"preset {name!r}: unknown, use one of {', '.join(PRESETS)}")
