"""The guard in a run of verl: its settings, its votes by problem and session, its record.

Settings stand in verl's configuration under `guard`:

    +guard.profile=paper +guard.n_votes=64 +guard.out=RUN +guard.tau_FR=0.4

`profile` names a guard, `out` the run folder; the others are `TrainConfig`'s, or `GuardConfig`'s by
their short names. Rows of verl's queue are found by problem and session, never by position.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf, open_dict
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

from guard_core import PolicyStreams
from guard_core.config import KINDS, ConfigError, GuardConfig
from lab.base.errors import UserError
from lab.base.settings import from_values
from lab.trace.manifest import Manifest, locked, read_manifest
from lab.trace.trace import RunFolder
from real.answers import UNPARSEABLE
from real.record.checkpoint import Checkpoint, read_checkpoint, read_file
from real.record.journal import Ints, Visited
from real.record.resuming import cut_back
from real.settings.config import TrainConfig
from real.settings.presets import check_same
from real.verl.commands import LOSSES, VERL_NAMES, check_plugin
from real.vote.decide import Decided, Supervisor, pay

AGENT = "guard_single_turn"
STREAM = "guard_stream"
"""Column of a prompt: what its responses are sampled for, a `real.settings.seeds.Stream`."""
_OF_RUN = frozenset(
    {
        "answer_check", "keep_votes", "labels", "n_votes", "rule", "rule_options",
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


def settings_of(config: DictConfig) -> tuple[TrainConfig, Path, float]:
    """Return the run's settings, its folder, and the difference that makes weights stale."""
    for name, allowed, reason in _RULED_OUT:
        value = OmegaConf.select(config, name)
        if value not in allowed:
            raise UserError(f"{name} = {value}: {reason}; set {allowed[0]}")
    section = OmegaConf.select(config, "guard")
    if not isinstance(section, DictConfig | None):
        raise UserError(f"guard = {section}: must be a section, such as +guard.profile=paper")
    own: Any = OmegaConf.to_container(section, resolve=True) if section else {}
    known = {"profile", "out", "probs_diff_limit"} | _OF_RUN | KINDS.keys()
    for name in own.keys() - known:
        raise UserError(f"guard.{name}: no such setting; there are {', '.join(sorted(known))}")
    limit = own.get("probs_diff_limit", 0.02)
    if not isinstance(limit, int | float) or not limit > 0:
        raise UserError(f"guard.probs_diff_limit = {limit}: must be a number above 0")
    try:
        settings = from_values(_of_verl(config) | _of_guard(own), TrainConfig, "").settled()
    except (UserError, ConfigError) as error:
        names = {name: VERL_NAMES[name] for name in _READ}
        text = re.sub(_SETTING, lambda m: names.get(m[0], f"guard.{m[0]}"), str(error))
        raise UserError(text) from error
    check_plugin(settings)
    return settings, Path(own.get("out") or f"{config.trainer.default_local_dir}-guard"), limit


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
    values, guard = ({n: own[n] for n in own.keys() & names} for names in (_OF_RUN, KINDS))
    if "profile" in own or guard:
        base = GuardConfig.profile(own.get("profile", "paper"))
        values["guard"] = base.set(**guard).to_dict()
    return values


GUARD, ANSWERS, VISITS = "guard.safetensors", "answers.json", "visits.json"


class Voted(NamedTuple):
    """Votes of some problems."""

    problems_P: Ints
    """(P,) places of the problems in the data set, ascending."""
    answers_PV: Ints
    """(P, V) answer ids, -1 unparseable or never given."""
    keys: list[list[str]]
    """(P, up to V) rows of the queue, in the order of the answers."""


class Trained(NamedTuple):
    """Rows that stay in the batch."""

    keys: list[str]
    """Of the K responses of every problem that is not skipped."""
    columns: NDArray[np.float64]
    """(rows, 3) majority and minority advantage, times the problem's weight; reward, 0 or 1."""
    minis: list[range]
    """Places in `keys` of the rows of every optimizer step."""
    n_uniform: int
    """Problems of these whose advantages are all 0."""


