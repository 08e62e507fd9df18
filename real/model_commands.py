"""Commands of `guard-train` about models and settings, apart from runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from lab.base.errors import UserError
from lab.options import POSITIONAL
from real.record.terminal import phases_bar
from real.settings.config import TinyTask, TrainConfig, check_tiny
from real.settings.presets import require_torch, settings_of, table

if TYPE_CHECKING:
    from real.tiny.pretrain import Accuracy, Judgement


@dataclass(kw_only=True)
class SettingsCommand:
    """The options of all commands that write something made from settings."""

    out: Path
    """Folder or file to make."""
    settings: TrainConfig = field(default_factory=TrainConfig)
    config: Path | None = None
    """TOML file with settings; overrides a preset, and options given here override both."""
    quiet: bool = False
    """Draw no progress bar."""

    @classmethod
    def defaults(cls, argv: Sequence[str]) -> dict[str, Any]:
        """Defaults of the options: from the preset, the file, the arm, the rule and the profile."""
        return {"settings": settings_of(argv)}


@dataclass(kw_only=True)
class MakeTinyCommand:
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
    seed: int = 0
    verifies: bool = False
    """Teach the arithmetic's checkpoint to judge responses instead; for `--tiny-verifies`."""
    quiet: bool = False
    """Draw no progress bar."""

    def run(self) -> None:
        """Train the checkpoint, and say how good it is."""
        require_torch()
        if self.seed < 0:
            raise UserError(f"seed = {self.seed}: must be at least 0")
        made, judges = self._build()
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

    def _build(self) -> tuple[Accuracy, Judgement | None]:
        from real.tiny.pretrain import build, build_verifying

        if self.verifies:
            check_tiny(None, self.task, verifies=True)
            return build_verifying(self.out, self.seed, not self.quiet)
        return build(self.out, self.seed, not self.quiet, task=self.task), None


@dataclass(kw_only=True)
class ImportGgufCommand:
    """Convert a GGUF file to a model folder for `--model`, in float32.

    Examples:
        guard-train import-gguf model.gguf path/to/model
    """

    file: Annotated[Path, POSITIONAL]
    """The GGUF file."""
    out: Annotated[Path, POSITIONAL]
    """Folder to make; must not exist yet."""

    def run(self) -> None:
        """Convert, and say what was read."""
        require_torch()
        from real.model.prepare import import_gguf

        model = import_gguf(self.file, self.out)
        n_weights = sum(p.numel() for p in model.parameters())
        print(f"{model.config.model_type}, {n_weights / 1e6:.1f} million weights")
        print(f"model folder: {self.out}")


@dataclass(kw_only=True)
class MeasureCommand(SettingsCommand):
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
    responses: int = 256
    """Sampled responses per problem."""
    min_p: float = 1e-3
    """Sampled responses that the model gives with less probability are left out."""
    min_novel: float = 1e-5
    """Unseen tokens are left out if their leaf has less probability."""
    weights: int = 8192
    """Weights, drawn at random, on which gradients are kept."""
    max_edges: int = 4096
    """Most edges of a problem's token tree; the unlikeliest are left out, and counted."""
    unit: Literal["token", "response", "answer"] = "token"
    """Of which gradients are measured; responses or answers for models with long responses."""
    growth: Path | None = None
    """Run folder with many checkpoints, from which the gradients' growth is measured."""

    def run(self) -> None:
        """Measure, and print the size of the result."""
        require_torch()
        from real.measure.measuring import measure_to

        names = ("responses", "min_p", "min_novel", "weights", "max_edges", "unit")
        how = {name: getattr(self, name) for name in names}
        with phases_bar(self.quiet) as report:
            print(measure_to(self.out, self.settings, how, self.growth, report))
        print(f"response file: {self.out}")


@dataclass(kw_only=True)
class PresetsCommand:
    """List the presets, what they set, and which numbers are the paper's.

    Examples:
        guard-train presets
    """

    def run(self) -> None:
        """Print the table."""
        for line in table():
            print(line)


@dataclass(kw_only=True)
class PlanCommand:
    """Plan a run on GPUs: memory of each, main memory, disk, seconds a step. Needs no GPU.

    Examples:
        guard-train plan --preset qwen2.5-7b/math500 --gpus 8
        guard-train plan --preset qwen3-4b/amc --gpu a100 --gpu-memory 40 --lora-rank 16
        guard-train plan --model path/to/model --gpus 2 --mean-tokens 1000
    """

    gpus: int = 1
    """GPUs of one machine, each with a rank of torchrun."""
    gpu: Literal["a100", "h100", "h200"] = "h100"
    """Kind of GPU: its speed, and its memory unless that is given."""
    gpu_memory: float | None = None
    """GiB of each GPU."""
    mean_tokens: int = 700
    """Mean length of a response, for the estimate of the time."""
    settings: TrainConfig = field(default_factory=TrainConfig)
    preset: str | None = None
    """One of the paper's cells; the model's sizes are known, --model is not needed."""
    config: Path | None = None
    """TOML file with settings; options given here override it."""

    @classmethod
    def defaults(cls, argv: Sequence[str]) -> dict[str, Any]:
        """Defaults of the options, from the preset and the file."""
        return {"settings": settings_of(argv, with_model=True)}

    def run(self) -> int:
        """Print the plan; the exit code is 1 where the run does not fit."""
        require_torch()
        from real.plan.fit import plan_lines

        for name in ("gpus", "gpu_memory", "mean_tokens"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 10**6:
                raise UserError(f"{name} = {value:g}: must be more than 0 and less than a million")
        machine = (self.gpu, self.gpus, self.gpu_memory)
        lines, fits = plan_lines(self.settings, *machine, self.mean_tokens)
        for line in lines:
            print(line)
        return 0 if fits else 1
