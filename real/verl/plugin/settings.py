"""Settings of the guard in verl's configuration, under `guard`, and what it rules out there.

    +guard.profile=paper +guard.n_votes=64 +guard.out=RUN +guard.tau_FR=0.4

`profile` names a guard, `out` the run folder; the others are `TrainConfig`'s or `GuardConfig`'s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf, open_dict

from guard_core.config import ConfigError, GuardConfig
from lab.base.errors import UserError
from lab.base.settings import from_values
from real.settings.config import TrainConfig
from real.verl.commands import LOSSES, VERL_NAMES, check_plugin

AGENT = "guard_single_turn"
"""Name of the seeded agent loop."""
STREAM = "guard_stream"
"""Column of a prompt: what its responses are sampled for, a `real.settings.seeds.Stream`."""
_OF_GUARD = GuardConfig.__dataclass_fields__.keys()
_OF_RUN = frozenset(
    {
        "answer_check", "answer_timeout", "keep_votes", "labels", "n_votes", "rule", "rule_options",
        "seed", "step_factor",
    }
)  # fmt: skip
_READ = (
    "batch_size", "clip_high", "clip_low", "epochs", "eval_samples", "lr", "max_grad_norm",
    "max_prompt_tokens", "max_response_tokens", "mini_batch", "model", "n_samples", "temperature",
    "top_p", "warmup_ratio", "weight_decay",
)  # fmt: skip
"""Settings of the trainer that verl's configuration decides, under the same meaning."""
_SETTING = re.compile(r"(?<=\$\.)\w+|(?<![.\w])[A-Za-z]\w*(?= = )")
"""A setting that a message of `TrainConfig` names."""
_LOSS_OF = {average: loss for loss, average in LOSSES.items()}
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


class Own(NamedTuple):
    """What the section `guard` and verl's settings say of a run."""

    settings: TrainConfig
    """As those of the trainer, for the supervisor and the trace."""
    out: Path
    """Run folder."""
    probs_diff_limit: float
    """Mean difference of probabilities above which weights are reported as stale."""


def settings_of(config: DictConfig) -> Own:
    """Return the run's settings."""
    for name, allowed, reason in _RULED_OUT:
        value = OmegaConf.select(config, name)
        if value not in allowed:
            raise UserError(f"{name} = {value}: {reason}; set {allowed[0]}")
    section = OmegaConf.select(config, "guard")
    if not isinstance(section, DictConfig | None):
        raise UserError(f"guard = {section}: must be a section, such as +guard.profile=paper")
    own: Any = OmegaConf.to_container(section, resolve=True) if section else {}
    known = {"profile", "out", "probs_diff_limit"} | _OF_RUN | _OF_GUARD
    for name in own.keys() - known:
        raise UserError(f"guard.{name}: no such setting; there are {', '.join(sorted(known))}")
    limit = own.get("probs_diff_limit", 0.02)
    if not isinstance(limit, int | float) or not limit > 0:
        raise UserError(f"guard.probs_diff_limit = {limit}: must be a number above 0")
    try:
        settings = from_values(_of_verl(config) | _of_guard(own), TrainConfig, "").settled()
    except (UserError, ConfigError) as error:
        raise UserError(re.sub(_SETTING, _verls_name, str(error))) from error
    check_plugin(settings)
    return Own(settings, Path(own.get("out") or f"{config.trainer.default_local_dir}-guard"), limit)


def _verls_name(setting: re.Match[str]) -> str:
    return VERL_NAMES[setting[0]] if setting[0] in _READ else f"guard.{setting[0]}"


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
    actor = config.actor_rollout_ref.actor
    found = {name: OmegaConf.select(config, VERL_NAMES[name]) for name in _READ}
    return {
        **{name: value for name, value in found.items() if value is not None},
        "problems": str(config.data.train_files),
        "loss": _LOSS_OF.get(actor.loss_agg_mode, "dapo"),
        "kl_coef": actor.kl_loss_coef if actor.use_kl_loss else 0.0,
        "prompt_suffix": "",
        # verl writes the checkpoints; the trainer's own `resume` must not take such a folder.
        "checkpoint_every": 0,
    }


def _of_guard(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the section sets, under the trainer's names; no guard for that of the rule."""
    values, guard = ({n: own[n] for n in own.keys() & names} for names in (_OF_RUN, _OF_GUARD))
    if "profile" in own or guard:
        base = GuardConfig.profile(own.get("profile", "paper"))
        values["guard"] = GuardConfig.from_dict(base.to_dict() | guard).to_dict()
    return values