class Problems:
    """The guard's memory of every problem and the number of its visits."""

    def __init__(
        self, config: TrainConfig, ids: Sequence[int | None], truths: Sequence[str | None]
    ) -> None:
        """Start before any vote, with (N,) `extra_info.index` and reference answers, if any."""
        number, n = Counter(ids).most_common(1)[0]
        if None in ids or n > 1:
            what = "missing" if None in ids else f"{number} occurs {n} times"
            raise UserError(
                f"extra_info.index: {what} in data.train_files; the guard remembers problems by "
                "it, so number them, as `guard-verl problems` does"
            )
        self._place_of = {number: place for place, number in enumerate(ids)}
        self.supervisor = Supervisor(config, list(truths))
        self.visits_N = np.zeros(len(ids), np.int64)

    def read(self, texts: Mapping[str, str], ids: Mapping[str, int]) -> Voted:
        """Return the votes of a batch."""
        n_votes = self.supervisor.config.n_votes
        groups = votes_of(texts, {key: self._place_of[ids[key]] for key in texts})
        answers_PV = np.full((len(groups), n_votes), UNPARSEABLE, np.int64)
        for row, (problem, keys) in enumerate(groups.items()):
            # A session that failed leaves no row; it counts as a vote for nothing, at the end.
            found = self.supervisor.answer_ids.ids(problem, [texts[key] for key in keys[:n_votes]])
            answers_PV[row, : len(found)] = found
        return Voted(np.array(list(groups), np.int64), answers_PV, list(groups.values()))

    def prime(self, batches: Iterable[Voted]) -> Visited:
        """Take in the votes of all problems before training, in batches of any order."""
        n_votes = self.supervisor.config.n_votes
        answers_NV = np.full((len(self._place_of), n_votes), UNPARSEABLE, np.int64)
        for voted in batches:
            answers_NV[voted.problems_P] = voted.answers_PV
        columns = self.supervisor.prime(answers_NV, {})
        return Visited(np.arange(len(answers_NV)), answers_NV, columns)

    def visit(self, voted: Voted) -> tuple[Decided, Trained]:
        """Record a visit of a batch's problems; returns the decision and the rows to train on."""
        self.visits_N[voted.problems_P] += 1
        supervisor, visit_P = self.supervisor, self.visits_N[voted.problems_P]
        decided = supervisor.decide(voted.problems_P, voted.answers_PV, visit_P, {})
        assert decided is not None  # only ranks that read no answers get none
        streams = pay(supervisor.rule, decided, supervisor.config.guard)
        return decided, _trained(voted, decided, streams, supervisor.config)

    def state(self) -> dict[str, Any]:
        """Return all that a resumed run needs, by the names of a checkpoint's files."""
        visits = {"ids": list(self._place_of), "visits": self.visits_N.tolist()}
        answers = self.supervisor.answer_ids.to_values()
        return {GUARD: self.supervisor.tensors(), ANSWERS: answers, VISITS: visits}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to where `state` was."""
        if state[VISITS]["ids"] != list(self._place_of):
            raise UserError(
                "data.train_files: other problems than the checkpoint's; give the old file, or "
                "start a new run"
            )
        self.supervisor.restore(state[GUARD], state[ANSWERS])
        self.visits_N = np.array(state[VISITS]["visits"], np.int64)


def _trained(
    voted: Voted, decided: Decided, streams: PolicyStreams, config: TrainConfig
) -> Trained:
    answers_PK = voted.answers_PV[:, : config.n_samples]
    rewarded_PK = (answers_PK >= 0) & (answers_PK == decided.decision.label[:, None])
    both = np.stack([streams.majority, streams.minority]) * streams.weight[:, None]
    columns_PK3 = np.stack([*both, rewarded_PK], axis=-1)
    kept = np.flatnonzero(~streams.drop)
    n_uniform = int(np.count_nonzero(~np.any(columns_PK3[kept, :, :2], axis=(1, 2))))
    own = [voted.keys[row][: config.n_samples] for row in kept.tolist()]
    n_rows = np.array([len(keys) for keys in own])
    given = np.arange(config.n_samples) < n_rows[:, None]
    mini_of_row = np.repeat(kept // config.mini_batch, n_rows)
    starts = np.flatnonzero(np.diff(mini_of_row, prepend=-1)).tolist()
    minis = [range(*part) for part in pairwise([*starts, len(mini_of_row)])]
    return Trained(list(chain(*own)), columns_PK3[kept][given], minis, n_uniform)


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


FOLDER = "guard"
_STARTED = "started"
"""Fact of a run, by which its checkpoints know its folder."""
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


@contextlib.contextmanager
def opened(
    path: Path, manifest: Manifest, config: TrainConfig, saved: Checkpoint | None
) -> Iterator[RunFolder]:
    """Make the run folder, or go on with it where a checkpoint left it."""
    if saved is None:
        manifest.extra[_STARTED] = manifest.started
    elif saved.extra.get(_STARTED) != read_manifest(path).started:
        raise UserError(
            f"{path}: not the run of the checkpoint; set +guard.out to that run's folder"
        )
    new = None if saved else RunFolder.create(path, manifest)
    with locked(path), new or cut_back(path, saved, config) as folder:
        yield folder


def resumed_from(trainer: Any) -> Path | None:
    """Return the checkpoint that verl goes on from; None for a new run."""
    if trainer.resume_mode == "resume_path":
        return Path(trainer.resume_from_path)
    found = trainer.resume_mode == "auto" and find_latest_ckpt_path(trainer.default_local_dir)
    return Path(found) if found else None


def load(checkpoint: Path, problems: Problems) -> Checkpoint:
    """Put the guard where it was at a checkpoint; returns what `opened` goes on from."""
    folder = checkpoint / FOLDER
    if not folder.is_dir():
        raise UserError(
            f"{folder}: missing; the checkpoint is none of trainer_mode=ttrl_guard, so start "
            "from its model instead, with another trainer.default_local_dir"
        )
    saved = read_checkpoint(folder)
    check_same(saved.config, problems.supervisor.config, folder)
    problems.restore({name: read_file(folder / name) for name in saved.files})
    return saved


def measured(metrics: Mapping[str, Any], timers: Mapping[str, float]) -> dict[str, float]:
    """Return the columns of a step that verl measures; NaN where it did not."""
    found = {**metrics, **timers}
    return {name: float(found.get(key, np.nan)) for name, key in _STEPS.items()}


def evaluated(scores: NDArray[np.float64], n_problems: int) -> dict[str, float]:
    """Return the columns of an evaluation by verl; pass@1 only of scores from 0 to 1."""
    is_share = scores.size and scores.min() >= 0 and scores.max() <= 1
    return {
        "replicate": 0,
        "pass_at_1": float(scores.mean()) if is_share else np.nan,
        "maj_accuracy": np.nan,
        "n_responses": len(scores) / max(1, n_problems),
    }
