"""The commands of `guard-train` that run, and the table of all of them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from lab.arm_settings import arm_of
from lab.base.arms import DEMO_ARMS, for_cell, with_rule
from lab.base.errors import UserError
from lab.cli import arms_of
from lab.options import POSITIONAL
from lab.signals import ends_at_once
from lab.trace.manifest import FILE_NAME, check_new, read_manifest
from real.asked import check_asked, read_sources
from real.model_commands import (
    ImportGgufCommand,
    MakeTinyCommand,
    MeasureCommand,
    PlanCommand,
    PresetsCommand,
    SettingsCommand,
)
from real.ranks import launched
from real.record.stored import stored_config
from real.record.terminal import advice_when_stopped, runs_bar, tell, unread_shares
from real.record.terminal import lines as curve_lines
from real.settings.config import TrainConfig
from real.settings.presets import require_torch, settings_of

if TYPE_CHECKING:
    from lab.trace.trace import Trace
    from real.compare import ComparedArms


@dataclass(kw_only=True)
class RunCommand(SettingsCommand):
    """Train one language model on the votes of its own responses.

    Without options: the embedded tiny task under the guard of the paper.

    Examples:
        guard-train run --out runs/guard
        guard-train run --arm ttrl --lr 1e-4 --seed 1 --out runs/ttrl
        guard-train run --model path/to/model --problems problems.json --out runs/mine
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
        if launched() is None:  # other ranks may have made it
            check_new(self.out)
        read_sources(self.settings, fetch=False)
        with ends_at_once("guard-train"):
            from real.trainer import train

        cell, rule = self.preset, self.settings.rule
        asked = None if self.arm is None else with_rule(for_cell(self.arm, cell), rule)
        name = arm_of(self.settings, asked).name
        with advice_when_stopped(f"guard-train resume {shlex.quote(str(self.out))}"):
            trace = train(self.settings, self.out, progress=not self.quiet, arm=name)
        tell([*outcome(trace), f"run folder: {self.out}"])


@dataclass(kw_only=True)
class ResumeCommand:
    """Go on with a run that was stopped or killed, from its last checkpoint.

    Of the settings only those may be given that do not make it another run: where it computes,
    memory, checkpoints, logging.

    Examples:
        guard-train resume runs/mine
        guard-train resume runs/mine --device cpu --threads 4
        guard-train resume runs/mine --micro-tokens 8192 --checkpoint-minutes 10
    """

    SHORT: ClassVar[tuple[str, ...]] = (
        *("max_rows", "engine_memory", "engine_timeout", "restart_engine", "micro_tokens"),
        *("gradient_checkpointing", "offload_optimizer", "checkpoint_every"),
        *("checkpoint_minutes", "checkpoint_keep", "save_model", "log", "device", "threads"),
    )

    folder: Annotated[Path, POSITIONAL]
    """The run folder."""
    settings: TrainConfig = field(default_factory=TrainConfig)
    quiet: bool = False
    """Draw no progress bar."""

    @classmethod
    def defaults(cls, argv: Sequence[str]) -> dict[str, Any]:
        """Defaults of the options: the settings of the run."""
        folder = next((Path(word) for word in argv if (Path(word) / FILE_NAME).is_file()), None)
        return {} if folder is None else {"settings": stored_config(folder)}

    def run(self) -> None:
        """Go on, and say what came out."""
        require_torch()
        status = read_manifest(self.folder).status
        with ends_at_once("guard-train"):
            from real.trainer import resume

        trace = resume(self.folder, self.settings, progress=not self.quiet)
        if status == "finished":
            tell([f"{self.folder}: the run is finished, nothing is left to do"])
        tell([*outcome(trace), f"run folder: {self.folder}"])


@dataclass(kw_only=True)
class CompareCommand(SettingsCommand):
    """Run several arms on the same seeds, each in a process; the same command resumes them.

    Examples:
        guard-train compare --out runs/arms
        guard-train compare --arms ttrl guard srt --seeds 0 1 2 3 --lr 1e-4 --out runs/srt
        guard-train compare --model path/to/model --problems problems.json --out runs/mine
    """

    SHORT: ClassVar[tuple[str, ...]] = tuple(n for n in TrainConfig.SHORT if n != "seed")

    out: Path
    """Folder for the run folders, OUT/ARM/seed-SEED; with --lrs OUT/lr-LR/ARM/seed-SEED."""
    arms: tuple[str, ...] = DEMO_ARMS
    """Arms to run: recommended, ttrl, guard, matched, frozen, memory, memory_guard, truth; a rule
    of the field such as srt or empo; both, such as scope+guard; or an arm with settings of its own,
    such as 'guard: flip_rate=instant, theta_MR=.5'. In a file: the list `arms`."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds that every arm is run on."""
    lrs: tuple[float, ...] = ()
    """Several peak learning rates, one comparison each."""
    jobs: int | None = None
    """Runs at once, each with its own threads; if None 2, or on GPUs as many as have room."""
    gpus_per_run: int = 1
    """GPUs that each run has for itself; several are shared by ranks that torchrun starts."""
    preset: str | None = None
    """One of the paper's cells, such as qwen2.5-7b/math500; see `guard-train presets`."""

    @classmethod
    def defaults(cls, argv: Sequence[str]) -> dict[str, Any]:
        """Implement `SettingsCommand.defaults`; the file may list arms, too."""
        settings = settings_of(argv, has_arms=True)
        return {"settings": settings, "arms": arms_of(argv, DEMO_ARMS)}

    def run(self) -> int:
        """Run all, and say what came out; the exit code is 1 where a run failed."""
        require_torch()
        process = launched()
        if process is not None and process.world > 1:
            raise UserError("compare: starts processes of its own; start it without torchrun")
        arms = tuple(for_cell(name, self.preset) for name in self.arms)
        check_asked(self.settings, arms, self.seeds)
        with ends_at_once("guard-train"):
            from real.compare import compare, compare_steps
            from real.model.prepare import on_this_machine

        chosen = on_this_machine(self.settings)[0]
        settings = replace(self.settings, engine=chosen.engine, dtype=chosen.dtype)
        total = len(arms) * len(self.seeds) * max(1, len(self.lrs))
        common = (arms, self.seeds, self.jobs)
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


ABOUT = """A real GRPO trainer with majority-vote labels, on CPU or GPU.

Examples:
    guard-train run --out runs/guard
    guard-train compare --arms ttrl guard --seeds 0 1 --out runs/arms
    guard-train run --model path/to/model --problems problems.json --out runs/mine
"""


def outcome(trace: Trace) -> Iterator[str]:
    """Result of a run, line by line."""
    run = trace.run
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
    before, after = unread_shares(trace)
    yield f"responses without a readable answer: {before:.1%} -> {after:.1%}"
