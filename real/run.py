"""The parts of a run: made at its start, kept in checkpoints, checked against the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from guard_core.rules import Need
from guard_core.rules.evidence import CoVerRL
from guard_core.schedule import scheduled_steps
from lab.base.errors import UserError
from lab.trace.manifest import Manifest
from real.engines.make import engine_notices, make_engine
from real.engines.rollouts import Engine, Sampling
from real.fit import checked_engine_memory
from real.model.machine import grow_segments, in_phase, keep_freed_memory, pick_device
from real.model.policy import Policy, load_policy, lost_parts
from real.model.prepare import prepare_training, trained_parameters
from real.plan import multiplied
from real.problems.problem import PromptSet
from real.problems.prompts import build_prompts
from real.ranks.distributed import ALONE, Ranks, shard_of
from real.record.checkpoint import GUARD, MASTER, MODEL, OPTIMIZER, State, read_file
from real.record.evaluation import Evaluator
from real.record.trial import check_sampling
from real.settings.config import TrainConfig, needs_stats, rule_of
from real.settings.groups import EvalSettings
from real.settings.resolve import check_engine_tp
from real.settings.seeds import Stream, generator
from real.settings.stored import manifest_of
from real.speed import update_flops
from real.tiny import model_of, problems_of
from real.tiny.tasks import VOCABULARY_SIZE
from real.update.grpo import initial_reference
from real.update.logprobs import EntropyScorer, Scorer
from real.update.optimizer import PolicyOptimizer
from real.vote.decide import Supervisor
from real.vote.dynamic_sampling import DynamicSampler
from real.vote.extra_rollouts import ExtraRollouts
from real.vote.judge import Judge
from real.vote.sample import Parts, Sampler, VoteSampler
from real.vote.second_votes import Paraphrases, Teacher

RULE = "rule.safetensors", "rule.json"
VOTES = "votes.safetensors", "votes.json"


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of problems."""

    step: int
    epoch: int
    """From 1; also the number of these problems' visit."""
    problems_P: NDArray[np.int64]
    ends_epoch: bool
    ends_run: bool

    def is_evaluated(self, config: EvalSettings) -> bool:
        """Return whether an evaluation follows."""
        if config.eval_steps:
            return self.ends_run or self.step % config.eval_steps == 0
        every = config.eval_every
        return self.ends_run or (self.ends_epoch and every > 0 and self.epoch % every == 0)


def batches(config: TrainConfig, n_problems: int) -> Iterator[Batch]:
    """Yield all batches of a run; each epoch has a new order of the problems."""
    step, cuts = 0, range(config.batch_size, n_problems, config.batch_size)
    for epoch in range(1, config.epochs + 1):
        order_N = generator(config.seed, Stream.ORDER, epoch).permutation(n_problems)
        for problems_P in np.split(order_N, cuts):
            step += 1
            last = step % (len(cuts) + 1) == 0
            yield Batch(step, epoch, problems_P, last, last and epoch == config.epochs)


@dataclass(frozen=True)
class Run(Parts):
    """The parts of one run."""

    votes: VoteSampler
    supervisor: Supervisor
    extra_rollouts: ExtraRollouts
    dynamic_sampler: DynamicSampler
    """Groups that wait for an update; no part of a checkpoint, which waits as well."""
    optimizer: PolicyOptimizer
    evaluator: Evaluator
    token_flops: float
    """Operations of an update per token, see `update_flops`."""

    @property
    def policy(self) -> Policy:
        """The model that is trained."""
        return self.sampler.policy

    @property
    def engine(self) -> Engine:
        """What samples its responses."""
        return self.sampler.engine

    @property
    def prompt_sets(self) -> list[PromptSet]:
        """The prompts that are trained on and, if there are any, those held out."""
        return [self.prompts, *([self.evaluator.held_out] if self.evaluator.held_out else [])]


def state_of(run: Run) -> State:
    """Return the run's state for checkpoints, file by file.

    model.safetensors       the trained weights, without those that are rounded from master weights
    optimizer.safetensors   AdamW's moments, master weights, the place in the schedule
    guard.safetensors       the guard's memory, (N, ...) arrays
    answers.json            answer ids of every problem
    rule.safetensors, rule.json
                            the memory of a rule's second votes, where there are any
    votes.safetensors, votes.json
                            the votes of the next batch, where they are sampled ahead
    """
    trained, optimizer = trained_parameters(run.policy.model), run.optimizer.state_tensors()
    model = {n: p for n, p in trained.items() if MASTER + n not in optimizer}
    guard = run.supervisor.tensors(), run.supervisor.answer_ids.to_values()
    parts = {GUARD: guard, RULE: run.extra_rollouts.state(), VOTES: run.votes.state()}
    state: dict[str, Any] = {MODEL: model, OPTIMIZER: optimizer}
    for names, kept in parts.items():
        if kept is not None:
            state |= zip(names, kept, strict=True)
    return state


@torch.no_grad()
def restore(run: Run, folder: Path) -> None:
    """Put a newly prepared run where the checkpoint in `folder` was written."""
    trained = trained_parameters(run.policy.model)
    for name, weight in read_file(folder / MODEL).items():  # others are rounded from their masters
        trained[name].copy_(shard_of(weight, trained[name]))
    run.optimizer.load_state_tensors(read_file(folder / OPTIMIZER))
    parts: Any = {GUARD: run.supervisor, RULE: run.extra_rollouts, VOTES: run.votes}
    for names, part in parts.items():
        if (folder / names[1]).exists():  # tensors may be in several files
            part.restore(*(read_file(folder / name) for name in names))


