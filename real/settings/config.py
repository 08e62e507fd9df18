"""Settings of one training run, checked when they are made. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from guard_core.config import ConfigError, GuardConfig
from guard_core.rules import RULES, make_rule
from guard_core.rules.rule import Need, Rule
from lab.base.arms import DEFAULT_GUARD, OWN, check_fit, guard_of
from lab.base.errors import UserError
from lab.base.named_arms import PERMUTED, REPLAYED
from lab.base.own_rules import load_rules
from lab.base.roles import Role
from real.settings import groups


@dataclass(frozen=True, kw_only=True)
class RuleSettings(groups.Settings, group="rule"):
    """The rule that pays responses, and the guard."""

    guard: Annotated[GuardConfig, Role.ARM] = DEFAULT_GUARD
    """The guard, or `GuardConfig.off()`; if left out the paper's for plain TTRL, else none."""
    labels: Annotated[Literal["votes", "truth"], Role.ARM] = "votes"
    """Train on the guard's labels, or on the true answers: a ceiling that needs to know them."""
    treatment: Annotated[str, Role.ARM] = OWN
    """Weights, betas and skips that act: `own` are the guard's, `permuted` those of the batch dealt
    to its problems at random, and a run folder those of its run, of another seed; as controls."""
    rule: Annotated[str, Role.ARM] = "ttrl"
    """Rule that rewards the responses, by its name in `guard_core.rules`, such as srt or empo."""
    rule_options: Annotated[dict[str, bool | int | float | str], Role.ARM] = field(
        default_factory=dict, hash=False
    )
    """Settings of that rule, such as threshold of srt; those left out take its defaults."""
    rules: Annotated[tuple[str, ...], Role.ARM] = ()
    """Python files with rules of your own, which become arms (docs/rules.md)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", load_rules(self.rules))
        if self.treatment not in (OWN, PERMUTED, REPLAYED):
            object.__setattr__(self, "treatment", str(Path(self.treatment).resolve()))
        object.__setattr__(self, "guard", guard_of(self.guard, RULES.get(self.rule)))
        super().__post_init__()

    def _check(self) -> None:
        check_fit(rule_of(self), self.guard, self.labels)


def rule_of(config: RuleSettings) -> Rule:
    """Return the run's rule."""
    try:
        return make_rule(config.rule, config.rule_options)
    except ConfigError as error:
        raise UserError(str(error)) from error


def needs_stats(rule: Rule) -> bool:
    """Return whether the rule reads token entropies or certainties, which engines can give."""
    return bool(rule.needs & {Need.ENTROPY, Need.CERTAINTY})


@dataclass(frozen=True, kw_only=True)
class TrainConfig(
    groups.MachineSettings,
    groups.CheckpointSettings,
    groups.EvalSettings,
    groups.UpdateSettings,
    groups.EngineSettings,
    groups.TaskSettings,
    RuleSettings,
):
    """One run of majority-vote GRPO, with or without the guard.

    The defaults run the embedded tiny task. Settings that are None take the value that `settled`
    gives them: one for the tiny task, another for problems from a file.
    """

    GROUPS: ClassVar[dict[str, str]]
    """First field of every group of settings, and the group's name."""
    SHORT: ClassVar[tuple[str, ...]] = (
        *("model", "problems", "prompt_suffix"),
        *("n_votes", "n_samples", "max_response_tokens", "temperature", "engine"),
        *("epochs", "batch_size", "lr", "kl_coef", "seed"),
    )
    """Settings that most people set, which `--help` shows."""

    def _check(self) -> None:
        if self.max_num_gen_batches > 1 and (self.async_level or not self.drop_uniform):
            raise UserError("max_num_gen_batches > 1: needs drop_uniform, and votes not ahead")
        if self.flips_below is not None and self.epochs < 2:
            raise UserError("flips_below: is looked at after visit 2, and epochs = 1; raise epochs")
        rule = rule_of(self)
        if rule.loss == "entropy":
            for name in ("drop_uniform", "kl_coef", "tis_cap", "old_logprobs", "async_level"):
                if getattr(self, name) not in (None, 0, "engine"):
                    raise UserError(
                        f"{name} = {getattr(self, name)}: rule {rule.name} has neither rewards nor "
                        "ratios; leave it out"
                    )
        if Need.VERDICTS in rule.needs and self.is_tiny and not self.tiny_verifies:
            raise UserError(
                f"rule = {rule.name!r}: the model of the tiny task cannot judge a response; take "
                "the one that was taught it with --tiny-verifies, or a language model that follows "
                "instructions with --model and --problems"
            )

    def settled(self) -> TrainConfig:
        """Return the run with a value in every setting that task and model decide."""
        tiny, small = self.is_tiny, self.is_tiny or self.model == groups.EMBEDDED
        chosen = {
            "prompt_suffix": "" if small else groups.BOX_REQUEST,
            "max_response_tokens": 22 if small else 1024,
            "lr": 3e-4 if small else 5e-7,
            "n_problems": 64 if tiny else None,
            "threads": 1 if small else None,
            "save_model": not small,
            "answer_check": "strings" if tiny else "math",
            "engine": "transformers",
            "dtype": "float32",
        }
        missing = {n: v for n, v in chosen.items() if getattr(self, n) in (None, "auto")}
        settled = replace(self, **missing)
        rounds = not settled.engine_kind.native and settled.dtype == "bfloat16"
        adapters = rounds and settled.engine_kind.adapters and settled.lora_rank > 0
        capped = rounds and rule_of(self).loss != "entropy"
        # 2 as in verl (`rollout_is_threshold`).
        chosen = {"engine_adapters": adapters, "tis_cap": 2.0 if capped else 0.0}
        missing = {n: v for n, v in chosen.items() if getattr(self, n) is None}
        return replace(settled, **missing)


TrainConfig.GROUPS = {
    fields(kind)[0].name: kind.group for kind in reversed(TrainConfig.__mro__[:-1]) if kind.group
}


def check_other_trainer(settings: TrainConfig, trainer: str, prefix: str = "") -> None:
    """Refuse rules that read more than votes, and what another project's trainer cannot follow."""
    rule, brake = rule_of(settings), settings.guard.brake.brake
    if rule.needs or rule.loss != "rewards":
        wants = ", ".join(sorted(rule.needs)) or "no rewards"
        able = [name for name, one in RULES.items() if not one.needs and one.loss == "rewards"]
        raise UserError(
            f"{prefix}rule = {settings.rule}: works on {wants}, and {trainer} gives votes alone; "
            f"take {', '.join(able)}, or run it by guard-train"
        )
    if settings.treatment == REPLAYED:
        raise UserError(
            f"{prefix}treatment = {REPLAYED}: names no run; give the folder of one of another seed"
        )
    limits = ((f"{prefix}brake", brake, 1.0), ("ema_decay", settings.ema_decay, 0.0))
    for name, value, without in limits:
        if value != without:
            raise UserError(
                f"{name} = {value:g}: {trainer} has no such thing; leave it at {without:g}, or run "
                "it by guard-train"
            )
