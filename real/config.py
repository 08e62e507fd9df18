"""Settings of one training run, checked when they are made. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args, get_type_hints

from guard_core import GuardConfig
from lab.errors import UserError

LossKind = Literal["token_mean", "sequence_mean", "constant"]
Labels = Literal["votes", "truth"]

BOX_REQUEST = "\nPlease reason step by step, and put your final answer within \\boxed{}."
"""Put behind the prompts of problem files, unless the settings name another suffix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One run of majority-vote GRPO, with or without the guard.

    The defaults run the embedded tiny task. Settings that are None take the value that `settled`
    gives them: one for the tiny task, another for problems from a file.

    Raises:
        UserError: a setting has a wrong type or lies outside its bounds.
    """

    guard: GuardConfig = field(default_factory=GuardConfig.paper)
    """The guard; `GuardConfig.off()` is plain TTRL."""
    labels: Labels = "votes"
    """Train on the guard's labels, or on the true answers: a ceiling that needs to know them."""

    model: str | None = None
    """Folder of a local Hugging Face causal language model; the tiny task's checkpoint if None."""
    problems: str | None = None
    """Problem file (.json, .jsonl); the embedded tiny task if None."""
    n_problems: int | None = None
    """Take only the first so many problems; if None 64 of the tiny task, all of a file."""
    prompt_suffix: str | None = None
    """Text put behind every prompt; if None nothing for the tiny task, a request for a box else."""
    max_prompt_tokens: int = 1024
    """Longer prompts are left out, counted and reported."""
    max_response_tokens: int | None = None
    """Responses end here at the latest; if None 22 for the tiny task, 1024 else."""

    n_votes: int = 64
    """V, responses per visit that vote."""
    n_samples: int = 32
    """K, the first of them that are trained on."""
    temperature: float = 0.6
    """Of the votes; log-probs in the loss are those at this temperature."""
    top_p: float = 1.0
    """Nucleus of the votes; below 1 the ratio in the loss ignores the cut."""
    max_rows: int = 512
    """Responses that are sampled at once; a matter of memory and speed."""

    epochs: int = 12
    """Visits of every problem."""
    batch_size: int = 8
    """P, problems per batch of rollouts."""
    mini_batch: int = 1
    """Problems per optimizer step."""
    lr: float | None = None
    """Peak learning rate; if None 3e-4 for the tiny task, the paper's 5e-7 else."""
    step_factor: float = 1.0
    """Constant factor on the learning rate, the control of matched effort."""
    warmup_ratio: float = 0.03
    """Share of optimizer steps with growing learning rate; a cosine to 0 follows."""
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this L2 norm."""

    loss: LossKind = "token_mean"
    """Mean over the mini-batch's tokens, over its responses, or Dr. GRPO's constant."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    """The probability ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    drop_uniform: bool = False
    """Problems whose rewards are all equal leave the batch, as DAPO does it."""
    micro_tokens: int = 16384
    """Tokens per forward pass; changes memory and speed, never the gradient."""

    eval_every: int = 1
    """Epochs between evaluations; 0 for only before and after training."""
    eval_samples: int = 4
    """Responses per problem for pass@1; before and after training all `n_votes` are used."""
    eval_temperature: float = 0.6
    eval_top_p: float = 1.0

    seed: int = 0
    """Fixes votes, problem order, guard draws and evaluation draws."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU where there is one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: int | None = None
    """Threads of torch; if None 1 for the tiny task (more only wait for each other), else all."""

    def __post_init__(self) -> None:
        """Check every setting."""
        for name, kind in _types().items():
            _check_type(name, getattr(self, name), kind)
        for names, rule in _BOUNDS:
            for name in names:
                rule(name, getattr(self, name))
        if self.n_samples > self.n_votes:
            raise UserError(
                f"n_samples = {self.n_samples}: must be at most n_votes = {self.n_votes}"
            )
        if self.problems is not None and self.model is None:
            raise UserError(
                f"problems = {self.problems}: needs a model, give a local folder with --model"
            )

    @property
    def is_tiny(self) -> bool:
        """The problems are those of the embedded tiny task."""
        return self.problems is None

    def settled(self) -> TrainConfig:
        """The same run with a value in every setting that the task decides."""
        tiny = self.is_tiny
        chosen = {
            "prompt_suffix": "" if tiny else BOX_REQUEST,
            "max_response_tokens": 22 if tiny else 1024,
            "lr": 3e-4 if tiny else 5e-7,
            "n_problems": 64 if tiny else None,
            "threads": 1 if tiny else None,
        }
        missing = {name: v for name, v in chosen.items() if getattr(self, name) is None}
        return replace(self, **missing)


def _types() -> dict[str, Any]:
    if not _TYPES:
        _TYPES.update(get_type_hints(TrainConfig))
    return _TYPES


_TYPES: dict[str, Any] = {}


def _check_type(name: str, value: object, kind: Any) -> None:
    options = get_args(kind)
    if options and isinstance(options[0], str):
        if value not in options:
            raise UserError(f"{name} = {value!r}: must be one of {', '.join(options)}")
        return
    if type(None) in options:
        if value is None:
            return
        kind = options[0]
    allowed = (int, float) if kind is float else (kind,)
    if not isinstance(value, allowed) or (kind is not bool and isinstance(value, bool)):
        raise UserError(f"{name} = {value!r}: must be of type {kind.__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name} = {value}: must be a finite number")


def _at_least(low: int) -> Any:
    def check(name: str, value: int | None) -> None:
        if value is not None and value < low:
            raise UserError(f"{name} = {value}: must be at least {low}")

    return check


def _above_zero(name: str, value: float | None) -> None:
    if value is not None and value <= 0:
        raise UserError(f"{name} = {value}: must be above 0")


def _unit(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise UserError(f"{name} = {value}: must lie in [0, 1]")


def _open_unit(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise UserError(f"{name} = {value}: must lie in (0, 1]")


_BOUNDS: Sequence[tuple[tuple[str, ...], Any]] = (
    (
        ("n_problems", "max_prompt_tokens", "max_response_tokens", "n_votes", "max_rows", "epochs"),
        _at_least(1),
    ),
    (("batch_size", "mini_batch", "micro_tokens", "eval_samples", "threads"), _at_least(1)),
    # One sample a group has no spread, so nothing could ever be learned from it.
    (("n_samples",), _at_least(2)),
    (("eval_every", "seed"), _at_least(0)),
    (("temperature", "eval_temperature", "lr", "step_factor", "max_grad_norm"), _above_zero),
    (("clip_high",), _above_zero),
    (("top_p", "eval_top_p", "clip_low"), _open_unit),
    (("warmup_ratio", "weight_decay"), _unit),
)
