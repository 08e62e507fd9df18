"""Settings of the guard in verl's configuration, under `guard`, and what it rules out there.

    +guard.profile=paper +guard.n_votes=64 +guard.out=RUN +guard.tau_FR=0.4

`profile` names a guard, `out` the run folder; the others are `TrainConfig`'s or `GuardConfig`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from guard_core.checks import ConfigError
from guard_core.config import GuardConfig
from guard_core.rcsu import skip_cap
from lab.errors import UserError
from lab.rule_fit import DEFAULT_GUARD
from lab.settings import from_values
from real.settings.config import TrainConfig, rule_of

AGENT = "guard_single_turn"
"""Name of the seeded agent loop."""
STREAM = "guard_stream"
"""Column of a prompt: what its responses are sampled for, a `real.settings.seeds.Stream`."""
_OF_GUARD = frozenset(field.name for field in fields(GuardConfig))
_OF_RUN = frozenset(
    {
        "answer_check", "answer_timeout", "keep_votes", "labels", "n_votes", "rule", "rule_options",
        "seed", "step_factor",
    }
)  # fmt: skip
_OWN = frozenset({"profile", "out", "probs_diff_limit"})
_MEANS = {
    "token-mean": "dapo",
    "seq-mean-token-mean": "grpo",
    "seq-mean-token-sum-norm": "dr_grpo",
}
_OFF = (False, None)
_RULED_OUT: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("algorithm.adv_estimator", ("grpo",), "the guard's two streams would replace it unseen"),
    ("algorithm.norm_adv_by_std_in_grpo", (True, None), "set +guard.advantage_scale=none instead"),
    ("algorithm.use_kl_in_reward", _OFF, "the guard pays by votes alone; take actor.use_kl_loss"),
    ("algorithm.filter_groups.enable", _OFF, "verl filters by rewards, which no vote has yet"),
    ("algorithm.rollout_correction.bypass_mode", _OFF, "leaves stale weights unseen"),
    ("actor_rollout_ref.rollout.calculate_log_probs", (True,), "else stale weights stay unseen"),
    ("actor_rollout_ref.hybrid_engine", (True, None), "asynchronous modes mix versions of weights"),
    ("actor_rollout_ref.actor.policy_loss.loss_mode", ("vanilla", "gspo", None),
     "its loss is no sum of two streams"),
    ("reward.reward_model.enable", _OFF, "the votes would replace its scores unseen"),
    ("distillation.enabled", _OFF, "the guard's loss would replace that of the teacher unseen"),
    ("trainer.critic_warmup", (0, None), "there is no critic to warm up"),
)  # fmt: skip
"""Setting of verl, the values it may have, and the reason."""


def settings_of(config: DictConfig) -> TrainConfig:
    """Return the run's settings as those of the trainer, for the supervisor and the trace.

    Raises:
        UserError: a setting is wrong, or verl is set to what the guard cannot stand beside.
    """
    for name, allowed, reason in _RULED_OUT:
        value = OmegaConf.select(config, name)
        if value not in allowed:
            raise UserError(f"{name} = {value}: {reason}; set {allowed[0]}")
    own = guard_section(config)
    for name in own.keys() - _OF_GUARD - _OF_RUN - _OWN:
        known = ", ".join(sorted(_OWN | _OF_RUN | _OF_GUARD))
        raise UserError(f"guard.{name}: no such setting; there are {known}")
    values = _of_verl(config) | {name: own[name] for name in own.keys() & _OF_RUN}
    n_trained, n_votes = values["n_samples"], values.get("n_votes", 64)
    if isinstance(n_votes, int) and n_trained > n_votes:
        raise UserError(
            f"actor_rollout_ref.rollout.n = {n_trained}: trains on more responses than vote; set "
            f"it to at most guard.n_votes = {n_votes}"
        )
    if (guard := _guard(own)) is not None:
        values["guard"] = guard.to_dict()
    settings = from_values(values, TrainConfig, "guard").settled()
    _check(settings)
    return settings


def guard_section(config: DictConfig) -> dict[str, Any]:
    """Return the settings under `guard` as plain values."""
    section = OmegaConf.select(config, "guard")
    if not isinstance(section, DictConfig | None):
        raise UserError(f"guard = {section}: must be a section, such as +guard.profile=paper")
    own: Any = {} if section is None else OmegaConf.to_container(section, resolve=True)
    return own


def adjust(config: DictConfig, settings: TrainConfig) -> None:
    """Put the guard's parts in place of verl's defaults, and `step_factor` on the learning rate."""
    rollout, reward = config.actor_rollout_ref.rollout, config.reward
    with open_dict(config):
        config.actor_rollout_ref.actor.optim.lr *= settings.step_factor
        if rollout.agent.default_agent_loop == "single_turn_agent":
            rollout.agent.default_agent_loop = AGENT
        if not reward.custom_reward_function.path:
            reward.custom_reward_function.path = "pkg://real.verl.reward"
            reward.custom_reward_function.name = "compute_score"


def _of_verl(config: DictConfig) -> dict[str, Any]:
    """Return what verl sets, under the trainer's names; the trace tells readers of it."""
    data, own, trainer = config.data, config.actor_rollout_ref, config.trainer
    actor, rollout = own.actor, own.rollout
    clips = actor.clip_ratio_low, actor.clip_ratio_high
    return {
        "model": str(own.model.path),
        "problems": str(data.train_files),
        "n_samples": rollout.n,
        "batch_size": data.train_batch_size,
        "mini_batch": actor.ppo_mini_batch_size,
        "epochs": trainer.total_epochs,
        "max_prompt_tokens": data.max_prompt_length,
        "max_response_tokens": data.max_response_length,
        "temperature": float(rollout.temperature),
        "top_p": float(rollout.top_p),
        "lr": float(actor.optim.lr),
        "weight_decay": float(actor.optim.weight_decay),
        "max_grad_norm": float(actor.optim.clip_grad),
        "loss": _MEANS.get(actor.loss_agg_mode, "dapo"),
        "kl_coef": float(actor.kl_loss_coef) if actor.use_kl_loss else 0.0,
        **{n: float(c) for n, c in zip(("clip_low", "clip_high"), clips, strict=True) if c},
        "eval_samples": rollout.val_kwargs.n,
        "prompt_suffix": "",
        # verl writes the checkpoints; the trainer's own `resume` must not take such a folder.
        "checkpoint_every": 0,
    }


