"""verl's synchronous PPO trainer with a vote and a guard between sampling and training."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import transfer_queue as tq
import verl
from ray.exceptions import RayError
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import collate_fn
from verl.utils.debug import marked_timer

from lab.errors import UserError
from real.record.journal import Journal
from real.record.vote_rows import VoteRows
from real.settings.seeds import Stream
from real.verl.plugin.loss import PADDING, score_fields, stream_fields, two_stream_loss
from real.verl.plugin.record import evaluated, load, measured, new_manifest, opened, save
from real.verl.plugin.rows import dealt
from real.verl.plugin.servers import require_servers
from real.verl.plugin.settings import STREAM, adjust, guard_section, settings_of
from real.verl.plugin.votes import Problems, Trained, Voted
from real.verl.plugin.worker import GuardWorker

_QUEUE = "train"
"""Partition of the queue."""
STALE = "training/rollout_probs_diff"


@register_trainer("ttrl_guard")
class GuardTrainer(PPOTrainerSync):
    """verl's trainer, of which only what lies between the votes and the update is other.

    Everything goes by problem and session; after `_balance_batch` no order of rows means anything.
    """

    # verl takes a trainer of any other name for an asynchronous one.
    trainer_mode = property(lambda self: "sync", lambda self, name: None)  # type: ignore[assignment]
    worker_class: type = GuardWorker

    def __init__(self, config: Any) -> None:
        """Take verl's configuration, with the section `guard`.

        Raises:
            UserError: settings are wrong, or such as the guard cannot stand beside.
        """
        self.settings = settings_of(config)
        adjust(config, self.settings)
        super().__init__(config)
        own = guard_section(config)
        self.out = Path(own.get("out") or f"{config.trainer.default_local_dir}-guard")
        self._probs_diff_limit = float(own.get("probs_diff_limit", 0.02))
        self._saved: dict[str, Any] | None = None
        self._streams: dict[str, list[float]] = {}
        self._row: dict[str, Any] = {}

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        data: Any = self.train_dataset
        rows = data.dataframe
        truths = [(given or {}).get("ground_truth") for given in rows["reward_model"]]
        ids = [(info or {}).get("index") for info in rows["extra_info"]]
        self.problems = Problems(self.settings, ids, truths)
        self.task = ", ".join(sorted({str(name) for name in rows["data_source"]}))

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in {Role.ActorRollout, Role.ActorRolloutRef} & self.role_worker_mapping.keys():
            self.role_worker_mapping[role] = ray.remote(self.worker_class)

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps:
            given = self.config.trainer.resume_from_path
            path = given if self.config.trainer.resume_mode == "resume_path" else None
            self._saved = load(Path(path or self._checkpoint), self.problems)
            # The last evaluation was after the checkpoint: its weights are those of now.
            if self._is_evaluated(self.global_steps):
                self.config.trainer.val_before_train = True

    def on_init_end(self) -> None:
        """Give the workers the loss of both streams."""
        config = omega_conf_to_dataclass(self.config.actor_rollout_ref.actor)
        self.actor_rollout_wg.set_loss_fn(partial(two_stream_loss, config))
        super().on_init_end()

    def fit(self, agent_loop_manager: Any) -> None:
        """Train, with all that the run leaves in its folder."""
        trainer, name = self.config.trainer, self.config.actor_rollout_ref.rollout.name
        devices = f"{trainer.nnodes * trainer.n_gpus_per_node} x {trainer.device}"
        backend = f"verl {verl.__version__}, {name} on {devices}"
        manifest = new_manifest(self.settings, len(self.problems.ids), self.task, backend)
        with opened(self.out, manifest, self._saved) as folder:
            self.run, self.log = folder, Journal(folder)
            self._votes = VoteRows(self.problems.supervisor.answer_ids)
            try:
                super().fit(agent_loop_manager)
            except (RuntimeError, RayError):
                require_servers(self.llm_server_manager.get_replicas())
                raise
            finally:
                self.problems.supervisor.close()

    def on_train_begin(self) -> None:
        """Sample the votes of all problems before training, visit 0."""
        super().on_train_begin()
        if self._saved is not None:
            return
        parts: list[Voted] = []
        size, n_problems = self.config.data.train_batch_size, len(self.problems.ids)
        for start in range(0, n_problems, size):
            stop = min(start + size, n_problems)
            rows = collate_fn([self.train_dataset[place] for place in range(start, stop)])
            rows["uid"] = np.array([f"prime{i}" for i in range(start, stop)], dtype=object)
            prompts = tu.get_tensordict(rows)
            tu.assign_non_tensor_data(prompts, "global_steps", 0)
            self._submit_batch_to_rollout(self._as_votes(prompts))
            batch, _ = self.replay_buffer.sample(0, "train", stop - start)
            parts.append(self._read(batch))
            tq.kv_clear(keys=batch.keys, partition_id=_QUEUE)
        problems_P, answers_PV = (
            np.concatenate(part) for part in list(zip(*parts, strict=True))[:2]
        )
        rows = self.problems.supervisor.prime(answers_PV, {})
        self._write(Voted(problems_P, answers_PV, []), rows, {"step": 0, "epoch": 0})

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        return self._as_votes(super()._next_train_batch(num_prompts))

    def _as_votes(self, prompts: TensorDict) -> TensorDict:
        """Ask for all V votes; `rollout.n` stays K, by which verl counts its mini-batches."""
        tu.assign_non_tensor_data(prompts, "__rollout_n__", self.settings.n_votes)
        tu.assign_non_tensor_data(prompts, STREAM, int(Stream.VOTES))
        return prompts

    def _balance_batch(
        self,
        batch: KVBatchMeta,
        metrics: dict[str, Any],
        logging_prefix: str = "",
        keep_minibatch: bool = False,
    ) -> KVBatchMeta:
        """Vote, and keep the rows to train on; in place of verl's order, which mixes problems."""
        with marked_timer("grade", self.timing_raw):
            voted = self._read(batch)
        with marked_timer("guard", self.timing_raw):
            decided, trained = self.problems.visit(voted)
        position = {"step": self.global_steps, "epoch": self._epoch(self.global_steps)}
        self._write(voted, decided.rows, position)
        tokens = {k: t["response_len"] for k, t in zip(batch.keys, batch.tags, strict=True)}
        self._row = {
            **decided.quality,
            **position,
            "replicate": 0,
            "n_problems": len(voted.problems_P),
            "n_skipped": int(decided.decision.skip.sum()),
            "n_uniform": trained.n_uniform,
            "n_updates": len(trained.minis),
            "tokens": sum(tokens[key] for key in trained.keys),
            "tokens_sampled": sum(tokens.values()),
            "mean_length": float(np.mean(list(tokens.values()))),
        }
        shown = "n_skipped", "majority_ratio", "label_correct", "reward_correct"
        metrics.update({f"guard/{name}": self._row[name] for name in shown})
        for name in ("flipped", "flip_rate", "weight", "beta", "label_accuracy"):
            metrics[f"guard/{name}"] = float(np.nanmean(np.asarray(decided.rows[name], float)))
        self._streams = dict(zip(trained.keys, trained.columns.tolist(), strict=True))
        return self._kept(batch, trained)

    def _read(self, batch: KVBatchMeta) -> Voted:
        data = tq.kv_batch_get(batch.keys, _QUEUE, select_fields=["responses", "index"])
        tokens = [row.tolist() for row in data["responses"].unbind(0)]
        texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        numbers = [int(number) for number in data["index"]]
        ids = dict(zip(batch.keys, numbers, strict=True))
        voted = self.problems.read(dict(zip(batch.keys, texts, strict=True)), ids)
        lost = sum(self.settings.n_votes - len(keys) for keys in voted.keys)
        if lost:
            require_servers(self.llm_server_manager.get_replicas())
            self.log.note_faults(0, {"votes that verl lost": lost}, self.global_steps)
        return voted

    def _kept(self, batch: KVBatchMeta, trained: Trained) -> KVBatchMeta:
        """Clear all other rows from the queue, fill the mini-batches up and deal them to ranks."""
        tags, kept = dict(zip(batch.keys, batch.tags, strict=True)), set(trained.keys)
        gone = [key for key in batch.keys if key not in kept]
        if gone:
            tq.kv_clear(keys=gone, partition_id=_QUEUE)
        batch = KVBatchMeta(
            keys=list(trained.keys),
            tags=[tags[key] for key in trained.keys],
            partition_id=_QUEUE,
            fields=batch.fields,
            extra_info=batch.extra_info,
        )
        own, group = self.config.actor_rollout_ref, self.actor_rollout_wg
        size, n_rows = own.rollout.n * own.actor.ppo_mini_batch_size, len(trained.keys)
        if n_rows < size * len(trained.minis):  # a multiple of itself, so it pads to that length
            batch = upsample_batch_to_divisible_size(
                batch, size * len(trained.minis), self.tokenizer.eos_token_id
            )
        if "actor" not in group._dispatch_info:
            group._dispatch_info["actor"] = group._query_dispatch_info("actor")
        ranks = max(group._dispatch_info["actor"]) + 1
        lengths = [tag["seq_len"] for tag in batch.tags]
        batch.reorder(dealt(trained.minis, ranks, lengths, size, n_rows))
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Verl's own first, for its correction of the rollout; then both streams in its place."""
        data = tq.kv_batch_get(batch.keys, _QUEUE, select_fields=["response_mask"])
        masks = [mask.float() for mask in data["response_mask"].unbind(0)]
        columns = [self._streams.get(key, PADDING) for key in batch.keys]
        tq.kv_batch_put(batch.keys, _QUEUE, fields=score_fields(masks, columns))
        super()._compute_advantage(batch, metrics)
        # Workers get the fields that the last `put` names.
        return tq.kv_batch_put(batch.keys, _QUEUE, fields=stream_fields(masks, columns))

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        """Do verl's step, and write its row of the trace.

        Raises:
            UserError: verl did not compare the rollout's probabilities with the trainer's.
        """
        start = time.perf_counter()
        batch = super().step(metrics, timing_raw)
        self._check_weights(metrics)
        seconds = time.perf_counter() - start
        self.log.write_steps({**measured(metrics, timing_raw, seconds), **self._row})
        self.log.note(
            progress=self.global_steps / self.total_training_steps,
            answer_timeouts=self.problems.supervisor.answer_timeouts,
        )
        return batch

    def _check_weights(self, metrics: dict[str, Any]) -> None:
        if f"{STALE}_mean" not in metrics:
            raise UserError(
                f"{STALE}: missing from verl's metrics, so that stale weights of the rollout stay "
                "unseen; set actor_rollout_ref.rollout.calculate_log_probs=True"
            )
        if metrics[f"{STALE}_mean"] > self._probs_diff_limit:
            text = f"rollout_probs_diff_mean was above {self._probs_diff_limit:g}: stale weights?"
            self.log.note_faults(0, {text: 1}, self.global_steps)

    def _write(self, voted: Voted, rows: dict[str, Any], position: dict[str, int]) -> None:
        self.log.write_visits({**rows, **position})
        if self.settings.keep_votes:
            self.log.write_votes(self._votes.count(*voted[:2], visit=rows["visit"]), position)

    def _epoch(self, step: int) -> int:
        return (step - 1) // self.steps_per_epoch + 1 if step else 0

    def _is_evaluated(self, step: int) -> bool:
        every = self.config.trainer.test_freq
        return every > 0 and (step >= self.total_training_steps or step % every == 0)

    def _val_metrics_update(
        self,
        data_sources: Any,
        sample_uids: Any,
        reward_extra_infos_dict: Any,
        *rest: Any,
        **more: Any,
    ) -> dict[str, Any]:
        """Verl's metrics of an evaluation; its row of the trace is written here."""
        infos, step = reward_extra_infos_dict, self.global_steps
        if step == 0 or self._is_evaluated(step):
            scores = np.array(infos.get("acc") or infos["reward"], float)
            position = {"step": step, "epoch": self._epoch(step)}
            self.log.write_evals({**evaluated(scores, len(set(sample_uids))), **position})
        return super()._val_metrics_update(data_sources, sample_uids, infos, *rest, **more)

    @property
    def _checkpoint(self) -> str:
        return f"{self.config.trainer.default_local_dir}/global_step_{self.global_steps}"

    def _save_checkpoint(self) -> None:
        """Before verl's own, at the end of which the checkpoint becomes the latest."""
        save(Path(self._checkpoint), self.problems, self.run)
        super()._save_checkpoint()
