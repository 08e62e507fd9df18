"""verl's synchronous PPO trainer with a vote and a guard between sampling and training."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
import verl
from omegaconf import open_dict
from ray.exceptions import RayActorError, RayError
from tensordict import TensorDict
from torch.nn.functional import pad
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import get_trainer_cls, register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path
from verl.utils.dataset.rl_dataset import collate_fn
from verl.utils.debug import marked_timer
from verl.utils.device import get_device_id
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.utils.padding import no_padding_2_padding

from lab.base.errors import UserError, first_line
from lab.trace.manifest import check_new
from real.other_trainers import MINORITY, GuardedRun, Voted, update_norm
from real.record.alarms import check_mismatch
from real.settings.seeds import Stream, request_seed
from real.verl.plugin.votes import AGENT, STEPS, STREAM, dealt, places_of, settings_of, votes_of


def two_stream_loss(
    ppo_loss: partial[Any], model_output: Any, data: Any, dp_group: Any = None
) -> tuple[Any, dict[str, Any]]:
    """Return verl's loss plus its policy term of the minority stream (paper, section 3.3).

    The clipped loss is positively homogeneous in the advantage, so that a problem's weight and
    beta sit inside both streams. `ppo_loss` is verl's, with its config; so is the result.
    """
    config = ppo_loss.keywords["config"]
    loss, metrics = ppo_loss(model_output=model_output, data=data, dp_group=dp_group)
    names = "response_mask", "old_log_probs", MINORITY, "rollout_is_weights"
    rows = data.select(*names, strict=False).to_padded_tensor()
    policy_loss: Any = get_policy_loss_fn(config.policy_loss.get("loss_mode", "vanilla"))
    second, _ = policy_loss(
        old_log_prob=rows["old_log_probs"],
        log_prob=no_padding_2_padding(model_output["log_probs"], data),
        advantages=rows[MINORITY],
        response_mask=rows["response_mask"].to(bool),
        loss_agg_mode=config.loss_agg_mode,
        config=config,
        rollout_is_weights=rows.get("rollout_is_weights", None),
    )
    return loss + second, metrics


class MeasuringWorker(TrainingWorker):
    """Has the loss of both streams, and `update_norm` in the metrics of every optimizer step."""

    def set_loss_fn(self, loss_fn: Any) -> None:
        """Take verl's loss."""
        super().set_loss_fn(partial(two_stream_loss, loss_fn))

    def train_batch(self, data: Any) -> Any:
        """Do one optimizer step; rows that only fill the mini-batch up are in no denominator."""
        rows = torch.stack([mask.any() for mask in data["loss_mask"].unbind(0)]).sum()
        rows = rows.to(get_device_id())
        torch.distributed.all_reduce(rows, group=self.engine.get_data_parallel_group())
        tu.assign_non_tensor(data, global_batch_size=int(rows))
        norms: list[float] = []
        with register_optimizer_step_post_hook(lambda done, *_: norms.append(update_norm(done))):
            output = super().train_batch(data)
        if output is not None:
            # verl leaves a step out whose gradient is not finite.
            metrics = {**tu.get(output, "metrics"), "update_norm": sum(norms)}
            tu.assign_non_tensor_data(output, "metrics", metrics)
        return output


class GuardWorker(ActorRolloutRefWorker):
    """verl's worker with the actor that measures its steps."""

    actor_worker_cls = MeasuringWorker


_QUEUE = "train"


