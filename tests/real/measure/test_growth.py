"""The growth of gradients along a run, and the error of those on the drawn weights."""

import numpy as np
import pytest
import torch
from measured_models import PROMPTS, TEMPERATURE, measured, small_model

from real.measure.gradients import Edges, Gradients, Growth, sampling_error, slope


def test_growth_is_zero_without_training_and_counts_curvature():
    model = small_model()
    edges = Edges([[1, 2]] * 6, range(6), [0] * 6)
    n_weights = Gradients(model, TEMPERATURE).n_weights
    every, ones = np.arange(n_weights), np.ones(n_weights, np.float32)
    growth = Growth(model, edges, TEMPERATURE, every, ones)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert growth.at(before) == pytest.approx(0.0, abs=1e-8)
    moved = {name: p + 0.05 * torch.randn_like(p) for name, p in before.items()}
    assert growth.at(moved) > 0
    assert all((p == before[name]).all() for name, p in model.named_parameters())
    assert slope([(1.0, 2.0), (2.0, 4.0)]) == pytest.approx(2.0)


def test_growth_is_that_of_the_median_node(monkeypatch):
    """Planted: the gradients of seven nodes change by known shares, those of one enormously."""
    shares_V = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1e6])
    rng = np.random.default_rng(0)
    # Two tokens of equal probability: opposite gradients, which the softmax leaves alone.
    start_ED = np.repeat(rng.normal(size=(7, 8)), 2, axis=0) * np.tile([[1.0], [-1.0]], (7, 1))
    changed_ED = rng.normal(size=(14, 8))
    for e in range(14):
        wanted = shares_V[e // 2] * (start_ED[e] ** 2).sum()
        changed_ED[e] *= np.sqrt(wanted / (changed_ED[e] ** 2).sum())
    planted = iter([start_ED, start_ED + changed_ED])
    monkeypatch.setattr(Growth, "_gradients", lambda self: next(planted).astype(np.float32))
    half = np.full(14, np.log(0.5))
    monkeypatch.setattr("real.measure.gradients.next_log_probs", lambda *_: half)
    edges = Edges([[1]] * 14, [0, 1] * 7, np.repeat(range(7), 2).tolist())
    growth = Growth(small_model(), edges, TEMPERATURE, np.arange(8), np.ones(8, np.float32))
    assert growth.at({}) == pytest.approx(0.4, rel=1e-4)


def test_growth_is_measured_at_the_likeliest_nodes_whatever_weights_are_drawn(monkeypatch):
    model, compared, growths = small_model(), [], []

    class Seen(Growth):
        def __init__(self, model, edges, *rest):
            compared.append(edges)
            growths.append(self)
            super().__init__(model, edges, *rest)

    monkeypatch.setattr("real.measure.measuring.Growth", Seen)
    moved = {name: 1.01 * p.detach() for name, p in model.named_parameters()}
    for settings in ({"weights": 16}, {"weights": 32}):
        measured(model, [lambda: moved], **settings)
    assert compared[0] == compared[1]
    monkeypatch.setattr("real.measure.measuring._GROWTH_NODES", len(PROMPTS))
    growth = measured(model, [lambda: moved], weights=16).facts.growth
    distance = 0.01 * sum(float(p.detach().square().sum()) for p in model.parameters()) ** 0.5
    assert growth == pytest.approx(growths[-1].at(moved) / distance, rel=1e-4)
    # No prefix is likelier than the empty one.
    assert {tuple(context) for context in compared[2].contexts} == {tuple(p) for p in PROMPTS}


def test_first_order_changes_are_those_of_all_weights():
    model = small_model()
    gradients = Gradients(model, TEMPERATURE)
    contexts, tokens = [[1, 2], [3, 1, 4, 2]], [(5,), (0,)]
    every = np.arange(gradients.n_weights)
    named = {name: p.detach() for name, p in model.named_parameters()}
    moved = {name: p + 0.1 * torch.randn_like(p) for name, p in named.items()}
    left_out = next(iter(moved))
    del moved[left_out]  # unchanged
    change = gradients.change(moved)
    assert (change[: named[left_out].numel()] == 0).all()
    assert change.square().sum() == pytest.approx(
        sum(float((moved[n] - named[n]).square().sum()) for n in moved), rel=1e-5
    )
    features, _, moved_KE = gradients(contexts, tokens, every, [change, 0 * change])
    assert moved_KE[0] == pytest.approx(features @ change.numpy(), rel=1e-4, abs=1e-6)
    assert (moved_KE[1] == 0).all()


def test_the_sampling_error_is_that_of_unit_gradients():
    norm2_E = np.array([4.0, 1.0, 0.0])  # without a gradient there is no error
    moved_KE, estimated_KE = np.array([[2.0, 1.0, 0.0]]), np.array([[4.0, 0.0, 9.0]])
    assert sampling_error(moved_KE, estimated_KE, norm2_E) == pytest.approx((1 + 1) / (1 + 1))
    assert sampling_error(moved_KE, 1.1 * moved_KE, norm2_E) == pytest.approx(0.01)
