"""The commands of `guard-train`."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from guard_core.config import Count, Natural
from guard_core.rules import make_rule
from lab.arm_settings import arm_of
from lab.base.arms import DEMO_ARMS, arm, check_measured_rule, for_cell, with_rule
from lab.base.errors import UserError
from lab.base.roles import CHANGEABLE, having, roles_of
from lab.base.settings import from_values, to_values
from lab.base.simulated import taken
from lab.cli import arms_of
from lab.options import POSITIONAL
from lab.signals import ends_at_once
from lab.trace.manifest import CHECKPOINTS, FILE_NAME, check_new, read_manifest
from lab.trace.response import read_response
from real.measure import MeasureSettings
from real.preflight import check_lrs, check_shared, read_sources
from real.ranks import launched
from real.record.terminal import advice_when_stopped, outcome, phases_bar, runs_bar, tell
from real.settings.config import TrainConfig
from real.settings.groups import ProblemSettings, Settings, TinyTask
from real.settings.machines import Machines
from real.settings.presets import STUDIES, STUDY, table
from real.settings.resolve import settings_of
from real.settings.stored import stored_config


@dataclass(kw_only=True)
class SettingsCommand:
    """The options of all commands that write something made from settings."""

    settings: TrainConfig = field(default_factory=TrainConfig)
    config: Path | None = None
    """TOML file with settings; overrides a preset, and options given here override both."""
    quiet: bool = False
    """Draw no progress bar."""

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Defaults of the options: from the preset, the file, the arm, the rule and the profile."""
        return {"settings": settings_of(given)}


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
    """A cell of the paper, such as qwen2.5-7b/math500, or a study; see `guard-train presets`."""
    arm: str | None = None
    """Arm of the comparison: sets rule, guard and labels (ttrl, guard, frozen, srt, scope+guard,
    ...)."""
    profile: str | None = None
    """Guard profile: paper, release, off, recommended, frs, mps or rcsu."""

    def run(self) -> None:
        """Train, and say what came out."""
        if launched() is None:  # other ranks may have made it
            check_new(self.out)
        read_sources(self.settings, fetch=False)
        with ends_at_once("guard-train"):
            from real.trainer import train

        arm = self.arm and with_rule(for_cell(self.arm, self.preset), self.settings.rule)
        name = arm_of(self.settings, arm or None).name
        command = f"guard-train resume {shlex.quote(str(self.out))}"
        with advice_when_stopped(command, self.out / CHECKPOINTS):
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
        guard-train resume runs/mine --max-tokens-per-microbatch 8192 --checkpoint-minutes 10
    """

    OPTIONS: ClassVar[set[str]] = having(roles_of(TrainConfig()), *CHANGEABLE)
    SHORT: ClassVar[tuple[str, ...]] = (
        *("max_rows", "engine_memory", "engine_timeout", "restart_engine"),
        *("max_tokens_per_microbatch", "gradient_checkpointing", "offload_optimizer"),
        *("checkpoint_every", "checkpoint_minutes", "checkpoint_keep", "save_model", "log"),
        *("device", "threads"),
    )

    folder: Annotated[Path, POSITIONAL]
    """The run folder."""
    settings: TrainConfig = field(default_factory=TrainConfig)
    quiet: bool = False
    """Draw no progress bar."""

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Defaults of the options: the settings of the run."""
        folder = given["folder"]
        return {"settings": stored_config(folder)} if (folder / FILE_NAME).is_file() else {}

    def run(self) -> None:
        """Go on, and say what came out."""
        before = read_manifest(self.folder)
        with ends_at_once("guard-train"):
            from real.trainer import resume

        trace = resume(self.folder, self.settings, progress=not self.quiet)
        if trace.run == before:
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
    """A cell of the paper, such as qwen2.5-7b/math500, or a study; see `guard-train presets`."""

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Defaults of the options; the file may list arms, a study has its own."""
        study = STUDY if given.get("preset") in STUDIES else {"arms": DEMO_ARMS}
        arms, file = arms_of(given.get("config"), study["arms"])
        return {**study, "settings": settings_of(given, file=file), "arms": arms}

    def run(self) -> int:
        """Run all, and say what came out; the exit code is 1 where a run failed."""
        if (process := launched()) is not None and process.world > 1:
            raise UserError("compare: starts processes of its own; start it without torchrun")
        arms = tuple(for_cell(name, self.preset) for name in self.arms)
        with ends_at_once("guard-train"):
            from real.compare import compare

        seeds, lrs = self.seeds, self.lrs
        total = len(arms) * len(seeds) * max(1, len(lrs))
        with advice_when_stopped("the same command"), runs_bar(total, self.quiet) as report:
            lines, lost = compare(
                self.settings, self.out, arms, seeds, self.jobs, report, self.gpus_per_run, lrs
            )
        print("\n".join([*lines, f"run folders: {self.out}"]))
        for job, error in ((failed.job, failed.error) for failed in lost):
            log = f"; log: {job.log}" if job.log.exists() else ""
            print(f"failed: {job.name}: {error}{log}", file=sys.stderr)
        return int(bool(lost))


@dataclass(kw_only=True)
class MakeTinyCommand(Settings):
    """Rebuild a tiny task's starting checkpoint by supervised training, about a minute.

    Examples:
        guard-train make-tiny --out runs/tiny
        guard-train make-tiny --task collatz --seed 1 --out runs/collatz
        guard-train make-tiny --verifies --out runs/verifies
    """

    out: Path
    """Folder to make; use it with `run --model`."""
    task: TinyTask = "arithmetic"
    """Task to train on; for `--tiny-task`."""
    seed: Natural = 0
    verifies: bool = False
    """Teach the arithmetic's checkpoint to judge responses instead; for `--tiny-verifies`."""
    quiet: bool = False
    """Draw no progress bar."""

    def run(self) -> None:
        """Train the checkpoint, and say how good it is."""
        from real.tiny.pretrain import build, build_verifying

        if self.verifies:
            ProblemSettings(tiny_task=self.task, tiny_verifies=True)  # refuses other tasks
            made, judges = build_verifying(self.out, self.seed, not self.quiet)
        else:
            made, judges = build(self.out, self.seed, not self.quiet, task=self.task), None
        print(
            f"checkpoint: pass@1 {made.pass_at_1:.3f}, majority {made.maj_accuracy:.3f} "
            f"({made.n_problems} problems, {made.n_votes} votes)"
        )
        if judges is not None:
            print(
                f"verdicts: {judges.true_positive_rate:.3f} of right responses judged right, "
                f"{judges.false_positive_rate:.3f} of wrong ones"
            )
        print(f"model folder: {self.out}")