def _guard(own: Mapping[str, Any]) -> GuardConfig | None:
    """Return the guard that is asked for; None for that of the rule."""
    changed = {name: own[name] for name in own.keys() & _OF_GUARD}
    if "profile" not in own and not changed:
        return None
    try:
        base = GuardConfig.profile(own["profile"]) if "profile" in own else DEFAULT_GUARD
        return GuardConfig.from_dict(base.to_dict() | changed)
    except ConfigError as error:
        raise UserError(f"guard.{error}") from error


def _check(settings: TrainConfig) -> None:
    """Refuse rules that read more than votes, and a guard that could skip whole batches."""
    rule, guard = rule_of(settings), settings.guard
    if rule.needs or rule.loss != "rewards":
        wants = ", ".join(sorted(rule.needs)) or "no rewards"
        raise UserError(
            f"guard.rule = {settings.rule}: works on {wants}, and the plugin on votes alone; take "
            "ttrl, srt, mm_upt, empo or scrl, or run it by guard-train"
        )
    if guard.brake < 1:
        raise UserError(
            f"guard.brake = {guard.brake:g}: verl has a learning rate of its own; leave it at 1"
        )
    if guard.min_share > 0 and guard.skip_by == "drop":
        raise UserError(
            f"guard.min_share = {guard.min_share:g}: could skip all problems of a batch, which "
            "verl cannot train without; take guard.skip_by = mask"
        )
    size = settings.batch_size
    if guard.rcsu and guard.skip_by == "drop" and skip_cap(size, guard) >= size:
        raise UserError(
            f"guard.skip_share = {guard.skip_share}: could skip all {size} problems of a batch, "
            "which verl cannot train without; take a smaller one"
        )