def prepare(
    config: TrainConfig,
    ranks: Ranks = ALONE,
    notices: Sequence[str] = (),
    run_folder: Path | None = None,
) -> Run:
    """Load the model and the problems, start and try the engine, and assemble the run.

    Prompts that the run folder holds are taken from there; an engine's log is written there.
    """
    check_engine_tp(config, ranks.local_world)
    model_folder = model_of(config)
    device = pick_device(config.device)
    grow_segments(device, config.engine_kind.in_trainer)
    memory, planned = checked_engine_memory(config, model_folder, ranks.world)
    # vLLM refuses to start on a GPU that already holds what its plan counts on.
    place = "cpu" if config.engine_kind.own_process else config.device
    policy = load_policy(model_folder, place, config.dtype, config.attention, config.head_dtype)
    policy = replace(policy, device=device)
    keep_freed_memory(device)
    prepare_training(policy.model, config, config.seed)
    prompts, held_out = _prompts(config, policy, run_folder)
    told = *notices, *lost_parts(policy), *planned, *engine_notices(config), *prompts.notices
    prompts = replace(prompts, notices=told)
    # Before the optimizer: it shards the model, of which the engine may want a whole copy.
    engine = make_engine(config, policy, ranks, run_folder, memory)
    if memory and memory.share:
        engine.release()  # it sleeps while masters, gradients and moments are allocated
    if ranks.world == 1:  # else layers reach the GPU one by one, as they are sharded
        with in_phase("load"):
            policy.model.to(policy.device)
    if config.engine_kind.native:
        with in_phase("trial"):
            check_sampling(policy, prompts.tokens, config)
    rule, supervisor = rule_of(config), Supervisor(config, prompts.truths, ranks)
    length, stats = config.max_response_tokens or 1, needs_stats(rule)
    sampling = Sampling(length, config.temperature, config.top_p, stats=stats, stop=config.stop)
    rows, queues = config.max_rows * ranks.world, not config.engine_kind.native
    sampler = Sampler(engine, policy, config.seed, rows, queues)
    parts = Parts(config, rule, prompts, sampler, sampling, supervisor.read, ranks)
    return _assemble(parts, supervisor, held_out)


def _prompts(
    config: TrainConfig, policy: Policy, run_folder: Path | None
) -> tuple[PromptSet, PromptSet | None]:
    """Return the prompts to train on, and those held out, if any."""
    problems = problems_of(config, with_answers=config.labels == "truth")
    prompts = build_prompts(problems, config, policy, run_folder)
    if config.own_model is not None and config.is_tiny and len(policy.tokenizer) > VOCABULARY_SIZE:
        told = "no problems given: the model is trained on the tiny task; name some by --problems"
        prompts = replace(prompts, notices=(told, *prompts.notices))
    if not config.n_held_out:
        return prompts, None
    held_out = build_prompts(problems_of(config, True), config, policy, run_folder)
    if left := held_out.left_out:
        told = (*prompts.notices, f"held-out problems: {held_out.notices[-1]}")
        prompts = replace(prompts, notices=told, left_out=[*prompts.left_out, *left])
    return prompts, held_out


def _assemble(parts: Parts, supervisor: Supervisor, held_out: PromptSet | None) -> Run:
    """Make the optimizer, which shards the model, and then all that needs it."""
    config, policy, ranks = parts.config, parts.sampler.policy, parts.ranks
    kind = EntropyScorer if parts.rule.loss == "entropy" else Scorer
    scorer = kind(policy.model, device=policy.device)
    shard = partial(ranks.shard, fsdp_size=config.fsdp_size)
    reference = initial_reference(scorer, shard) if config.kl_coef > 0 else None
    shard(scorer)
    scorer.share = ranks.share
    steps = scheduled_steps(len(parts.prompts), config.batch_size, config.mini_batch)
    optimizer = PolicyOptimizer(scorer, config, config.epochs * sum(steps), reference)
    return Run(
        **vars(parts),
        votes=VoteSampler(parts),
        supervisor=supervisor,
        extra_rollouts=_extra_rollouts(parts),
        dynamic_sampler=DynamicSampler(config, len(parts.prompts)),
        optimizer=optimizer,
        evaluator=Evaluator(parts, supervisor.equality, optimizer.average, held_out),
        token_flops=update_flops(multiplied(policy.model), config),
    )


def _extra_rollouts(parts: Parts) -> ExtraRollouts:
    rule = parts.rule
    if Need.PARAPHRASE in rule.needs:
        return Paraphrases(parts)
    if Need.TEACHER in rule.needs:
        return Teacher(parts)
    if Need.VERDICTS not in rule.needs:
        return ExtraRollouts()
    if not isinstance(rule, CoVerRL):
        raise UserError(
            f"rule = {rule.name}: asks a verifier, and lacks the methods of CoVerRL by which it is "
            "trained; derive the rule from guard_core.rules.evidence.CoVerRL"
        )
    return Judge(rule, parts)


def new_manifest(run: Run, arm: str | None) -> Manifest:
    """Return the run's `run.json`; `arm` is found from the settings if None."""
    device, world = run.policy.device.type, run.ranks.world
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    backend = f"{run.config.engine} on {device if world == 1 else f'{world} x {device}'}"
    facts = {"refused_steps": 0, **({"gpus": gpus} if gpus else {}), **run.prompts.facts()}
    return manifest_of(run.config, len(run.prompts), run.prompts.name, backend, arm, **facts)