@register_trainer("ttrl_guard")
class GuardTrainer(PPOTrainerSync):
    """verl's trainer, with another way from votes to update; rows go by problem and session."""

    # verl takes a trainer of any other name for an asynchronous one.
    trainer_mode = property(lambda self: "sync", lambda self, name: None)  # type: ignore[assignment]
    worker_class: type = GuardWorker
    actor_rollout_wg: Any  # Ray gives it the methods of its workers

    def __init__(self, config: Any) -> None:
        self.settings, self.out = settings_of(config)
        trainer = config.trainer
        latest = trainer.resume_mode == "auto" and find_latest_ckpt_path(trainer.default_local_dir)
        given = trainer.resume_mode == "resume_path" and trainer.resume_from_path
        self.resumed = Path(path) if (path := given or latest) else None
        if self.resumed is None:
            check_new(self.out)
        actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
        reward = config.reward
        with open_dict(config):  # verl's defaults give way to the guard's parts
            actor.optim.lr *= self.settings.step_factor
            # Else that of a pass's longest response, and the loss would depend on the passes.
            actor.loss_scale_factor = actor.loss_scale_factor or config.data.max_response_length
            if rollout.agent.default_agent_loop == "single_turn_agent":
                rollout.agent.default_agent_loop = AGENT
            if not reward.custom_reward_function.path:
                reward.custom_reward_function.path = "pkg://real.verl.plugin.votes"
                reward.custom_reward_function.name = "compute_score"
        super().__init__(config)

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        data: Any = self.train_dataset
        rows = data.dataframe
        truths = [(given or {}).get("ground_truth") for given in rows["reward_model"]]
        self._place_of = places_of([(info or {}).get("index") for info in rows["extra_info"]])
        prompts = rows[self.config.data.prompt_key]
        self.run = GuardedRun(self.settings, list(self._place_of), truths, prompts)
        if self.resumed:
            self.run.load(self.resumed)
        self.task = ", ".join(sorted({str(name) for name in rows["data_source"]}))

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in {Role.ActorRollout, Role.ActorRolloutRef} & self.role_worker_mapping.keys():
            self.role_worker_mapping[role] = ray.remote(self.worker_class)

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        trainer, step = self.config.trainer, self.global_steps
        # A resumed run makes the evaluation that follows its checkpoint, and no other.
        if step and not trainer.val_only:
            is_last, every = step >= self.total_training_steps, trainer.test_freq
            trainer.val_before_train = every > 0 and (is_last or step % every == 0)

    def fit(self, agent_loop_manager: Any) -> None:
        """Train, with all that the run leaves in its folder."""
        trainer, name = self.config.trainer, self.config.actor_rollout_ref.rollout.name
        devices = f"{trainer.nnodes * trainer.n_gpus_per_node} x {trainer.device}"
        with self.run.opened(self.out, self.task, f"verl {verl.__version__}, {name} on {devices}"):
            try:
                super().fit(agent_loop_manager)
            except (RuntimeError, RayError):
                self._require_servers()
                raise

    def on_train_begin(self) -> None:
        """Sample the votes of all problems before training, visit 0."""
        super().on_train_begin()
        if not self.resumed:
            self.run.prime(self._sampled())

    def _sampled(self) -> Iterator[Voted]:
        """Yield the votes of all problems, in batches that leave the queue again."""
        size = self.config.data.train_batch_size
        for rows in DataLoader(self.train_dataset, size, collate_fn=collate_fn):
            rows["uid"] = np.array([f"prime{index}" for index in rows["index"]], dtype=object)
            prompts = tu.get_tensordict(rows)
            tu.assign_non_tensor_data(prompts, "global_steps", 0)
            n_prompts = self._submit_batch_to_rollout(prompts)
            batch, _ = self.replay_buffer.sample(0, _QUEUE, n_prompts)
            yield self._read(batch, n_prompts)
            tq.kv_clear(keys=batch.keys, partition_id=_QUEUE)

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        """Ask for all V votes; `rollout.n` stays K, by which verl counts its mini-batches."""
        tu.assign_non_tensor_data(batch, "__rollout_n__", self.settings.n_votes)
        tu.assign_non_tensor_data(batch, STREAM, int(Stream.VOTES))
        return super()._submit_batch_to_rollout(batch)

    def _balance_batch(
        self, batch: tq.KVBatchMeta, metrics: dict[str, Any], *_: Any, **__: Any
    ) -> tq.KVBatchMeta:
        """Vote, and keep the rows to train on; in place of verl's order, which mixes problems."""
        with marked_timer("grade", self.timing_raw):
            voted = self._read(batch, self.settings.batch_size)
        tokens = {k: t["response_len"] for k, t in zip(batch.keys, batch.tags, strict=True)}
        with marked_timer("guard", self.timing_raw):
            self._paid = paid = self.run.visit(voted, tokens)
        metrics.update(paid.metrics)
        if gone := list(set(batch.keys) - set(paid.keys)):
            tq.kv_clear(keys=gone, partition_id=_QUEUE)
        size = self.settings.n_samples * self.settings.mini_batch
        # A multiple of the whole length, so that it pads to that length.
        whole: Any = upsample_batch_to_divisible_size(
            batch.select_keys(paid.keys), size * len(paid.minis), self.tokenizer.eos_token_id
        )
        ranks = max(self.actor_rollout_wg._query_dispatch_info("actor")) + 1
        whole.reorder(dealt(paid.minis, ranks, [tag["seq_len"] for tag in whole.tags], size))
        return whole

    def _read(self, batch: tq.KVBatchMeta, n_problems: int) -> Voted:
        data = tq.kv_batch_get(batch.keys, _QUEUE, select_fields=["responses", "index"])
        tokens = [row.tolist() for row in data["responses"].unbind(0)]
        texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        pairs = zip(batch.keys, data["index"], strict=True)
        votes = votes_of(batch.keys, {key: self._place_of[int(index)] for key, index in pairs})
        voted = self.run.read(dict(zip(batch.keys, texts, strict=True)), votes)
        if lost := n_problems * self.settings.n_votes - len(votes):
            self._require_servers()
            self.run.log.note_faults(0, {"votes that verl lost": lost}, self.global_steps)
        return voted

    def _require_servers(self) -> None:
        """Refuse to go on without a rollout server, whose votes every problem would lack."""
        for replica in self.llm_server_manager.get_replicas():
            for server in replica.servers:
                try:
                    ray.get(server.__ray_ready__.remote(), timeout=20)
                except RayActorError as error:
                    raise UserError(
                        f"rollout server {replica._server_address}: ended ({first_line(error)}); "
                        "see its log in Ray's, then resume the run"
                    ) from error

    def _compute_advantage(self, batch: tq.KVBatchMeta, metrics: dict[str, Any]) -> tq.KVBatchMeta:
        """Verl's own first, for its correction of the rollout; then both streams in its place."""
        super()._compute_advantage(batch, metrics)
        data = tq.kv_batch_get(batch.keys, _QUEUE, select_fields=["response_mask"])
        masks = [mask.float() for mask in data["response_mask"].unbind(0)]
        # A row without columns only fills a mini-batch up.
        rows = [self._paid.columns.get(key, np.zeros(3)).tolist() for key in batch.keys]
        last = [pad(mask.new_ones(1), (len(mask) - 1, 0)) for mask in masks]
        fields: dict[Any, Any] = {}
        places = {"advantages": masks, MINORITY: masks, "rm_scores": last}
        for (name, tokens), column in zip(places.items(), zip(*rows, strict=True), strict=True):
            values = [at * value for at, value in zip(tokens, column, strict=True)]
            fields[name] = torch.nested.as_nested_tensor(values, layout=torch.jagged)
        fields["returns"] = fields["advantages"]
        # Workers get the fields that the last `put` names.
        return tq.kv_batch_put(batch.keys, _QUEUE, fields=TensorDict(fields, batch_size=len(rows)))

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> tq.KVBatchMeta:
        """Do verl's step, and write its row of the trace."""
        with marked_timer("guarded_step", timing_raw):
            batch = super().step(metrics, timing_raw)
        numbers = {**metrics, **timing_raw}
        measured = {name: float(numbers.get(key, np.nan)) for name, key in STEPS.items()}
        # verl's mean is over the optimizer steps that it makes; one that is left out counts as 0.
        n_scheduled = -(-self.settings.batch_size // self.settings.mini_batch)
        measured["update_norm"] *= len(self._paid.minis) / n_scheduled
        passes = self.config.actor_rollout_ref.actor.ppo_epochs
        measured["n_updates"] = len(self._paid.minis) * passes
        row = self.run.end_step(measured, self.global_steps / self.total_training_steps)
        check_mismatch(self.run.log, row, "bfloat16", self.settings.max_mismatch)
        return batch

    def _val_metrics_update(self, *given: Any, **more: Any) -> dict[str, Any]:
        """Verl's metrics of an evaluation; its row of the trace is written here."""
        _, uids, infos, *_ = given
        scores = np.array(infos.get("acc") or infos["reward"], float)
        self.run.evaluated(scores, len(scores) / max(1, len(set(uids))))
        return super()._val_metrics_update(*given, **more)

    def _save_checkpoint(self) -> None:
        """Before verl's own, at the end of which the checkpoint becomes the latest."""
        root = Path(self.config.trainer.default_local_dir)
        self.run.save(root / f"global_step_{self.global_steps}")
        super()._save_checkpoint()


@register(AGENT)
class SeededAgentLoop(SingleTurnAgentLoop):
    """verl's single turn, seeded by run, step, problem, session: a resumed run votes alike."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        mode = self.config.trainer.v1.trainer_mode
        if not issubclass(get_trainer_cls(mode), GuardTrainer):
            raise UserError(
                f"trainer.v1.trainer_mode = {mode}: the guard needs all votes of one version of "
                "the weights, which asynchronous modes mix; set ttrl_guard"
            )

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Sample; a vote has no reward of its own, so that none is computed."""
        place = (int(kwargs[name]) for name in ("global_steps", "index", "session_id"))
        stream = Stream(kwargs.get(STREAM, Stream.EVALUATION))
        seed = request_seed(int(self.config.get("guard", {}).get("seed", 0)), stream, *place)
        output = await super().run({**sampling_params, "seed": seed}, **kwargs)
        if stream == Stream.VOTES:
            output.reward_score = 0.0
        return output
