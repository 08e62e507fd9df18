"""`guard-sim sweep` and `guard-sim search`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lab.base.arms import GUARD, with_rule
from lab.base.errors import UserError
from lab.base.files import whole
from lab.cli import read_option
from sim.settings.config import SEARCH_ARMS, SEARCH_LRS, Objective, Preset, SimConfig, settings_of

if TYPE_CHECKING:
    import pandas as pd

    from lab.base.columns import TextTable
    from sim.studies.sweep import Sweep


@dataclass(kw_only=True)
class SweepCommand:
    """Run arms over many settings with paired seeds; the same command continues a sweep.

    Examples:
        guard-sim sweep --vary guard.W=2,3,5 --out runs/window
        guard-sim sweep --vary step=loguniform:.01:.3:5 --arms ttrl guard --out runs/steps
        guard-sim sweep --preset sensitivity --workers 2 --out runs/sensitivity
    """

    SHORT: ClassVar[tuple[str, ...]] = (
        *("policy", "response", "lr", "population", "step", "replicates", "seed"),
    )

    out: Path
    """Folder of the sweep: new, empty, or with an unfinished sweep of the same settings."""
    vary: tuple[str, ...] = ()
    """Axes: `guard.W=2,3,5`, or `step=loguniform:.01:.1:5` and `step=uniform:.01:.1:5` (5 values).
    Several axes make a grid. Any setting below can be varied."""
    preset: Preset | None = None
    """A named sweep: the paper's sensitivities (24 settings, or one of its rows), or all label-free
    rules."""
    arms: tuple[str, ...] = ()
    """Arms, as in guard-sim compare; the preset's, or guard, if left out."""
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
        """Settings of --config, --preset, --population, --profile and --rule."""
        base: dict[str, Any] = {"replicates": 20}
        if (name := read_option(argv, "--preset")) is not None:
            from sim.studies.sweep import preset_settings

            base = preset_settings(name)
        return {"settings": settings_of(argv, **base)}

    def run(self) -> None:
        """Run the sweep, then print a summary."""
        from sim.studies.sweep import run_sweep
        from sim.studies.words import print_failures, print_rules, print_summary

        sweep = self._sweep()
        rows = run_sweep(sweep, self.out, self.workers, progress=not self.quiet)
        if self.preset == "rules":
            print_rules(rows, sweep.names)
        else:
            print_summary(rows, sweep.names)
        print_failures(rows)
        print(self.out)

    def _sweep(self) -> Sweep:
        from sim.studies.jobs import parse
        from sim.studies.sweep import Sweep, preset

        own = tuple(with_rule(name, self.settings.rule) for name in self.arms)
        if self.preset is not None:
            if self.vary:
                raise UserError("--preset: has its own axes; give it or --vary")
            return preset(self.preset, self.settings, own)
        axes = dict(parse(text) for text in self.vary)
        if len(axes) < len(self.vary):
            raise UserError("vary: a setting is there twice; give all its values at once")
        arms = own or (with_rule(GUARD, self.settings.rule),)
        return Sweep(base=self.settings, arms=arms, groups=(axes,))


TABLE = "search.csv"
_SHOWN = 20


@dataclass(kw_only=True)
class SearchCommand:
    """Search arms and settings by successive halving; the same command continues a search.

    Every candidate, an arm with settings, is run over a grid of learning rates. Each round adds
    paired replicates and keeps the better half; the plain arms stay. With the policy `measured`
    replicate numbers are those of --seed and --first-replicate.

    Examples:
        guard-sim search --policy measured --response response.npz --lr 3e-4 --out runs/search
        guard-sim search --config measured.toml --arms ttrl memory --budget 300 --out runs/small
        guard-sim search --config measured.toml --vary guard.W=3,5,8 kl_coef=0,.05 --out runs/w
    """

    SHORT: ClassVar[tuple[str, ...]] = ("policy", "response", "lr", "epochs", "replicates", "seed")

    out: Path
    """Folder of the search: new, empty, or with an unfinished search of the same settings."""
    arms: tuple[str, ...] = SEARCH_ARMS
    """Arms that settings are combined with; the first is the reference of the table."""
    vary: tuple[str, ...] = ()
    """Settings to combine, as `kl_coef=0,.05,.2`; if left out KL penalty, scale of negative
    advantages, hysteresis and discount."""
    lrs: tuple[float, ...] = SEARCH_LRS
    """Learning rates that a candidate is judged over."""
    objective: Objective = "mean"
    """Mean over the learning rates of the final pass@1, or its minimum."""
    budget: int = 1000
    """Most runs: one candidate at one learning rate in one replicate each."""
    workers: int = 1
    """Processes on this machine."""
    config: Path | None = None
    """TOML file with settings; options on the command line win."""
    quiet: bool = False
    """No progress bar."""
    settings: SimConfig = field(default_factory=lambda: SimConfig(replicates=5))

    @classmethod
    def defaults(cls, argv: Sequence[str]) -> dict[str, Any]:
        """Settings of --config and --response for what is not given."""
        return {"settings": settings_of(argv, replicates=5)}

    def run(self) -> None:
        """Run the search, write search.csv and print its best rows."""
        if self.settings.policy != "measured":
            raise UserError(
                "search: candidates are judged over learning rates; needs the policy "
                "measured, with --response and --lr"
            )
        from sim.studies.jobs import parse
        from sim.studies.search import AXES, Search, results, run_search

        search = Search(
            base=self.settings,
            arms=self.arms,
            axes=dict(parse(text) for text in self.vary) or AXES,
            lrs=self.lrs,
            objective=self.objective,
            budget=self.budget,
        )
        rows = run_search(search, self.out, self.workers, progress=not self.quiet)
        table = results(rows, self.lrs, self.objective)
        with whole(self.out / TABLE) as file:
            table.to_csv(file, float_format="%.3f")
        print(f"{len(rows)} runs of {rows['candidate'].nunique()} candidates, final pass@1 in %")
        print("\n".join(_shown(table, rows["candidate"].iloc[0]).lines()))
        print(
            "mean and minimum over the learning rates, which the file has one by one; the intervals"
        )
        print("hold for all candidates at once with 95 %")
        print(self.out / TABLE)


def _shown(table: pd.DataFrame, first: str) -> TextTable:
    """The best rows of `sim.studies.search.results`; `first` is what the gain is over."""
    from lab.base.columns import TextTable
    from lab.base.stats import with_interval

    columns = ["mean", "minimum", "replicates", "gain", "low", "high"]
    rows = []
    for name, (mean, low, n, *gain) in table[columns].head(_SHOWN).iterrows():
        over = "" if math.isnan(gain[1]) else with_interval(*gain)
        rows.append([str(name), f"{mean:.1f}", f"{low:.1f}", f"{n:.0f}", over])
    return TextTable(["candidate", "mean", "minimum", "replicates", f"mean - {first}"], rows)
