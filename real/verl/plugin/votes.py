"""The guard in a run of verl: its settings, its votes by problem and session, its record.

Settings stand in verl's configuration under `guard`:

    +guard.profile=paper +guard.n_votes=64 +guard.out=RUN +guard.tau_FR=0.4

`profile` names a guard, `out` the run folder; the others are `TrainConfig`'s, or `GuardConfig`'s by
their short names. Rows of verl's queue are found by problem and session, never by position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf, open_dict
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

from guard_core.config import KINDS, GuardConfig
from lab.base.errors import UserError
from real.other_trainers import OF_RUN, Refusals, check_given, check_trainer, settings_from
from real.settings.config import TrainConfig
from real.verl.commands import LOSSES, VERL_NAMES, check_plugin

AGENT = "guard_single_turn"
STREAM = "guard_stream"
"""Column of a prompt: what its responses are sampled for, a `real.settings.seeds.Stream`."""
_READ = (
    "batch_size", "clip_high", "clip_low", "epochs", "eval_samples", "lr", "max_grad_norm",
    "max_prompt_tokens", "max_response_tokens", "mini_batch", "model", "n_samples", "temperature",
    "top_p", "warmup_ratio", "weight_decay",
)  # fmt: skip
"""Settings of the trainer that verl's configuration decides, under the same meaning."""
_LOSS_OF = {average: loss for loss, average in LOSSES.items()}
_OFF = (False, None)
_RULED_OUT: Refusals = {
    "algorithm.adv_estimator": (("grpo",), "the guard's two streams would replace it unseen"),
    "algorithm.norm_adv_by_std_in_grpo": ((True, None), "set +guard.advantage_scale=none instead"),
    "algorithm.use_kl_in_reward": (_OFF, "the guard pays by votes alone; take actor.use_kl_loss"),
    "algorithm.filter_groups.enable": (_OFF, "verl filters by rewards, which no vote has yet"),
    "algorithm.rollout_correction.bypass_mode": (_OFF, "leaves stale weights unseen"),
    "actor_rollout_ref.rollout.calculate_log_probs": ((True,), "else stale weights stay unseen"),
    "actor_rollout_ref.hybrid_engine": ((True, None), "asynchronous modes mix versions of weights"),
    "actor_rollout_ref.actor.policy_loss.loss_mode": (("vanilla", "gspo", None),
     "its loss is no sum of two streams"),
    "reward.reward_model.enable": (_OFF, "the votes would replace its scores unseen"),
    "distillation.enabled": (_OFF, "the guard's loss would replace that of the teacher unseen"),
    "trainer.critic_warmup": ((0, None), "there is no critic to warm up"),
}  # fmt: skip


def settings_of(config: DictConfig) -> tuple[TrainConfig, Path]:
    """Return the run's settings, and its folder."""
    check_trainer(_RULED_OUT, partial(OmegaConf.select, config))
    _check_sequences(config)
    section = OmegaConf.select(config, "guard")
    if not isinstance(section, DictConfig | None):
        raise UserError(f"guard = {section}: must be a section, such as +guard.profile=paper")
    own: Any = OmegaConf.to_container(section, resolve=True) if section else {}
    check_given(own, {"profile", "out"} | OF_RUN | KINDS.keys(), "guard.")
    names = {name: VERL_NAMES[name] for name in _READ}
    settings = settings_from(lambda: _of_verl(config) | _of_guard(own), names, "guard.")
    check_plugin(settings)
    return settings, Path(own.get("out") or f"{config.trainer.default_local_dir}-guard")


def _check_sequences(config: DictConfig) -> None:
    """Refuse GPUs that share a row without the one kernel that verl lets attend to all of it."""
    kernel = "actor_rollout_ref.model.override_config.attn_implementation"
    found = OmegaConf.select(config, kernel, default="flash_attention_2")
    for part in ("actor", "actor.fsdp_config"):
        name = f"actor_rollout_ref.{part}.ulysses_sequence_parallel_size"
        if (OmegaConf.select(config, name) or 1) > 1 and "flash" not in found:
            raise UserError(
                f"{name} > 1: under {kernel} = {found} each GPU would attend to its own part of a "
                "row alone; install flash-attn and set flash_attention_2, or take fewer GPUs"
            )


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
    }