@dataclass(kw_only=True)
class ImportGgufCommand:
    """Convert a GGUF file to a model folder for `--model`, in float32.

    Examples:
        guard-train import-gguf model.gguf path/to/model
    """

    file: Annotated[Path, POSITIONAL]
    """The GGUF file."""
    out: Annotated[Path, POSITIONAL]
    """Folder to make: new or empty."""

    def run(self) -> None:
        """Convert, and say what was read."""
        from real.model.policy import import_gguf

        model = import_gguf(self.file, self.out)
        n_weights = sum(p.numel() for p in model.parameters())
        print(f"{model.config.model_type}, {n_weights / 1e6:.1f} million weights")
        print(f"model folder: {self.out}")


@dataclass(kw_only=True)
class MeasureCommand(MeasureSettings, SettingsCommand):
    """Measure a model with short responses for the simulator's policy `measured`.

    Examples:
        guard-train measure --out response.npz
        guard-train measure --growth runs/pilot --out response.npz
        guard-train measure --tiny-task collatz --responses 512 --out collatz.npz
    """

    SHORT: ClassVar[tuple[str, ...]] = (
        *("model", "problems", "tiny_task", "prompt_suffix", "n_problems", "max_response_tokens"),
        *("temperature", "device", "seed"),
    )

    out: Path
    """Response file to make; must not exist yet."""
    growth: Path | None = None
    """Run folder with many checkpoints, from which the gradients' growth is measured."""

    def run(self) -> int | None:
        """Measure, and print the size of the result."""
        from real.measure.measuring import measure_to

        with phases_bar(self.quiet) as report:
            print(measure_to(self.out, self.settings, self, self.growth, report))
        print(f"response file: {self.out}")
        return None


