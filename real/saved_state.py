"""The state of a run that checkpoints hold, and its restoration.

model.safetensors       the trained weights
optimizer.safetensors   AdamW's moments, master weights, the place in the schedule
guard.safetensors       the guard's memory, (N, ...) arrays
answers.json            answer ids of every problem
rule.safetensors, rule.json
the memory of a rule's second votes, where there are any
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from lab.errors import UserError
from real.ranks.sharding import shard_of
from real.record.checkpoint import State, read_file
from real.run import Run
from real.vote.second_votes import second_of

MODEL, OPTIMIZER, GUARD = "model.safetensors", "optimizer.safetensors", "guard.safetensors"
ANSWERS = "answers.json"
RULE, RULE_VALUES = "rule.safetensors", "rule.json"


def state_of(run: Run) -> State:
    """Return the run's state, file by file."""
    guard = {name: torch.from_numpy(a) for name, a in run.supervisor.arrays().items()}
    second = second_of(run)
    rule = {} if second is None else {RULE: second.tensors(), RULE_VALUES: second.values()}
    return rule | {
        MODEL: _trained(run),
        OPTIMIZER: run.optimizer.state_tensors(),
        GUARD: guard,
        ANSWERS: run.supervisor.answer_ids.to_values(),
    }


def restore(run: Run, folder: Path) -> None:
    """Put a newly prepared run where the checkpoint in `folder` was written.

    Raises:
        UserError: the checkpoint does not fit the model.
    """
    _load_model(run, read_file(folder / MODEL), folder)
    run.optimizer.load_state_tensors(read_file(folder / OPTIMIZER))
    arrays = {name: tensor.numpy().copy() for name, tensor in read_file(folder / GUARD).items()}
    run.supervisor.restore(arrays, read_file(folder / ANSWERS))
    if (second := second_of(run)) is not None:
        second.restore(run, read_file(folder / RULE), read_file(folder / RULE_VALUES))


def _trained(run: Run) -> dict[str, Tensor]:
    """Return the weights that training changes, each once where some are shared."""
    return {n: p for n, p in run.policy.model.named_parameters() if p.requires_grad}


@torch.no_grad()
def _load_model(run: Run, tensors: dict[str, Tensor], folder: Path) -> None:
    trained = _trained(run)
    wrong = sorted(set(trained) ^ set(tensors))
    wrong += [n for n in set(trained) & set(tensors) if trained[n].shape != tensors[n].shape]
    if wrong:
        raise UserError(f"{folder}: {len(wrong)} weights do not fit the model, {wrong[0]} for one")
    for name, parameter in trained.items():
        parameter.copy_(shard_of(tensors[name], parameter))
