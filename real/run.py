"""The start of a run: all its parts, made before the first response is sampled."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from guard_core.rules import Need
from guard_core.schedule import scheduled_steps
from lab.trace.manifest import Manifest
from real.engines.make import engine_notices, make_engine
from real.engines.rollouts import Sampling
from real.engines.token_stats import needs_stats
from real.model.allocator import grow_segments
from real.model.folder import model_folder
from real.model.policy import Policy, load_policy, pick_device
from real.model.prepare import prepare_training
from real.plan.advice import checked_engine_memory
from real.plan.model_size import multiplied
from real.plan.seconds import update_flops
from real.problems.load import read_problems
from real.problems.prompts import build_prompts
from real.ranks.distributed import ALONE, Ranks
from real.ranks.launched import local_world
from real.record.evaluation import Evaluator
from real.record.stored import manifest_of
from real.settings.config import TrainConfig, rule_of
from real.settings.machine import check_engine_tp
from real.state import Run, n_batches
from real.tiny import starting_checkpoint
from real.tiny.vocabulary import VOCABULARY_SIZE
from real.update.entropy_loss import EntropyScorer
from real.update.from_settings import loss_config, optimizer_config
from real.update.logprobs import Scorer
from real.update.optimizer import PolicyOptimizer
from real.update.reference import initial_reference
from real.vote.ahead import VoteSampler
from real.vote.decide import Supervisor
from real.vote.further import Further, Parts
from real.vote.judge import Judge, Judged
from real.vote.observe import Observer
from real.vote.refill import Refill
from real.vote.sample import Sampler
from real.vote.second import Paraphrases
from real.vote.teacher import Teacher


def prepare(
    config: TrainConfig,
    ranks: Ranks = ALONE,
    notices: Sequence[str] = (),
    logs: Path | None = None,
) -> Run:
    """Load the model and the problems and make all parts.

    Args:
        config: settled settings.
        ranks: the processes of the run; all prepare it.
        notices: to be told and kept with those of the problems.
        logs: folder for the logs of engines; they are not kept if None.

    Raises:
        UserError: the model or the problems are wrong.
    """
    check_engine_tp(config, local_world())
    rule = rule_of(config)
    problems = read_problems(config)
    tiny = starting_checkpoint(config.tiny_task, config.tiny_verifies)
    folder = model_folder(config.model) if config.model else tiny
    grow_segments(pick_device(config.device), config.engine == "vllm_inprocess")
    memory, planned = checked_engine_memory(config, folder, ranks.world)
    policy = load_policy(folder, config.device, config.dtype, config.attention, config.head_dtype)
    prepare_training(policy.model, config)
    prompts = build_prompts(problems, config, policy)
    notices = (*notices, *planned, *_notices(config, policy), *prompts.notices)
    prompts = replace(prompts, notices=notices)
    # Before the optimizer: it shards the model, of which the engine may want a whole copy.
    engine = make_engine(config, policy, folder, ranks, logs, memory)
    if memory and memory.share:
        engine.release()  # it sleeps while masters, gradients and moments are allocated
    sampling = replace(_sampling(config, config.temperature, config.top_p), stats=needs_stats(rule))
    sampler = Sampler(engine, policy, config.seed)
    supervisor = Supervisor(config, prompts.truths, ranks)
    optimizer = _optimizer(config, policy, len(prompts), ranks)
    parts = Parts(config, rule, prompts, sampler, sampling, supervisor.read, ranks)
    return Run(
        config=config,
        policy=policy,
        prompts=prompts,
        engine=engine,
        sampler=sampler,
        sampling=sampling,
        votes=VoteSampler(config, sampler, prompts, sampling),
        rule=rule,
        observer=Observer(rule, config, prompts, optimizer.scorer, ranks.share),
        supervisor=supervisor,
        further=_further(parts, n_batches(config, len(prompts))),
        refill=Refill(config),
        optimizer=optimizer,
        evaluator=Evaluator(
            config,
            sampler,
            prompts,
            supervisor.equality,
            replace(_sampling(config, config.eval_temperature, config.eval_top_p), logprobs=False),
            config.max_rows * ranks.world,
            supervisor.reads,
            optimizer.average,
        ),
        token_flops=update_flops(multiplied(policy.model), config),
        ranks=ranks,
    )


def _notices(config: TrainConfig, policy: Policy) -> list[str]:
    notices = engine_notices(config)
    if config.model is not None and config.is_tiny and len(policy.tokenizer) > VOCABULARY_SIZE:
        notices.append(
            "no problems given: the model is trained on the tiny task; name some by --problems"
        )
    return notices


def _further(parts: Parts, n_steps: int) -> Further:
    """Return the generation that the rule's needs ask for."""
    rule = parts.rule
    if Need.PARAPHRASE in rule.needs:
        return Paraphrases(parts)
    if Need.TEACHER in rule.needs:
        return Teacher(parts, n_steps)
    return Judge(rule, parts) if isinstance(rule, Judged) else Further()


def new_manifest(run: Run, arm: str | None) -> Manifest:
    """Return the run's `run.json`; `arm` is found from the settings if None."""
    device, world = run.policy.device.type, run.ranks.world
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    backend = f"{run.config.engine} on {device if world == 1 else f'{world} x {device}'}"
    facts = {
        "refused_steps": 0,
        **({"gpus": gpus} if gpus else {}),
        **run.prompts.facts(),
    }
    return manifest_of(run.config, len(run.prompts), run.prompts.name, backend, arm, facts)


def _sampling(config: TrainConfig, temperature: float, top_p: float) -> Sampling:
    return Sampling(config.max_response_tokens or 1, temperature, top_p, stop=config.stop)


def _optimizer(
    config: TrainConfig, policy: Policy, n_problems: int, ranks: Ranks
) -> PolicyOptimizer:
    loss = loss_config(config)
    scorer = EntropyScorer(policy.model) if loss.objective == "entropy" else Scorer(policy.model)
    reference = initial_reference(scorer, ranks.shard) if config.kl_coef > 0 else None
    ranks.shard(scorer, config.master_weights)
    steps = scheduled_steps(n_problems, config.batch_size, config.mini_batch)
    n_scheduled = config.epochs * sum(steps)
    return PolicyOptimizer(
        scorer, loss, optimizer_config(config), n_scheduled, ranks.share, reference
    )
