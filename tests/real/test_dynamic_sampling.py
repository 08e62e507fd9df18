from dataclasses import replace

import pytest
import torch
from random_groups import random_rows
from tiny_runs import Stopped, check_same, stop_at

from real import TrainConfig, resume, train
from real.vote.dynamic_sampling import DynamicSampler

CONFIG = TrainConfig(
    n_problems=14, batch_size=4, mini_batch=2, n_votes=8, n_samples=4, epochs=3, eval_every=0,
    eval_samples=1, drop_uniform=True, max_num_gen_batches=3, checkpoint_every=1,
    checkpoint_keep=20, save_model=False,
)  # fmt: skip
"""Epochs of three batches of four problems and one of two."""


def group(number, silent=False, dropped=False):
    """A group with a name, the only token of its prompt."""
    prompt, advantages = torch.tensor([number]), torch.tensor([1.0, -1.0]) * (not silent)
    return random_rows(1, [1, 1], 9, prompt_L=prompt, majority_K=advantages, dropped=dropped)


def names(parts):
    return [[int(group.prompt_L) for group in part] for part in parts]


def test_groups_wait_until_a_batch_is_full_and_surplus_ones_are_let_go():
    made = DynamicSampler(CONFIG, 14)
    first = [group(0), group(1, silent=True), group(2, dropped=True), group(3)]
    assert names(made.mini_batches(first, [], False)) == [[], []] and made.waits
    assert made.columns == {"n_gen_batches": 0, "n_trained": 0}
    second = [group(n) for n in (4, 5, 6, 7)]
    assert names(made.mini_batches(second, [], False)) == [[0, 3], [4, 5]] and not made.waits
    assert made.columns == {"n_gen_batches": 2, "n_trained": 4}
    assert names(made.mini_batches(second, [], False)) == [[4, 5], [6, 7]]


@pytest.mark.parametrize("last", [False, True])
def test_at_the_limit_and_at_the_end_what_is_there_trains(last):
    made = DynamicSampler(replace(CONFIG, max_num_gen_batches=9 if last else 2), 14)
    few = [group(0), *(group(n, silent=True) for n in (1, 2, 3))]
    assert names(made.mini_batches(few, [], False)) == [[], []]
    assert names(made.mini_batches(few, [], last)) == [[], [0, 0]]
    assert made.columns == {"n_gen_batches": 2, "n_trained": 2}


def test_a_short_batch_trains_as_many_problems_as_it_has():
    made, short = DynamicSampler(CONFIG, 14), [group(4), group(5)]
    made.mini_batches([*map(group, range(3)), group(3, silent=True)], [], False)
    assert names(made.mini_batches(short, [], False)) == [[]] and made.waits
    assert names(made.mini_batches(short, [], True)) == [[0, 1]]


def test_a_batch_of_all_problems_is_full_though_batches_could_hold_more():
    made = DynamicSampler(replace(CONFIG, mini_batch=1), 3)
    assert names(made.mini_batches([*map(group, range(3))], [], False)) == [[0], [1], [2]]
    assert not made.waits


def test_extra_groups_go_with_their_problem():
    made = DynamicSampler(replace(CONFIG, mini_batch=1), 14)
    mine = [group(0), group(1, silent=True), group(2, silent=True), group(3)]
    more = [[group(10)], [group(11)], [], []]
    made.mini_batches(mine, more, False)
    found = names(made.mini_batches([group(n) for n in range(4, 8)], [[]] * 4, False))
    assert found == [[0, 10], [1, 11], [3], [4]]


@pytest.fixture(scope="module")
def trace():
    return train(CONFIG, progress=False)


def test_every_problem_votes_once_an_epoch_and_updates_are_full(trace):
    visits, steps = trace.visits, trace.steps
    assert (visits.groupby(["epoch", "problem"]).size() == 1).all()
    assert (visits["visit"] == visits["epoch"]).all() and len(steps) == 12
    waited = steps["n_gen_batches"] == 0
    assert waited.any()
    assert (steps.loc[waited, ["update_norm", "n_updates", "tokens"]] == 0).all(axis=None)
    full = ~waited & (steps["n_gen_batches"] < 3) & (steps["step"] < 12)
    assert full.any() and (steps["n_trained"][full] == 4).all()
    assert (steps["n_trained"] <= 4).all()
    assert steps["n_gen_batches"].sum() == 12


def test_a_run_that_is_stopped_while_groups_wait_resumes_to_the_bit(trace, tmp_path):
    waited = trace.steps["step"][trace.steps["n_gen_batches"] == 0]
    at = int(waited.iloc[len(waited) // 2])
    with pytest.raises(Stopped):
        train(CONFIG, tmp_path / "run", progress=stop_at((at + 0.5) / 12))
    kept = [int(p.name[5:]) for p in (tmp_path / "run" / "checkpoints").glob("step-*")]
    assert kept and not set(kept) & set(waited)
    check_same(resume(tmp_path / "run", progress=False), trace)
