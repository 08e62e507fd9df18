import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from random_groups import random_rows
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from lab.base.errors import UserError
from real.other_trainers import update_norm
from real.settings.groups import UpdateSettings
from real.tiny.pretrain import Recipe, initial_model
from real.update.logprobs import Scorer
from real.update.masters import Masters, registered
from real.update.optimizer import Fault, MeasuredAdamW, PolicyOptimizer
from real.update.packing import Group

SMALL = Recipe(width=16, layers=1, mlp_width=24)


def weights(model):
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def make_group(seed, silent=False, **changes):
    advantages = torch.randn(6, generator=torch.Generator().manual_seed(seed))
    changes = {"majority_K": torch.zeros(6) if silent else advantages, **changes}
    return random_rows(5, [4, 3, 4, 1, 2, 4], 20, seed, **changes)


def taken(*seeds, **settings):
    """An optimizer after one step for each seed."""
    made = make_optimizer(**settings)
    for seed in seeds:
        made.step([make_group(seed)])
    return made


def make_optimizer(dtype=torch.float32, **changes):
    model = initial_model(SMALL, 0).eval().to(dtype)
    config = replace(UpdateSettings(temperature=1.0, lr=1e-2, warmup_ratio=0.0), **changes)
    return PolicyOptimizer(Scorer(model), config, n_scheduled=10)


def test_silent_groups_move_the_weights_as_the_full_computation_does(monkeypatch):
    plan = [[make_group(1)], [make_group(2, silent=True)], [make_group(3)]]
    fast, full = make_optimizer(), make_optimizer()
    quick = [fast.step(groups) for groups in plan]
    with monkeypatch.context() as patch:
        patch.setattr(Group, "silent", property(lambda _: False))
        slow = [full.step(groups) for groups in plan]
    assert torch.equal(weights(fast.model), weights(full.model))
    assert [s.update_norm for s in quick] == [s.update_norm for s in slow]
    assert [s.n_forward for s in quick] == [18, 0, 18]
    assert [s.n_forward for s in slow] == [18, 18, 18]
    # AdamW's moments go on: a step without gradient still moves, and is not skipped.
    assert quick[1].taken and quick[1].update_norm > 0


@pytest.mark.parametrize("drops", [False, True])
def test_a_step_without_groups_costs_nothing_and_moves_nothing(drops):
    """Of dropped problems, and with `drop_uniform` of silent ones."""
    optimizer = taken(1, drop_uniform=drops)
    before, calls = weights(optimizer.model), []
    hook = optimizer.model.base_model.register_forward_hook(lambda *_: calls.append(1))
    done = optimizer.step([make_group(2, silent=drops, dropped=not drops)])
    hook.remove()
    assert not calls and not done.taken and done.update_norm == 0 and done.n_tokens == 0
    assert torch.equal(weights(optimizer.model), before)
    assert optimizer.n_done == 2  # the schedule goes on


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, None])
def test_a_broken_step_is_refused(bad):
    """A gradient that is not finite, or not one log-prob of the engine that is."""
    optimizer = taken(1)
    before = weights(optimizer.model)
    nothing = make_group(2, old_KT=torch.full((6, 4), torch.nan))
    done = optimizer.step([nothing if bad is None else broken_group(2, bad)])
    assert done.fault == (Fault.LOG_PROBS if bad is None else Fault.GRADIENT)
    assert done.fault and not done.taken and done.update_norm == 0
    assert done.n_left_out == (18 if bad is None else 0)
    assert torch.equal(weights(optimizer.model), before)
    after = optimizer.step([make_group(3)])
    assert after.taken and torch.isfinite(weights(optimizer.model)).all()


def test_a_model_of_nan_has_no_step():
    optimizer = make_optimizer()
    with torch.no_grad():
        for parameter in optimizer.model.parameters():
            parameter.fill_(torch.nan)
    done = optimizer.step([make_group(1)])
    assert done.fault == Fault.LOG_PROBS and not done.taken


def broken_group(seed, bad=torch.nan):
    group = make_group(seed)
    group.majority_K[0] = bad
    return group


