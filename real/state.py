"""The parts of a run, their state for checkpoints, and what they need of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from guard_core.rules import Rule
from lab.errors import UserError
from real.engines.rollouts import Engine, Sampling
from real.model.policy import Policy, precision_notice
from real.problems.problem import PromptSet
from real.ranks.distributed import ALONE, Ranks
from real.ranks.sharding import shard_of
from real.record.batches import batches_per_epoch, checkpoint_interval
from real.record.checkpoint import MASTER, MODEL, OPTIMIZER, State, read_file
from real.record.evaluation import Evaluator
from real.record.final_model import model_bytes
from real.record.room import check_room
from real.settings.config import TrainConfig
from real.update.optimizer import PolicyOptimizer
from real.vote.ahead import VoteSampler
from real.vote.decide import Supervisor
from real.vote.further import Further
from real.vote.observe import Observer
from real.vote.refill import Refill
from real.vote.sample import Sampler, time_notice

GUARD, ANSWERS = "guard.safetensors", "answers.json"
RULE, RULE_VALUES = "rule.safetensors", "rule.json"
VOTES, VOTES_VALUES = "votes.safetensors", "votes.json"


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
    votes: VoteSampler
    rule: Rule
    observer: Observer
    """Observes what the rule reads of the votes."""
    supervisor: Supervisor
    """Reads answers and decides on labels; all that knows of the guard."""
    further: Further
    """Samples what the rule needs in addition to the votes."""
    refill: Refill
    """Groups that wait for an update; no part of a checkpoint, which waits as well."""
    optimizer: PolicyOptimizer
    evaluator: Evaluator
    token_flops: float
    """Operations of an update per token, see `update_flops`."""
    ranks: Ranks = ALONE
    """The processes of the run, and which of them this is."""

    @property
    def n_steps(self) -> int:
        """Batches of the whole run."""
        return n_batches(self.config, len(self.prompts))


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
    further, optimizer = run.further, run.optimizer.state_tensors()
    keeps = further.values() is not None
    rule = {RULE: further.tensors(), RULE_VALUES: further.values()} if keeps else {}
    ahead = {VOTES: run.votes.tensors(), VOTES_VALUES: run.votes.values()}
    return (
        (ahead if run.votes.values() else {})
        | rule
        | {
            MODEL: {n: p for n, p in _trained(run).items() if MASTER + n not in optimizer},
            OPTIMIZER: optimizer,
            GUARD: run.supervisor.tensors(),
            ANSWERS: run.supervisor.answer_ids.to_values(),
        }
    )


def checkpoint_bytes(run: Run) -> int:
    """Return the bytes of weights and optimizer state, which make up nearly all a checkpoint."""
    weights = state_of(run)[MODEL].values()
    return sum(p.numel() * p.element_size() for p in weights) + run.optimizer.state_bytes


def restore(run: Run, folder: Path) -> None:
    """Put a newly prepared run where the checkpoint in `folder` was written.

    Raises:
        UserError: the checkpoint does not fit the model.
    """
    optimizer = read_file(folder / OPTIMIZER)
    _load_model(run, read_file(folder / MODEL), optimizer, folder)
    run.optimizer.load_state_tensors(optimizer)
    run.supervisor.restore(read_file(folder / GUARD), read_file(folder / ANSWERS))
    if run.further.values() is not None:
        run.further.restore(read_file(folder / RULE), read_file(folder / RULE_VALUES))
    if (folder / VOTES).exists():
        run.votes.restore(read_file(folder / VOTES), read_file(folder / VOTES_VALUES))


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
    least = 1 if config.checkpoint_minutes else every
    n_written = 1 - (-run.n_steps // least) if every else 0
    final = model_bytes(run.policy.model) if config.save_model else 0
    return check_room(folder, checkpoint_bytes(run), config.checkpoint_keep, n_written, final)


def n_batches(config: TrainConfig, n_problems: int) -> int:
    """Batches of a whole run."""
    return config.epochs * batches_per_epoch(config, n_problems)
