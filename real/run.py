"""Everything that is set up before the first response is sampled."""

from __future__ import annotations

from dataclasses import dataclass

from lab.arms import ALL_ARMS, title
from lab.arms import arm as named_arm
from lab.manifest import Manifest
from lab.settings import to_values
from real.config import TrainConfig
from real.grpo import LossConfig
from real.optimizer import OptimizerConfig, PolicyOptimizer
from real.policy import Policy, load_policy
from real.prompts import PromptSet, build_prompts
from real.rollouts import Engine, TransformersEngine
from real.sources import read_problems
from real.supervision import Supervisor
from real.tiny import CHECKPOINT


@dataclass(frozen=True, slots=True)
class Run:
    """The parts of one run."""

    config: TrainConfig
    policy: Policy
    prompts: PromptSet
    engine: Engine
    """Samples the votes."""
    eval_engine: Engine
    """Samples the responses of evaluations."""
    supervisor: Supervisor
    """Turns votes into advantages; all that knows of the guard."""
    optimizer: PolicyOptimizer

    @property
    def n_steps(self) -> int:
        """Batches of the whole run."""
        return self.config.epochs * -(-len(self.prompts) // self.config.batch_size)


def prepare(config: TrainConfig) -> Run:
    """Load the model and the problems and make all parts.

    Args:
        config: settled settings.

    Raises:
        UserError: the model or the problems are wrong.
    """
    problems = read_problems(config)
    policy = load_policy(config.model or CHECKPOINT, config.device, config.dtype)
    prompts = build_prompts(problems, config, policy)
    return Run(
        config=config,
        policy=policy,
        prompts=prompts,
        engine=_engine(config, policy, config.temperature, config.top_p),
        eval_engine=_engine(config, policy, config.eval_temperature, config.eval_top_p),
        supervisor=Supervisor(config, prompts.truths),
        optimizer=_optimizer(config, policy, len(prompts)),
    )


def new_manifest(run: Run, arm: str | None) -> Manifest:
    """The run's `run.json`; `arm` is found from the settings if None."""
    config = run.config
    name = arm or arm_of(config)
    return Manifest.new(
        "real",
        name,
        title(name),
        n_problems=len(run.prompts),
        n_votes=config.n_votes,
        config=to_values(config),
        seeds=[config.seed],
        task=run.prompts.name,
        backend=f"transformers on {run.policy.device.type}",
        extra={
            "step_factor": config.step_factor,
            "refused_steps": 0,
            "prompts_left_out": run.prompts.left_out,
            "problem_ids": [problem.id for problem in run.prompts.problems],
        },
    )


def arm_of(config: TrainConfig) -> str:
    """Name of the arm that these settings are, `custom` if they are none of `lab.arms`."""
    if config.step_factor != 1:
        plain = config.guard == named_arm("ttrl").guard and config.labels == "votes"
        return "matched" if plain else "custom"
    for name in (*ALL_ARMS, "release", "frs", "mps", "rcsu"):
        known = named_arm(name)
        if known.guard == config.guard and known.labels == config.labels:
            return name
    return "custom"


def _engine(config: TrainConfig, policy: Policy, temperature: float, top_p: float) -> Engine:
    return TransformersEngine(
        policy.model,
        max_new_tokens=config.max_response_tokens or 1,
        temperature=temperature,
        top_p=top_p,
        eos_token_ids=policy.eos_token_ids,
        pad_token_id=policy.pad_token_id,
        max_rows=config.max_rows,
    )


def _optimizer(config: TrainConfig, policy: Policy, n_problems: int) -> PolicyOptimizer:
    loss = LossConfig(
        kind=config.loss,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        temperature=config.temperature,
        max_tokens=config.max_response_tokens or 1,
        drop_uniform=config.drop_uniform,
        micro_tokens=config.micro_tokens,
    )
    settings = OptimizerConfig(
        lr=(config.lr or 0.0) * config.step_factor,
        warmup_ratio=config.warmup_ratio,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
    )
    n_full, rest = divmod(n_problems, config.batch_size)
    per_epoch = n_full * -(-config.batch_size // config.mini_batch) + -(-rest // config.mini_batch)
    return PolicyOptimizer(policy.model, loss, settings, config.epochs * per_epoch)
