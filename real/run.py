"""Everything that is set up before the first response is sampled."""

from __future__ import annotations

from dataclasses import dataclass, replace

from guard_core.schedule import scheduled_steps
from lab.arm_settings import arm_of
from lab.arms import title
from lab.settings import to_values
from lab.trace.manifest import Manifest
from real.engines.make import make_engine
from real.engines.rollouts import Engine, Sampling
from real.model.folder import model_folder
from real.model.policy import Policy, load_policy, prepare_training
from real.problems.prompts import PromptSet, build_prompts
from real.problems.sources import read_problems
from real.ranks.distributed import ALONE, Ranks
from real.settings.config import TrainConfig, needs_stats, rule_of
from real.tiny import starting_checkpoint
from real.update.entropy_loss import EntropyScorer
from real.update.grpo import MEAN_OF_LOSS, LossConfig
from real.update.logprobs import Scorer
from real.update.optimizer import OptimizerConfig, PolicyOptimizer
from real.update.reference import initial_reference
from real.vote.observing import Observer, make_observer
from real.vote.ranks import make_supervisor
from real.vote.supervision import Supervisor


@dataclass(frozen=True, slots=True)
class Run:
    """The parts of one run."""

    config: TrainConfig
    policy: Policy
    prompts: PromptSet
    engine: Engine
    """Samples the votes and the responses of evaluations."""
    sampling: Sampling
    """Of the votes."""
    eval_sampling: Sampling
    """Of evaluations."""
    supervisor: Supervisor
    """Turns votes into advantages; all that knows of the guard."""
    optimizer: PolicyOptimizer
    ranks: Ranks = ALONE
    """The processes of the run, and which of them this is."""
    observer: Observer | None = None
    """Tells the rule what it asks for; None under plain TTRL."""

    @property
    def n_steps(self) -> int:
        """Batches of the whole run."""
        return n_batches(self.config, len(self.prompts))


def prepare(config: TrainConfig, ranks: Ranks = ALONE) -> Run:
    """Load the model and the problems and make all parts.

    Args:
        config: settled settings.
        ranks: the processes of the run; all prepare it.

    Raises:
        UserError: the model or the problems are wrong.
    """
    rule = rule_of(config)
    problems = read_problems(config)
    own = starting_checkpoint(config.tiny_verifies)
    folder = model_folder(config.model) if config.model else own
    policy = load_policy(folder, config.device, config.dtype, config.attention)
    prepare_training(policy.model, config)
    prompts = build_prompts(problems, config, policy)
    # Before the optimizer: it shards the model, of which the engine may want a whole copy.
    engine = make_engine(config, policy, folder, ranks)
    sampling = _sampling(config, config.temperature, config.top_p)
    return Run(
        config=config,
        policy=policy,
        prompts=prompts,
        engine=engine,
        sampling=replace(sampling, stats=needs_stats(rule)),
        eval_sampling=_sampling(config, config.eval_temperature, config.eval_top_p),
        supervisor=make_supervisor(config, prompts.truths, ranks),
        optimizer=_optimizer(config, policy, len(prompts), ranks),
        ranks=ranks,
        observer=make_observer(config, policy, engine, n_batches(config, len(prompts))),
    )


def n_batches(config: TrainConfig, n_problems: int) -> int:
    """Batches of a whole run."""
    return config.epochs * -(-n_problems // config.batch_size)


def new_manifest(run: Run, arm: str | None) -> Manifest:
    """The run's `run.json`; `arm` is found from the settings if None."""
    config = run.config
    name = arm or arm_of(config).name
    return Manifest.new(
        "real",
        name,
        title(name),
        n_problems=len(run.prompts),
        n_votes=config.n_votes,
        config=to_values(config),
        seeds=[config.seed],
        task=run.prompts.name,
        backend=f"{config.engine} on {_devices(run)}",
        extra={
            "step_factor": config.step_factor,
            "refused_steps": 0,
            **run.prompts.facts(),
        },
    )


def _devices(run: Run) -> str:
    kind, world = run.policy.device.type, run.ranks.world
    return kind if world == 1 else f"{world} x {kind}"


def _sampling(config: TrainConfig, temperature: float, top_p: float) -> Sampling:
    return Sampling(config.max_response_tokens or 1, temperature, top_p)


def _optimizer(
    config: TrainConfig, policy: Policy, n_problems: int, ranks: Ranks
) -> PolicyOptimizer:
    rule = rule_of(config)
    loss = LossConfig(
        objective="entropy" if rule and rule.loss == "entropy" else "policy",
        kind=MEAN_OF_LOSS[config.loss],
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        temperature=config.temperature,
        max_tokens=config.max_response_tokens or 1,
        drop_uniform=config.drop_uniform,
        micro_tokens=config.micro_tokens,
        kl_coef=config.kl_coef,
    )
    settings = OptimizerConfig(
        lr=(config.lr or 0.0) * config.step_factor,
        warmup_ratio=config.warmup_ratio,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        master_weights=config.master_weights,
        max_refused=config.max_refused,
    )
    scorer = EntropyScorer(policy.model) if loss.objective == "entropy" else Scorer(policy.model)
    reference = initial_reference(scorer, ranks.shard) if config.kl_coef > 0 else None
    ranks.shard(scorer)
    per_epoch = sum(scheduled_steps(n_problems, config.batch_size, config.mini_batch))
    n_scheduled = config.epochs * per_epoch
    return PolicyOptimizer(scorer, loss, settings, n_scheduled, ranks.share, reference)
