"""`guard-sim sweep`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lab.arms import GUARD, with_rule
from lab.cli import read_option
from lab.errors import UserError
from sim.settings.config import SimConfig
from sim.settings.options import Preset, settings_of

if TYPE_CHECKING:
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
        from sim.studies.axes import parse
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
