"""Parts of the trainer that need neither Ray nor a model."""

import random
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from tensordict import TensorDict
from test_votes import GUARD, batch, config, visit
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import TrainingWorker

import lab
import real.verl.plugin.trainer as plugin
from real.other_trainers import GuardedRun
from real.verl.plugin.trainer import GuardTrainer, MeasuringWorker

IDS = list(range(6))


class Parts(GuardTrainer):
    """A trainer without verl's parts."""

    def __init__(self):
        self.settings = config(batch_size=6, mini_batch=2, guard=GUARD.set(min_share=0.6))
        self.run = GuardedRun(self.settings, IDS, [None] * 6)
        self.global_steps, self.total_training_steps = 1, 9
        self._place_of = {index: index for index in IDS}
        actor = SimpleNamespace(ppo_epochs=2)
        self.config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(actor=actor))

    def step_after(self, paid):
        self._paid = paid
        self.step({}, {})

    def read(self, texts, n_problems):
        self.tokenizer = SimpleNamespace(batch_decode=lambda *_, **__: list(texts.values()))
        return self._read(SimpleNamespace(keys=list(texts)), n_problems)

    def _require_servers(self):
        """All are there."""


@pytest.fixture
def trainer():
    return Parts()


def test_a_step_that_is_left_out_counts_as_0_in_the_norm_of_the_update(
    trainer, monkeypatch, tmp_path
):
    """verl gives the mean over the steps that it makes, in two passes over the mini-batches."""
    given = {"actor/update_norm": 3.0, "actor/lr": 1.0}
    monkeypatch.setattr(PPOTrainerSync, "step", lambda self, metrics, times: metrics.update(given))
    rng, made = random.Random(0), []
    with trainer.run.opened(tmp_path / "run", "tiny", "verl"):
        for _ in range(6):
            paid = visit(trainer.run, IDS, batch(rng, IDS))
            made.append(len(paid.minis))
            trainer.step_after(paid)
    assert len({*made}) > 1
    steps = lab.load(tmp_path / "run").steps
    assert steps["update_norm"].tolist() == made
    assert steps["n_updates"].tolist() == [2 * n for n in made]


def test_votes_of_a_problem_that_verl_lost_whole_are_counted(trainer, monkeypatch, tmp_path):
    texts, numbers = batch(random.Random(0), [0, 1])
    data = {"responses": torch.zeros(len(texts), 1), "index": list(numbers.values())}
    monkeypatch.setattr(plugin.tq, "kv_batch_get", lambda *_, **__: data)
    with trainer.run.opened(tmp_path / "run", "tiny", "verl"):
        trainer.run.prime([])
        assert trainer.read(texts, 3).problems_P.tolist() == [0, 1]
    faults = lab.load(tmp_path / "run").run.extra["faults"]
    assert faults == {"votes that verl lost": [8, 1, 1]}


def test_rows_that_fill_up_a_mini_batch_are_in_no_denominator(monkeypatch, tmp_path):
    """In verl's `global_batch_size`, by which losses that are means over responses divide."""
    seen = []
    monkeypatch.setattr(
        TrainingWorker, "train_batch", lambda self, data: seen.append(data["global_batch_size"])
    )
    monkeypatch.setattr(plugin, "get_device_id", lambda: "cpu")
    worker = MeasuringWorker.__new__(MeasuringWorker)
    worker.engine = SimpleNamespace(get_data_parallel_group=lambda: None)
    rows = [torch.tensor(row) for row in ([1, 1, 1], [0], [1, 0], [0])]
    masks = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    data = TensorDict({"loss_mask": masks}, batch_size=4)
    tu.assign_non_tensor(data, global_batch_size=4)
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/meet")
    try:
        worker.train_batch(data)
    finally:
        dist.destroy_process_group()
    assert seen == [2]
