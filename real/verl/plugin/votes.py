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
from omegaconf import DictConfig, OmegaConf

from guard_core.config import KINDS, GuardConfig
from lab.base.errors import UserError
from real.answers import Equality
from real.other_trainers import OF_RUN, Refusals, check_given, is_right, settings_from
from real.settings.config import TrainConfig
from real.verl.commands import LOSSES, VERL_NAMES, check_plugin

AGENT = "guard_single_turn"
STREAM = "guard_stream"
"""Column of a prompt: what its responses are sampled for, a `real.settings.seeds.Stream`."""
_READ = (
    "batch_size", "clip_high", "clip_low", "epochs", "eval_samples", "loss", "lr", "max_grad_norm",
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
    "actor_rollout_ref.actor.shuffle": (_OFF, "would mix the problems of different mini-batches"),
    "actor_rollout_ref.actor.policy_loss.loss_mode": (("vanilla", "gspo", None),
     "its loss is no sum of two streams"),
    "reward.reward_model.enable": (_OFF, "the votes would replace its scores unseen"),
    "trainer.v1.sampler.sync_refill_failed_groups": (
        _OFF, "problems would take the place of others, also before training"
    ),
    "distillation.enabled": (_OFF, "the guard's loss would replace that of the teacher unseen"),
    "trainer.critic_warmup": ((0, None), "there is no critic to warm up"),
}  # fmt: skip
_KERNEL = "actor_rollout_ref.model.override_config.attn_implementation"
_SHARED_ROWS: Refusals = {
    f"actor_rollout_ref.{part}.ulysses_sequence_parallel_size": (
        (1, None),
        "each GPU would attend to its own part of a row alone; install flash-attn and set "
        f"{_KERNEL} = flash_attention_2, or take fewer GPUs",
    )
    for part in ("actor", "actor.fsdp_config")
}
"""Only under flash attention verl lets GPUs that share a row attend to all of it."""


def settings_of(config: DictConfig) -> tuple[TrainConfig, Path]:
    """Return the run's settings, and its folder."""
    value_of = partial(OmegaConf.select, config)
    kernel = OmegaConf.select(config, _KERNEL, default="flash_attention_2")
    refusals = _RULED_OUT | ({} if "flash" in (kernel or "") else _SHARED_ROWS)
    section = value_of("guard")
    if not isinstance(section, DictConfig | None):
        raise UserError(f"guard = {section}: must be a section, such as +guard.profile=paper")
    given: Any = OmegaConf.to_container(section, resolve=True) if section else {}
    check_given(given, {"profile", "out"} | OF_RUN | KINDS.keys(), "guard.")
    actor = config.actor_rollout_ref.actor

    def others() -> dict[str, Any]:
        values, guard = ({n: given[n] for n in given.keys() & names} for names in (OF_RUN, KINDS))
        if "profile" in given or guard:  # else that of the rule
            base = GuardConfig.profile(given.get("profile", "paper"))
            values["guard"] = base.set(**guard).to_dict()
        return {
            "problems": str(config.data.train_files),
            "loss": _LOSS_OF.get(actor.loss_agg_mode, actor.loss_agg_mode),
            "kl_coef": actor.kl_loss_coef if actor.use_kl_loss else 0.0,
            **values,
        }

    names = {name: VERL_NAMES[name] for name in _READ}
    settings = settings_from(value_of, refusals, names, others, "guard.")
    check_plugin(settings)
    return settings, Path(given.get("out") or f"{config.trainer.default_local_dir}-guard")


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


def votes_of(keys: Iterable[str], problem_of: Mapping[str, int]) -> dict[str, int]:
    """Return the problem of every vote: of the last turn of each session, in their order."""
    last = {place_of(key)[:2]: key for key in sorted(keys, key=place_of)}
    if len({problem_of[key] for key in last.values()}) < len({uid for uid, _ in last}):
        raise UserError(
            "data.gen_batch_size: a problem came twice in one batch; leave the setting out"
        )
    return {key: problem_of[key] for key in last.values()}


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
    rows = ([*mini, *islice(padding, size - len(mini))] for mini in minis)
    order = np.array([sorted(mini, key=lambda row: -lengths[row]) for mini in rows])
    return order.reshape(len(minis), -1, ranks).transpose(2, 0, 1).ravel().tolist()


STEPS = {name: f"actor/{name}" for name in ("lr", "update_norm", "loss", "grad_norm", "entropy")}
STEPS |= {
    "clip_fraction": "actor/pg_clipfrac", "mismatch_kl": "rollout_corr/kl",
    "seconds_rollout": "gen", "seconds_grade": "grade", "seconds_guard": "guard",
    "seconds_update": "update_actor", "seconds_step": "guarded_step",
}  # fmt: skip
"""Columns of the trace's steps, and the metric or timer of verl that measures them."""
_EQUALITY = Equality()
"""Of each of verl's reward workers, with the keys of the answers that it has seen."""


def compute_score(
    data_source: str, solution_str: str, ground_truth: str | None, extra_info: Any = None, **_: Any
) -> dict[str, float | None]:
    """Return verl's reward of a response in an evaluation, and as `acc` what it shows."""
    right = is_right(solution_str, ground_truth, _EQUALITY)
    return {"score": right or 0.0, "acc": right}