def test_run_ends_after_so_many_refused_steps_in_a_row():
    optimizer = make_optimizer(max_bad_steps=3)
    for seed in (1, 2):
        assert optimizer.step([broken_group(seed)]).fault
    assert optimizer.step([make_group(3)]).taken  # starts the count again
    for seed in (4, 5):
        assert optimizer.step([broken_group(seed)]).fault
    resumed = make_optimizer(max_bad_steps=3)
    resumed.load_state_tensors(optimizer.state_tensors())
    for one in (optimizer, resumed):
        with pytest.raises(UserError, match=r"step 6: the gradient .* 3 times in a row; lower lr"):
            one.step([broken_group(6)])


def test_response_without_finite_log_probs_is_left_out_and_the_step_is_taken():
    """The model gives NaN after one token; the other rows are trained on as if alone."""
    whole, part = make_optimizer(), make_optimizer()
    whole.model.get_input_embeddings().register_forward_hook(
        lambda _, inputs, output: output.masked_fill((inputs[0] == 31)[..., None], torch.nan)
    )
    group = make_group(1)
    spoiled = replace(group, tokens_KT=group.tokens_KT.clone())
    spoiled.tokens_KT[0, 1] = 31
    done = whole.step([spoiled])
    old_KT = group.old_KT.clone()
    old_KT[0] = torch.nan
    expected = part.step([replace(group, old_KT=old_KT)])
    assert done.taken and done.fault is None
    assert (done.n_left_out, done.n_tokens) == (4, 14) == (expected.n_left_out, expected.n_tokens)
    assert done.loss == expected.loss and done.update_norm == expected.update_norm
    assert np.isfinite(done.update_norm)


def test_masters_keep_what_low_precision_would_lose():
    """At a small step size bfloat16 alone hardly moves; with masters it follows the float32 run."""
    norms, moved = [], []
    for dtype in (torch.float32, torch.bfloat16):
        run = make_optimizer(lr=2e-5, dtype=dtype)
        start = weights(run.model).float()
        norms.append([run.step([make_group(seed)]) for seed in range(8)][-1].update_norm)
        moved.append(torch.cat([p.detach().flatten() for p in run.parameters]).float() - start)
    assert norms[1] == pytest.approx(norms[0], rel=0.05)
    assert torch.nn.functional.cosine_similarity(*moved, dim=0) > 0.9
    # What is sampled from is the master, rounded.
    for parameter, master in zip(run.model.parameters(), run.parameters, strict=True):
        assert parameter.dtype == torch.bfloat16 and master.dtype == torch.float32
        assert torch.equal(parameter, master.bfloat16()) and parameter.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_begin_at_zero(dtype):
    """Also that of a weight which the next passes do not reach; several passes add up."""
    always, once = weights = [torch.ones(2, dtype=dtype, requires_grad=True) for _ in range(2)]
    masters, found = Masters(weights), []
    for reached, n_passes in ((weights, 1), ([always], 3), (weights, 2), ([once], 1)):
        masters.zero_gradients()
        for _ in range(n_passes):
            torch.stack([2 * weight.sum() for weight in reached]).sum().backward()
        found.append([gradient.tolist() for gradient in masters.gradients()])
    assert found == [[[2, 2], [2, 2]], [[6, 6], [0, 0]], [[4, 4], [4, 4]], [[0, 0], [2, 2]]]
    assert {gradient.dtype for gradient in masters.gradients()} == {torch.float32}