@dataclass(kw_only=True)
class ForecastCommand(MeasureCommand):
    """Predict arms at several learning rates before anything is trained.

    Measures the model on the problems (`guard-train measure`), then simulates every arm at every
    rate with the settings of the training run (`guard-sim compare --policy measured`). The line
    "outside of the linear range" under a table says that its arm is not to be trusted.

    Examples:
        guard-train forecast --out runs/forecast
        guard-train forecast --lrs 3e-5 1e-4 --arms ttrl memory --out runs/few
        guard-train forecast --preset smollm2/letters --model model --unit answer --out runs/letters
    """

    SHORT: ClassVar[tuple[str, ...]] = ("model", "problems", "n_problems", "epochs", "seed")

    out: Path
    """Folder for response.npz and the runs, OUT/lr-LR/ARM; the same command goes on with it."""
    preset: str | None = None
    """A cell of the paper or a study, as in `guard-train run`."""
    arms: tuple[str, ...] = ("ttrl", "guard", "memory", "recommended", "truth")
    """Arms, as in `guard-sim compare`."""
    lrs: tuple[float, ...] = (1e-4, 2e-4, 3e-4)
    """Peak learning rates."""
    replicates: Count = 16
    """Simulated runs of an arm at a rate."""

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Defaults of the options, where several rates stand in place of `--lr`."""
        return super().defaults({"lrs": cls.lrs, **given})

    def run(self) -> int | None:
        """Measure, simulate, and print a table for every rate."""
        from lab.study import check_arms

        # Before the measurement, which may take long; others may be there in a folder that is.
        arms = [for_cell(name, self.preset) for name in self.arms]
        names = [with_rule(name, self.settings.rule) for name in arms]
        check_arms(names, lambda _: self.out.exists())
        check_lrs(self.settings, self.lrs)
        check_shared(self.settings, names)
        for name in names:
            check_measured_rule(make_rule(arm(name).rule))
        response = self.out / "response.npz"
        if not response.exists():
            taken(to_values(self.settings), roles_of(self.settings), "the run to predict")
            self.out.mkdir(parents=True, exist_ok=True)
            MeasureCommand.run(replace(self, out=response))
        else:
            self._check_measured(response)
        for lr in self.lrs:
            print(f"learning rate {lr:g}", flush=True)
            words = f"compare --policy measured --lr {lr!r} --replicates {self.replicates}"
            words += f" --seed {self.settings.seed}" + " --quiet" * self.quiet
            places = ["--response", str(response), "--out", str(self.out / f"lr-{lr:g}")]
            # A process, since the trainer and the simulator never import each other.
            command = [sys.executable, "-m", "sim", *words.split(), *places, "--arms", *arms]
            if code := subprocess.run(command, check=False).returncode:
                return code
        return None

    def _check_measured(self, response: Path) -> None:
        """Refuse a measurement of other settings, or of files that have changed since."""
        with ends_at_once("guard-train"):
            from real.measure.measuring import loaded

        facts = read_response(response).facts
        settings, _, _, sources = loaded(self.settings)
        measured = from_values(facts.run, TrainConfig, ""), facts.unit, facts.growth is None
        if (
            measured != (settings, self.unit, self.growth is None)
            or not self.numbers.items() <= facts.settings.items()
        ):
            raise UserError(f"{response}: was measured with other settings; choose another --out")
        if sources != {"model": facts.model, "problems": facts.problems}:
            raise UserError(
                f"{response}: model or problems have changed since they were measured; put the old "
                "files back, or choose another --out"
            )


@dataclass(kw_only=True)
class PresetsCommand:
    """List the presets, what they set, and which numbers are the paper's.

    Examples:
        guard-train presets
    """

    def run(self) -> None:
        """Print the table."""
        print("\n".join(table()))


@dataclass(kw_only=True)
class PlanCommand(Machines):
    """Plan a run on GPUs: memory, disk, seconds a step. Needs no GPU.

    Examples:
        guard-train plan --preset qwen2.5-7b/math500 --gpus 8
        guard-train plan --preset qwen3-4b/amc --gpu a100 --gpu-memory 40 --lora-rank 16
        guard-train plan --preset qwen2.5-7b/amc --nodes 2 --gpus 8 --network 100 --fsdp-size 8
    """

    measured: Path | None = None
    """results.jsonl of benchmarks/gpu/prove.py, in place of assumed speeds."""
    settings: TrainConfig = field(default_factory=TrainConfig)
    preset: str | None = None
    """One of the paper's cells; the model's sizes are known, --model is not needed."""
    config: Path | None = None
    """TOML file with settings; options given here override it."""

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Defaults of the options, from the preset and the file."""
        return {"settings": settings_of(given, with_model=True)}

    def run(self) -> int:
        """Print the plan; the exit code is 1 where the run does not fit."""
        from real.fit import plan_lines
        from real.speed import read_measured

        measured = read_measured(self.measured) if self.measured else {}
        lines, fits = plan_lines(self.settings, self, measured)
        print("\n".join(lines))
        return int(not fits)


COMMANDS = {
    "run": RunCommand,
    "compare": CompareCommand,
    "make-tiny": MakeTinyCommand,
    "import-gguf": ImportGgufCommand,
    "measure": MeasureCommand,
    "forecast": ForecastCommand,
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
