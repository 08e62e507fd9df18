"""The command line `guard-train`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from lab.arm_settings import arm_of
from lab.arms import DEMO_ARMS, under
from lab.cli import run_cli
from lab.errors import UserError
from lab.trace.manifest import FILE_NAME, Manifest, read_manifest
from real.model_commands import (
    ImportGgufCommand,
    MakeTinyCommand,
    MeasureCommand,
    PlanCommand,
    PresetsCommand,
    Settings,
    SettingsCommand,
)
from real.ranks.launched import launched, speaks
from real.record.curve import lines as curve_lines
from real.record.stored import stored_config
from real.record.terminal import advice_when_stopped, runs_bar, tell
from real.requirements import require_torch
from real.settings.config import TrainConfig
from real.settings.options import with_values

if TYPE_CHECKING:
    from real.compare.arms import ComparedArms


@dataclass(kw_only=True)
class RunCommand(SettingsCommand):
    """Train one language model on the votes of its own responses.

    Without options: the embedded tiny task under the guard of the paper.
    """

    out: Path
    """Run folder to make; must not exist yet."""
    preset: str | None = None
    """One of the paper's cells, such as qwen2.5-7b/math500; see `guard-train presets`."""
    arm: str | None = None
    """Arm of the comparison: sets rule, guard and labels (ttrl, guard, frozen, srt, scope+guard,
    ...)."""
    profile: str | None = None
    """Guard profile: paper, release, off, recommended, frs, mps or rcsu."""

    def run(self) -> None:
        """Train, and say what came out."""
        require_torch()
        from real.trainer import train

        asked = None if self.arm is None else under(self.arm, self.settings.rule)
        name = arm_of(self.settings, asked).name
        with advice_when_stopped(f"guard-train resume {shlex.quote(str(self.out))}"):
            trace = train(self.settings, self.out, progress=not self.quiet, arm=name)
        tell([*outcome(trace.run), f"run folder: {self.out}"])


@dataclass(kw_only=True)
class ResumeCommand:
    """Go on with a run that was stopped or killed, from its last checkpoint.

    Of the settings only those may be given that do not make it another run: where it computes,
    memory, checkpoints, logging.
    """

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    settings: Settings = field(default_factory=TrainConfig)
    quiet: bool = False
    """Draw no progress bar."""

    @classmethod
    def defaults(cls, argv: Sequence[str]) -> ResumeCommand:
        """Defaults of the options: the settings of the run."""
        folder = next((Path(word) for word in argv if (Path(word) / FILE_NAME).is_file()), None)
        settings = TrainConfig() if folder is None else stored_config(folder)
        return cls(folder=tyro.MISSING, settings=settings)

    def run(self) -> None:
        """Go on, and say what came out."""
        require_torch()
        from real.trainer import resume

        if speaks() and read_manifest(self.folder).status == "finished":
            tell([f"{self.folder}: the run is finished, nothing is left to do"])
        trace = resume(self.folder, self.settings, progress=not self.quiet)
        tell([*outcome(trace.run), f"run folder: {self.folder}"])


@dataclass(kw_only=True)
class CompareCommand(SettingsCommand):
    """Run several arms on the same seeds, each in a process; the same command resumes them."""

    out: Path
    """Folder for the run folders, OUT/ARM/seed-SEED; with --lrs OUT/lr-LR/ARM/seed-SEED."""
    arms: tuple[str, ...] = DEMO_ARMS
    """Arms to run: recommended, ttrl, guard, matched, frozen, memory, memory_guard, truth; a rule
    of the field such as srt or empo; or both, such as scope+guard."""
    seeds: tuple[int, ...] = (0, 1, 2)
    lrs: tuple[float, ...] = ()
    """Several peak learning rates, one comparison each."""
    jobs: int | None = None
    """Runs at once, each with its own threads; if None 2, or on GPUs as many as have room."""
    gpus_per_run: int = 1
    """GPUs that each run has for itself; several are shared by ranks that torchrun starts."""
    preset: str | None = None
    """One of the paper's cells, such as qwen2.5-7b/math500; see `guard-train presets`."""

    def run(self) -> int:
        """Run all, and say what came out; the exit code is 1 where a run failed."""
        require_torch()
        process = launched()
        if process is not None and process.world > 1:
            raise UserError("compare: starts processes of its own; start it without torchrun")
        from real.compare.arms import compare, compare_steps, n_runs
        from real.model.prepare import on_this_machine

        chosen = on_this_machine(self.settings)[0]
        settings = replace(self.settings, engine=chosen.engine, dtype=chosen.dtype)
        total = n_runs(self.arms, self.seeds) * max(1, len(self.lrs))
        common = (self.arms, self.seeds, self.jobs)
        advice = advice_when_stopped("the same command")
        with advice, runs_bar(total, self.quiet) as report:
            how = (report, self.gpus_per_run)
            if self.lrs:
                results = compare_steps(settings, self.out, self.lrs, *common, *how)
            else:
                results = {None: compare(settings, self.out, *common, *how)}
        for lr, result in results.items():
            if lr is not None:
                print(f"learning rate {lr:g}")
            _tell(result)
        print(f"run folders: {self.out}")
        return 1 if any(result.failed for result in results.values()) else 0


def _tell(result: ComparedArms) -> None:
    """Say what came out of one comparison; failures on stderr."""
    for arm in result.arms:
        print(arm.line)
    for match in result.matches:
        print(match.line)
    for outcome in result.failed:
        log = f"; log: {outcome.job.log}" if outcome.job.log.exists() else ""
        print(f"failed: {outcome.job.name}: {outcome.error}{log}", file=sys.stderr)


COMMANDS = {
    "run": RunCommand,
    "compare": CompareCommand,
    "make-tiny": MakeTinyCommand,
    "import-gguf": ImportGgufCommand,
    "measure": MeasureCommand,
    "plan": PlanCommand,
    "presets": PresetsCommand,
    "resume": ResumeCommand,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `guard-train`; returns the exit code."""
    commands: dict[str, Any] = dict(COMMANDS)
    about = "A real GRPO trainer with majority-vote labels, on CPU or GPU."
    given = sys.argv[1:] if argv is None else argv
    return run_cli("guard-train", commands, with_values(given), about)


def outcome(run: Manifest) -> Iterator[str]:
    """Result of a run, line by line."""
    evaluation = run.extra["evaluation"]
    given_up = run.extra.get("answer_timeouts", 0)
    if given_up:
        yield f"answers: {given_up} comparisons hit their time limit and count as unequal"
    first, last = evaluation["first"], evaluation["last"]
    if "pass_at_1" in last:
        yield (
            f"{run.title}: pass@1 {first['pass_at_1']:.3f} -> {last['pass_at_1']:.3f}, "
            f"majority {first['maj_accuracy']:.3f} -> {last['maj_accuracy']:.3f}"
        )
    yield from curve_lines(evaluation)
