"""Settings of TRL's `GRPOConfig` with those of the guard, checked against each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trl import GRPOConfig

from guard_core import GuardConfig
from lab.base.arms import arm
from lab.base.errors import UserError
from real.other_trainers import OF_RUN, Refusals, check_given, settings_from
from real.settings.config import TrainConfig, check_other_trainer

_READ = {
    "clip_high": "epsilon_high", "clip_low": "epsilon", "eval_samples": "num_generations_eval",
    "kl_coef": "beta", "loss": "loss_type", "lr": "learning_rate",
    "mask_truncated": "mask_truncated_completions", "max_grad_norm": "max_grad_norm",
    "max_response_tokens": "max_completion_length", "n_samples": "n_samples",
    "n_votes": "num_generations", "seed": "seed", "temperature": "temperature", "top_p": "top_p",
    "weight_decay": "weight_decay",
}  # fmt: skip
"""Settings of the trainer that TRL's decide, under the same meaning."""
_RULED_OUT: Refusals = {
    "delta": ((None,), "the loss of two streams has no second bound"),
    "deepspeed": ((None,), "a step whose problems are all skipped could not be left out"),
    "entropy_coef": ((0.0,), "the loss of two streams has no such term"),
    "importance_sampling_level": (("token",), "the loss of two streams is clipped by token"),
    "off_policy_mask_threshold": ((None,), "it reads one advantage, and there are two"),
    "remove_unused_columns": ((False,), "the guard knows a row's problem by a column"),
    "scale_rewards": (("group",), "set advantage_scale of the guard instead"),
    "top_entropy_quantile": ((1.0,), "the loss of two streams takes all tokens"),
    "use_adaptive_entropy": ((False,), "the loss of two streams has no such term"),
    "use_bias_correction_kl": ((False,), "the loss of two streams has no such factor"),
    "use_liger_kernel": ((False,), "its kernel computes the loss of one stream"),
}


@dataclass
class GuardGRPOConfig(GRPOConfig):
    """TRL's settings, and the guard's; `num_generations` are the votes of a problem."""

    guard: str | dict[str, Any] | GuardConfig = "guard"
    """An arm's or a rule's name, such as ttrl, guard, memory or srt; or a guard."""
    n_samples: int | None = None
    """Responses of a problem that are trained on, the first of its votes; half of them if None."""
    use_bias_correction_kl: bool = False
    """Off, where TRL has it on: the KL term is that of the other trainers here."""
    guard_folder: str | None = None
    """Run folder of this project; `output_dir` with `-guard` if None."""
    guard_settings: dict[str, Any] = field(default_factory=dict)
    """Further settings of `real.TrainConfig`, such as answer_check, labels and rule_options."""

    def __post_init__(self) -> None:
        if isinstance(self.guard, GuardConfig):
            self.guard = self.guard.to_dict()
        self.n_samples = self.n_samples or max(2, (self.num_generations or 0) // 2)
        super().__post_init__()

    @property
    def n_updates(self) -> int:
        """Optimizer steps on the votes of one batch."""
        return self.steps_per_generation * self.num_iterations // self.gradient_accumulation_steps

    def settled(self, model: str, n_problems: int) -> TrainConfig:
        """Return the run's settings under our names; a UserError where TRL's do not fit them."""
        votes, rows = self.num_generations, self.per_device_train_batch_size
        window = rows * self.gradient_accumulation_steps
        if window % votes or rows * self.n_samples % votes:
            raise UserError(
                f"per_device_train_batch_size = {rows}: {window} rows of an optimizer step must be "
                f"whole problems of num_generations = {votes}, and their n_samples = "
                f"{self.n_samples} must fill each of its passes evenly"
            )
        of = {
            "steps_per_generation": (self.gradient_accumulation_steps, "passes of such a step"),
            "max_steps": (self.n_updates, "optimizer steps on a batch of votes"),
        }
        for name, (size, what) in of.items():
            if (number := getattr(self, name)) > 0 and number % size:
                raise UserError(f"{name} = {number}: must be a multiple of the {size} {what}")
        size = self.generation_batch_size // votes
        if n_problems < size:
            raise UserError(f"train_dataset: {n_problems} problems are no batch of {size}")
        per_epoch = self.n_updates * (n_problems // size)
        epochs = self.max_steps / per_epoch if self.max_steps > 0 else self.num_train_epochs
        if self.max_steps <= 0 and math.ceil(epochs * per_epoch) % self.n_updates:
            raise UserError(
                f"num_train_epochs = {epochs:g}: ends within the {self.n_updates} optimizer steps "
                "on a batch of votes; give whole epochs or max_steps"
            )
        computed = {
            "clip_high": self.epsilon if self.epsilon_high is None else self.epsilon_high,
            "eval_samples": self.num_generations_eval or votes,
            "epochs": math.ceil(epochs),
            "batch_size": size,
            "mini_batch": window * self.world_size // votes,
            "model": model,
            "problems": "train_dataset",
            "warmup_ratio": 0.0,
        }
        of_guard = partial(self._of_guard, computed)
        settings = settings_from(partial(getattr, self), _RULED_OUT, _READ, of_guard)
        check_other_trainer(settings, "TRL")
        return settings

    def _of_guard(self, computed: dict[str, Any]) -> dict[str, Any]:
        """Return these settings with those of the guard, which may not contradict TRL's."""
        known = (OF_RUN | {"extract"}) - {"max_mismatch"} - _READ.keys()
        check_given(self.guard_settings, known, "guard_settings.")
        values = arm(self.guard).values() if isinstance(self.guard, str) else {"guard": self.guard}
        for name in values.keys() & _READ.keys():
            if (value := getattr(self, _READ[name])) != values[name]:
                raise UserError(f"{_READ[name]} = {value}: arm {self.guard!r} needs {values[name]}")
        return computed | values | self.guard_settings
