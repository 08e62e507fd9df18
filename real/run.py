"""The parts of a run: set up before the first response is sampled, saved and restored."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from guard_core.rules import Need, Rule
from guard_core.schedule import scheduled_steps
from lab.arm_settings import arm_of
from lab.arms import title
from lab.errors import UserError
from lab.settings import to_values
from lab.trace.manifest import Manifest
from real.engines.make import engine_notices, make_engine
from real.engines.rollouts import Engine, Sampling
from real.engines.token_stats import needs_stats
from real.model.allocator import grow_segments
from real.model.folder import model_folder
from real.model.policy import Policy, load_policy, pick_device, precision_notice
from real.model.prepare import prepare_training
from real.plan.advice import checked_engine_share
from real.problems.load import read_problems
from real.problems.problem import PromptSet
from real.problems.prompts import build_prompts
from real.ranks.distributed import ALONE, Ranks
from real.ranks.sharding import shard_of
from real.record.batches import batches_per_epoch, checkpoint_interval
from real.record.checkpoint import MASTER, MODEL, OPTIMIZER, State, check_room, read_file
from real.record.evaluation import Evaluator
from real.settings.config import TrainConfig, rule_of
from real.tiny import starting_checkpoint
from real.tiny.vocabulary import VOCABULARY_SIZE
from real.update.entropy_loss import EntropyScorer
from real.update.from_settings import loss_config, optimizer_config
from real.update.logprobs import Scorer
from real.update.optimizer import PolicyOptimizer
from real.update.reference import initial_reference
from real.vote.decide import Supervisor
from real.vote.further import Further, Parts
from real.vote.judge import Judge, Judged
from real.vote.observe import Observer
from real.vote.sample import Sampler, time_notice
from real.vote.second import Paraphrases
from real.vote.teacher import Teacher

GUARD, ANSWERS = "guard.safetensors", "answers.json"
RULE, RULE_VALUES = "rule.safetensors", "rule.json"


@dataclass(frozen=True, slots=True)
class Run:
    """The parts of one run."""

    config: TrainConfig
    policy: Policy
    prompts: PromptSet
    engine: Engine
    """Samples the votes and the responses of evaluations."""
    sampler: Sampler
    """Samples by the engine, with random numbers by purpose and place."""
    sampling: Sampling
    """Of the votes."""
    rule: Rule
    observer: Observer
    """Observes what the rule reads of the votes."""
    supervisor: Supervisor
    """Reads answers and decides on labels; all that knows of the guard."""
    further: Further
    """Samples what the rule needs in addition to the votes."""
    optimizer: PolicyOptimizer
    evaluator: Evaluator
    ranks: Ranks = ALONE
    """The processes of the run, and which of them this is."""

    @property
    def n_steps(self) -> int:
        """Batches of the whole run."""
        return n_batches(self.config, len(self.prompts))


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
    rule = rule_of(config)
    problems = read_problems(config)
    tiny = starting_checkpoint(config.tiny_verifies)
    folder = model_folder(config.model) if config.model else tiny
    grow_segments(pick_device(config.device), config.engine == "vllm_inprocess")
    share = checked_engine_share(config, folder, ranks.world)
    policy = load_policy(folder, config.device, config.dtype, config.attention, config.head_dtype)
    prepare_training(policy.model, config)
    prompts = build_prompts(problems, config, policy)
    prompts = replace(prompts, notices=(*notices, *_notices(config, policy), *prompts.notices))
    # Before the optimizer: it shards the model, of which the engine may want a whole copy.
    shared = config if share is None else replace(config, engine_memory=share or None)
    engine = make_engine(shared, policy, folder, ranks, logs)
    if share:
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
        rule=rule,
        observer=Observer(rule, config, prompts, optimizer.scorer, ranks.share),
        supervisor=supervisor,
        further=_further(parts, n_batches(config, len(prompts))),
        optimizer=optimizer,
        evaluator=Evaluator(
            config,
            sampler,
            prompts,
            supervisor.equality,
            replace(_sampling(config, config.eval_temperature, config.eval_top_p), logprobs=False),
            config.max_rows * ranks.world,
            supervisor.reads,
        ),
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


def state_of(run: Run) -> State:
    """Return the run's state for checkpoints, file by file.

    model.safetensors       the trained weights, without those that are rounded from master weights
    optimizer.safetensors   AdamW's moments, master weights, the place in the schedule
    guard.safetensors       the guard's memory, (N, ...) arrays
    answers.json            answer ids of every problem
    rule.safetensors, rule.json
                            the memory of a rule's second votes, where there are any
    """
    guard = {name: torch.from_numpy(a) for name, a in run.supervisor.arrays().items()}
    further, optimizer = run.further, run.optimizer.state_tensors()
    keeps = further.values() is not None
    rule = {RULE: further.tensors(), RULE_VALUES: further.values()} if keeps else {}
    return rule | {
        MODEL: {n: p for n, p in _trained(run).items() if MASTER + n not in optimizer},
        OPTIMIZER: optimizer,
        GUARD: guard,
        ANSWERS: run.supervisor.answer_ids.to_values(),
    }


def checkpoint_bytes(run: Run) -> int:
    """Return the bytes of weights and optimizer state, which make up nearly all a checkpoint."""
    weights = state_of(run)[MODEL].values()
    return sum(p.numel() * p.element_size() for p in weights) + run.optimizer.state_bytes


def check_machine(run: Run, folder: Path) -> list[str]:
    """Return notices of what the run needs of this machine, and of what the machine offers.

    Raises:
        UserError: the disk has too little room for the run's checkpoints.
    """
    notices = [*_check_disk(run, folder), *precision_notice(run.policy)]
    if run.config.engine == "transformers" and run.ranks.world == 1:
        notices += time_notice(run.sampler, run.prompts, run.config)
    return notices


def _check_disk(run: Run, folder: Path) -> list[str]:
    config = run.config
    every = checkpoint_interval(config, len(run.prompts))
    if not every:
        return []
    n_written = 1 - (-run.n_steps // (1 if config.checkpoint_minutes else every))
    return check_room(folder, checkpoint_bytes(run), config.checkpoint_keep, n_written)


def restore(run: Run, folder: Path) -> None:
    """Put a newly prepared run where the checkpoint in `folder` was written.

    Raises:
        UserError: the checkpoint does not fit the model.
    """
    optimizer = read_file(folder / OPTIMIZER)
    _load_model(run, read_file(folder / MODEL), optimizer, folder)
    run.optimizer.load_state_tensors(optimizer)
    arrays = {name: tensor.numpy().copy() for name, tensor in read_file(folder / GUARD).items()}
    run.supervisor.restore(arrays, read_file(folder / ANSWERS))
    if run.further.values() is not None:
        run.further.restore(read_file(folder / RULE), read_file(folder / RULE_VALUES))


def _trained(run: Run) -> dict[str, Tensor]:
    """Return the weights that training changes, each once where some are shared."""
    return {n: p for n, p in run.policy.model.named_parameters() if p.requires_grad}


@torch.no_grad()
def _load_model(
    run: Run, tensors: dict[str, Tensor], optimizer: dict[str, Tensor], folder: Path
) -> None:
    """Load weights; those left out are rounded from master weights when these are loaded."""
    masters = {n for n in optimizer if n.startswith(MASTER)}
    trained = {n: p for n, p in _trained(run).items() if n in tensors or MASTER + n not in masters}
    wrong = sorted(set(trained) ^ set(tensors))
    wrong += [n for n in set(trained) & set(tensors) if trained[n].shape != tensors[n].shape]
    if wrong:
        raise UserError(f"{folder}: {len(wrong)} weights do not fit the model, {wrong[0]} for one")
    for name, parameter in trained.items():
        parameter.copy_(shard_of(tensors[name], parameter))


def n_batches(config: TrainConfig, n_problems: int) -> int:
    """Batches of a whole run."""
    return config.epochs * batches_per_epoch(config, n_problems)


def new_manifest(run: Run, arm: str | None) -> Manifest:
    """The run's `run.json`; `arm` is found from the settings if None."""
    config = run.config
    name = arm or arm_of(config).name
    device, world = run.policy.device.type, run.ranks.world
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    return Manifest.new(
        "real",
        name,
        title(name),
        n_problems=len(run.prompts),
        n_votes=config.n_votes,
        config=to_values(config),
        seeds=[config.seed],
        task=run.prompts.name,
        backend=f"{config.engine} on {device if world == 1 else f'{world} x {device}'}",
        extra={
            "step_factor": config.step_factor,
            "refused_steps": 0,
            **({"gpus": gpus} if gpus else {}),
            **run.prompts.facts(),
        },
    )


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
