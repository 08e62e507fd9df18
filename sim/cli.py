"""The command line: `guard-sim run`, `guard-sim compare` and `guard-sim theory`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from guard_core import GuardConfig
from lab.arms import DEMO_ARMS, GUARD, MATCHED, Arm, arm
from lab.cli import read_option, run_cli
from lab.errors import UserError
from lab.settings import read_toml
from sim.config import SimConfig
from sim.populations import NAMED
from sim.theory.command import Theory

_FLAT = tyro.conf.arg(name="")


@dataclass(kw_only=True)
class Run:
    """Simulate one arm and leave its run folder."""

    out: Path
    """New folder for the run."""
    profile: str | None = None
    """The guard: paper (default), release, off, frs, mps or rcsu."""
    arm: str | None = None
    """A named arm in place of a profile: ttrl, guard, frozen, memory, memory_guard, truth."""
    config: Path | None = None
    """TOML file with settings; options on the command line win."""
    quiet: bool = False
    """No progress bar."""
    settings: Annotated[SimConfig, _FLAT] = field(default_factory=SimConfig)

    @classmethod
    def defaults(cls, argv: Sequence[str]) -> Run:
        """Settings of --config, --population, --profile and --arm for what is not given."""
        settings = _settings(argv)
        chosen = _arm(argv)
        if chosen is not None:
            settings = replace(settings, guard=chosen.guard, labels=chosen.labels)
        elif (profile := read_option(argv, "--profile")) is not None:
            settings = replace(settings, guard=GuardConfig.profile(profile))
        return cls(out=tyro.MISSING, settings=settings)

    def run(self) -> None:
        """Simulate, then print a summary."""
        from sim.run import simulate
        from sim.summary import print_summary

        named = None
        if self.arm is not None:
            named = arm(self.arm)
            named = replace(
                named,
                guard=self.settings.guard,
                labels=self.settings.labels,
                step_factor=self.settings.step_factor,
            )
            if self.arm == MATCHED and self.settings.step_factor == 1.0:
                raise UserError(
                    "arm 'matched': needs --step-factor; guard-sim compare finds it by itself"
                )
        trace = simulate(self.settings, self.out, progress=not self.quiet, arm=named)
        print_summary({trace.run.arm: trace})
        print(self.out)


@dataclass(kw_only=True)
class Compare:
    """Simulate several arms with paired seeds, each into its own folder below --out."""

    out: Path
    """New folder; every arm gets a folder of its name in it."""
    arms: tuple[str, ...] = DEMO_ARMS
    """Arms: ttrl, guard, matched, frozen, memory, memory_guard, truth, release, frs, mps, rcsu."""
    profile: str | None = None
    """The guard of the arm `guard`: paper (default), release, frs, mps or rcsu."""
    config: Path | None = None
    """TOML file with settings; options on the command line win."""
    quiet: bool = False
    """No progress bar."""
    settings: Annotated[SimConfig, _FLAT] = field(default_factory=lambda: SimConfig(replicates=20))

    @classmethod
    def defaults(cls, argv: Sequence[str]) -> Compare:
        """Settings of --config, --population and --profile for what is not given."""
        settings = _settings(argv, replicates=20)
        if (profile := read_option(argv, "--profile")) is not None:
            settings = replace(settings, guard=GuardConfig.profile(profile))
        return cls(out=tyro.MISSING, settings=settings)

    def run(self) -> None:
        """Simulate all arms, then print a summary."""
        from sim.compare import compare
        from sim.summary import print_summary

        arms = [arm(name) for name in self.arms]
        # The guard's own settings are options of the command, so they apply to the guard's arm.
        arms = [replace(a, guard=self.settings.guard) if a.name == GUARD else a for a in arms]
        traces = compare(self.settings, arms, self.out, progress=not self.quiet)
        print_summary(traces)
        print(self.out)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `guard-sim`."""
    return run_cli(
        "guard-sim",
        {"run": Run, "compare": Compare, "theory": Theory},
        argv,
        description="Simulate test-time reinforcement learning with and without a guard.",
    )


def _settings(argv: Sequence[str], **changes: Any) -> SimConfig:
    """Settings of the file, else the size of the named population."""
    if (path := read_option(argv, "--config")) is not None:
        return _read(Path(path))
    name = read_option(argv, "--population")
    if name in NAMED:
        changes |= {"population": name}
        changes |= {"n_problems": NAMED[name].n_problems, "epochs": NAMED[name].epochs}
    return SimConfig(**changes)


def _read(path: Path) -> SimConfig:
    try:
        return read_toml(path, SimConfig)
    except UserError as error:
        # A setting's own message does not know which file it came from.
        if str(path) in str(error):
            raise
        raise UserError(f"{path}: {error}") from error


def _arm(argv: Sequence[str]) -> Arm | None:
    name = read_option(argv, "--arm")
    if name is not None and read_option(argv, "--profile") is not None:
        raise UserError("--arm and --profile: give one of them")
    return None if name is None else arm(name)


if __name__ == "__main__":
    sys.exit(main())