@pytest.mark.parametrize("block", [256, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_moved_in_blocks_and_offloaded_have_the_same_bits(dtype, block):
    """Also where a large weight is moved in parts."""
    whole, near, far = (make_optimizer(dtype=dtype, offload_optimizer=n == 2) for n in range(3))
    for optimizer in (near, far):
        optimizer.adamw = MeasuredAdamW(optimizer.masters, 0.01, block)
    assert max(p.numel() for p in near.parameters) > 64
    for seed in (1, 2, 3):
        first, second, third = (o.step([make_group(seed)]) for o in (whole, near, far))
        assert first.update_norm == pytest.approx(second.update_norm, rel=1e-6)
        assert second == third
    for optimizer in (near, far):
        assert torch.equal(weights(whole.model), weights(optimizer.model))
        kept, moved = whole.state_tensors(), optimizer.state_tensors()
        assert kept.keys() == moved.keys()
        assert all(torch.equal(kept[name], value) for name, value in moved.items())


def test_gradient_is_clipped():
    optimizer = make_optimizer(max_grad_norm=1e-3)
    before = copy.deepcopy(optimizer.model)
    done = optimizer.step([make_group(1)])
    grads = torch.cat([p.grad.flatten() for p in optimizer.model.parameters()])
    assert done.grad_norm > 1e-3
    assert torch.linalg.vector_norm(grads).item() == pytest.approx(1e-3, rel=1e-3)
    assert not torch.equal(weights(before), weights(optimizer.model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_average_follows_the_steps_that_were_taken(dtype):
    one, plain = make_optimizer(dtype=dtype, ema_decay=0.75), make_optimizer(dtype=dtype)
    assert one.average and plain.average is None
    mean = [w.float().clone() for w in one.parameters]
    for group in (make_group(1), make_group(2, dropped=True), make_group(3)):
        assert one.step([group]) == plain.step([group])
        if not group.dropped:
            mean = [0.75 * m + 0.25 * w for m, w in zip(mean, one.parameters, strict=True)]
    torch.testing.assert_close([*one.average.weights.values()], mean)
    before = weights(one.model)
    with one.average.held_by(one.model):
        held = torch.cat([m.flatten() for m in mean]).to(dtype)
        torch.testing.assert_close(weights(one.model), held)
    assert torch.equal(weights(one.model), before)


@pytest.mark.parametrize(("numel", "code", "expected"), [(3, 0, True), (3, 2, False), (0, 2, True)])
def test_memory_that_cuda_cannot_register_is_told(numel, code, expected):
    runtime = SimpleNamespace(cudaHostRegister=lambda pointer, size, flags: code)
    assert registered(runtime, torch.zeros(numel)) is expected


@pytest.mark.parametrize(("dtype", "kinds"), [(torch.float32, 2), (torch.bfloat16, 3)])
def test_cuda_can_reach_all_that_is_offloaded(dtype, kinds, monkeypatch):
    """Moments of masters that are in main memory too, and none of them is made on the GPU."""
    found: list[int] = []
    monkeypatch.setattr(torch.cuda, "cudart", lambda: None)
    known = "real.update.masters.registered"
    monkeypatch.setattr(known, lambda _, memory: not found.append(memory.numel()))
    with FakeTensorMode(), OnGpu() as made:
        there = [torch.nn.Parameter(torch.ones(n, dtype=dtype, device="cuda")) for n in (3, 5)]
        adamw = MeasuredAdamW(Masters(there, on_host=True), 0.01)
    assert {moment.device.type for kind in adamw.moments for moment in kind} == {"cpu"}
    assert sorted(found) == kinds * [3] + kinds * [5]
    n_gradients = 2 if dtype == torch.float32 else 0
    assert made.count(torch.ops.aten.zeros_like.default) == n_gradients


class OnGpu(TorchDispatchMode, list):
    """Lists the operations whose result is on a GPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_cuda and result.numel():
            self.append(func)
        return result


@pytest.mark.parametrize("amsgrad", [False, True])
def test_the_norm_of_another_trainers_step_follows_from_adamws_state(amsgrad):
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 9))
    adamw = torch.optim.AdamW([weight], 1e-2, (0.9, 0.5), weight_decay=0.1, amsgrad=amsgrad)
    for size in (1.0, 0.1, 3.0, 0.2):  # second moments that fall
        before, weight.grad = weight.detach().clone(), size * torch.arange(9.0)
        adamw.step()
        moved = float(torch.linalg.vector_norm(weight.detach() - before))
        assert update_norm(adamw) == pytest.approx(moved, rel=1e-4)