def _of_guard(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the section sets, under the trainer's names; no guard for that of the rule."""
    values, guard = ({n: own[n] for n in own.keys() & names} for names in (OF_RUN, KINDS))
    if "profile" in own or guard:
        base = GuardConfig.profile(own.get("profile", "paper"))
        values["guard"] = base.set(**guard).to_dict()
    return values


def places_of(ids: Sequence[int | None]) -> dict[int, int]:
    """Return `extra_info.index` to the place in the data set."""
    number, n = Counter(ids).most_common(1)[0]
    if None in ids or n > 1:
        what = "missing" if None in ids else f"{number} occurs {n} times"
        raise UserError(
            f"extra_info.index: {what} in data.train_files; the guard remembers problems by "
            "it, so number them, as `guard-verl problems` does"
        )
    return {number: place for place, number in enumerate(ids) if number is not None}


def place_of(key: str) -> tuple[str, int, int]:
    """Return the problem's uid in this step, the number of the vote and the turn of a row."""
    uid, session, turn = key.rsplit("_", 2)
    return uid, int(session), int(turn)


def votes_of(keys: Iterable[str], problem_of: Mapping[str, int]) -> dict[int, list[str]]:
    """Return the keys of every problem's votes: the last turn of each session, in their order."""
    last = {place_of(key)[:2]: key for key in sorted(keys, key=place_of)}
    groups: dict[str, list[str]] = {}
    for (uid, _), key in last.items():
        groups.setdefault(uid, []).append(key)
    by_problem = {problem_of[votes[0]]: votes for votes in groups.values()}
    if len(by_problem) < len(groups):
        raise UserError(
            "data.gen_batch_size: a problem came twice in one batch; leave the setting out"
        )
    return dict(sorted(by_problem.items()))


def dealt(
    minis: Sequence[Sequence[int]], ranks: int, lengths: Sequence[int], size: int
) -> list[int]:
    """Return an order of rows in which every rank has its share of every mini-batch.

    verl gives each rank one slice of the rows, and cuts that into mini-batches; its own order, by
    length over the whole batch, would mix the problems of different mini-batches. Rows behind the
    `minis` are padding, which fills them up to `size`; the longest are dealt first, in turn.
    """
    if size % ranks:
        raise UserError(
            f"trainer.nnodes, trainer.n_gpus_per_node: {ranks} ranks cannot share the {size} rows "
            "of a mini-batch evenly; take a divisor, or set ulysses_sequence_parallel_size so that "
            "several GPUs share a row"
        )
    padding = count(sum(map(len, minis)))
    slices: list[list[int]] = [[] for _ in range(ranks)]
    for mini in minis:
        rows = [*mini, *islice(padding, size - len(mini))]
        rows.sort(key=lambda row: -lengths[row])
        for rank, part in enumerate(slices):
            part += rows[rank::ranks]
    return [row for part in slices for row in part]


_STEPS = {
    "lr": "actor/lr",
    "update_norm": "actor/update_norm",
    "loss": "actor/loss",
    "grad_norm": "actor/grad_norm",
    "clip_fraction": "actor/pg_clipfrac",
    "entropy": "actor/entropy",
    "mismatch_kl": "rollout_corr/kl",
    "seconds_rollout": "gen",
    "seconds_grade": "grade",
    "seconds_guard": "guard",
    "seconds_update": "update_actor",
    "seconds_step": "guarded_step",
}
"""Columns of the trace's steps, and the metric or timer of verl that measures them."""


def resumed_from(trainer: Any) -> Path | None:
    """Return the checkpoint that verl goes on from; None for a new run."""
    if trainer.resume_mode == "resume_path":
        return Path(trainer.resume_from_path)
    found = trainer.resume_mode == "auto" and find_latest_ckpt_path(trainer.default_local_dir)
    return Path(found) if found else None


def measured(metrics: Mapping[str, Any], timers: Mapping[str, float]) -> dict[str, float]:
    """Return the columns of a step that verl measures; NaN where it did not."""
    found = {**metrics, **timers}
    return {name: float(found.get(key, np.nan)) for name, key in _STEPS.items()}
