"""Optimizer steps: taken, left out, refused; how far they went; the schedule."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace

import pytest
import torch
from transformers import Qwen2ForCausalLM

from real.grpo import Group, LossConfig
from real.optimizer import OptimizerConfig, PolicyOptimizer, schedule
from real.tiny.pretrain import Recipe, initial_model

SMALL = Recipe(width=16, layers=1, mlp_width=24)


def weights(model: Qwen2ForCausalLM) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def make_group(seed: int, silent: bool = False, **changes: object) -> Group:
    g = torch.Generator().manual_seed(seed)
    majority = torch.zeros(6) if silent else torch.randn(6, generator=g)
    group = Group(
        prompt_L=torch.randint(3, 20, (5,), generator=g),
        tokens_KT=torch.randint(3, 20, (6, 4), generator=g),
        old_KT=torch.full((6, 4), -3.0),
        lengths_K=torch.tensor([4, 3, 4, 1, 2, 4]),
        majority_K=majority,
        minority_K=torch.zeros(6),
    )
    return replace(group, **changes)


def make_optimizer(drop_uniform: bool = False, **changes: object) -> PolicyOptimizer:
    model = initial_model(SMALL, 0).eval()
    loss = LossConfig(drop_uniform=drop_uniform)
    config = replace(OptimizerConfig(lr=1e-2, warmup_ratio=0.0), **changes)
    return PolicyOptimizer(model, loss, config, n_scheduled=10)


def test_silent_groups_move_the_weights_as_the_full_computation_does(
    monkeypatch: pytest.MonkeyPatch,
):
    plan = [[make_group(1)], [make_group(2, silent=True)], [make_group(3)]]
    plan.append([make_group(4, silent=True), make_group(5)])
    fast, full = make_optimizer(), make_optimizer()
    quick = [fast.step(groups) for groups in plan]
    monkeypatch.setattr(Group, "silent", property(lambda _: False))
    slow = [full.step(groups) for groups in plan]
    assert torch.equal(weights(fast.model), weights(full.model))
    assert [s.update_norm for s in quick] == [s.update_norm for s in slow]
    assert [s.n_forward for s in quick] == [18, 0, 18, 18]
    assert [s.n_forward for s in slow] == [18, 18, 18, 36]
    # AdamW's moments go on: a step without gradient still moves, and is not skipped.
    assert quick[1].taken and quick[1].update_norm > 0


def test_dropped_problem_costs_nothing_and_moves_nothing():
    optimizer = make_optimizer()
    optimizer.step([make_group(1)])
    before = weights(optimizer.model)
    calls: list[int] = []
    hook = optimizer.model.register_forward_hook(lambda *_: calls.append(1))
    done = optimizer.step([make_group(2, dropped=True)])
    hook.remove()
    assert not calls and not done.taken and done.update_norm == 0 and done.n_tokens == 0
    assert torch.equal(weights(optimizer.model), before)
    assert optimizer.n_done == 2  # the schedule goes on


def test_dropped_problem_has_no_share_in_the_denominator():
    with_it, without = make_optimizer(), make_optimizer()
    with_it.step([make_group(1), make_group(2, dropped=True)])
    without.step([make_group(1)])
    assert torch.equal(weights(with_it.model), weights(without.model))


def test_masked_problem_still_moves_the_weights():
    """The release's way of skipping: advantages 0, but AdamW's moments move on."""
    optimizer = make_optimizer()
    optimizer.step([make_group(1)])
    before = weights(optimizer.model)
    optimizer.step([make_group(2, silent=True)])
    assert not torch.equal(weights(optimizer.model), before)


def test_drop_uniform_leaves_the_step_out():
    optimizer = make_optimizer(drop_uniform=True)
    optimizer.step([make_group(1)])
    before = weights(optimizer.model)
    assert not optimizer.step([make_group(2, silent=True)]).taken
    assert torch.equal(weights(optimizer.model), before)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_broken_gradient_is_refused(bad: float):
    optimizer = make_optimizer()
    optimizer.step([make_group(1)])
    before = weights(optimizer.model)
    group = make_group(2)
    group.majority_K[0] = bad
    done = optimizer.step([group])
    assert done.refused and not done.taken and done.update_norm == 0
    assert torch.equal(weights(optimizer.model), before)
    after = optimizer.step([make_group(3)])
    assert after.taken and torch.isfinite(weights(optimizer.model)).all()


def test_update_norm_is_the_change_of_all_parameters():
    optimizer = make_optimizer()
    for seed in range(3):
        before = weights(optimizer.model)
        done = optimizer.step([make_group(seed)])
        change = torch.linalg.vector_norm(weights(optimizer.model) - before).item()
        assert done.update_norm == pytest.approx(change, rel=1e-5)
        assert done.update_norm > 0


def test_update_grows_with_the_learning_rate_and_not_with_the_loss():
    """Adam forgets the scale of a gradient, so effort is matched through the learning rate."""
    plain, scaled, slower = make_optimizer(), make_optimizer(), make_optimizer(lr=5e-3)
    norm = plain.step([make_group(1)]).update_norm
    assert scaled.step([make_group(1, weight=0.5)]).update_norm == pytest.approx(norm, rel=1e-2)
    assert slower.step([make_group(1)]).update_norm == pytest.approx(norm / 2, rel=1e-2)


def test_gradient_is_clipped():
    """The largest gradient that enters AdamW's first moment is the limit times (1 - beta1)."""
    optimizer = make_optimizer(max_grad_norm=1e-3)
    before = copy.deepcopy(optimizer.model)
    done = optimizer.step([make_group(1)])
    grads = torch.cat([p.grad.flatten() for p in optimizer.model.parameters()])
    assert done.grad_norm > 1e-3
    assert torch.linalg.vector_norm(grads).item() == pytest.approx(1e-3, rel=1e-3)
    assert not torch.equal(weights(before), weights(optimizer.model))


def test_schedule_warms_up_and_falls_to_zero():
    factors = [schedule(done, 100, 0.03) for done in range(100)]
    assert factors[:4] == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0])
    assert all(a >= b for a, b in itertools.pairwise(factors[3:]))
    assert 0 < factors[-1] < 1e-3
    assert schedule(0, 10, 0.0) == 1.0
