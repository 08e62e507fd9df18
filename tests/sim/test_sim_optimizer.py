"""Optimizer steps: Adam, clipping, mini-batches, and the expected update."""

from dataclasses import replace

import numpy as np
import pytest
from one_visit import decided, gradient

from guard_core import GuardConfig
from sim import SimConfig, simulate
from sim.engine.kernel import expected_samples
from sim.theory.process import Process, logit
from sim.world.policies import Attractor, Independent, make_policy
from sim.world.populations import Population, draw_population


def one_coordinate(**changes):
    """One problem with two equal answers: a single logit."""
    config = SimConfig(policy="independent", n_problems=1, n_answers=2, **changes)
    zero = np.zeros((1, 1), np.int64)
    return Independent(config, Population(np.full((1, 1, 2), 0.5), zero, zero + 1))


def path(policy, gradients, step=0.05):
    """Logit of answer 0 after each update along `gradients`."""
    zero, p = np.zeros((1, 1), np.int64), np.empty((1, 1, 2))
    found = []
    for g in gradients:
        policy.update(zero, step, np.array([[[g, -g]]]))
        assert policy.probabilities(zero, p) == -1
        found.append(0.5 * np.log(p[0, 0, 0] / p[0, 0, 1]))
    return np.array(found)


GRADIENTS = np.random.default_rng(7).normal(0.1, 0.3, 60)


def adam(gradients, step, beta_1=0.9, beta_2=0.999, eps=1e-8):
    """Kingma and Ba, algorithm 1, uphill."""
    x, m, v = 0.0, 0.0, 0.0
    for t, g in enumerate(gradients, 1):
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g * g
        x += step * (m / (1 - beta_1**t)) / (np.sqrt(v / (1 - beta_2**t)) + eps)
        yield x


def test_adam_is_the_published_algorithm():
    found = path(one_coordinate(optimizer="adam"), GRADIENTS)
    assert found == pytest.approx(list(adam(GRADIENTS, 0.05)))
    numbers = {"adam_beta_1": 0.5, "adam_beta_2": 0.8, "adam_eps": 0.01}
    found = path(one_coordinate(optimizer="adam", **numbers), GRADIENTS)
    assert found == pytest.approx(list(adam(GRADIENTS, 0.05, 0.5, 0.8, 0.01)))
    # The first step is one of full size, whatever the gradient.
    assert path(one_coordinate(optimizer="adam"), [1e-3])[0] == pytest.approx(0.05, rel=1e-4)


def test_a_problem_has_its_own_moments_and_shared_directions_theirs():
    config = SimConfig(n_problems=3, n_answers=3, optimizer="adam", load_sd=0.0, neg_transfer=1.0)
    population = draw_population(config)
    policy = Attractor(config, population)
    pulls = [0.5, 0.1, 0.2]
    for problem, pull in enumerate(pulls):
        g = np.zeros((1, 1, 3))
        g[..., population.attractor_RN[0, problem]] = pull
        policy.update(np.full((1, 1), problem), 0.1, g)
    assert (policy._own.steps == 1).all() and (policy._shared.steps == 3).all()
    own = np.take_along_axis(policy._z_RNA, population.attractor_RN[..., None], axis=2)
    start = np.take_along_axis(population.p0_RNA, population.attractor_RN[..., None], axis=2)
    # Each problem's first step has full size, the shared direction follows its own history.
    assert own - np.log(start) == pytest.approx(0.1)
    assert policy.theta_R2[0, 1] == pytest.approx(list(adam(pulls, 0.1 * config.kappa_att))[-1])
    assert policy.theta_R2[0, 0] == 0


POLICIES = ["independent", "attractor", "features"]


def made(policy, **changes):
    config = SimConfig(policy=policy, n_problems=8, n_answers=4, **changes)
    return make_policy(config, draw_population(config))


BATCH = np.arange(8)[None]


def probabilities(policy):
    out = np.empty((1, 8, 4))
    assert policy.probabilities(BATCH, out) == -1
    return out


def gradients(seed=5):
    return np.random.default_rng(seed).normal(scale=0.3, size=(1, 8, 4))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_mini_batch_takes_one_step_along_the_mean(policy, optimizer):
    g = gradients()
    batched = made(policy, mini_batch=3, optimizer=optimizer, neg_transfer=1.0)
    norm = batched.update(BATCH, 0.1, g)[0]
    assert len(set(norm)) == 3 and norm[0] == norm[2] and norm[3] == norm[5] and norm[6] == norm[7]
    if optimizer == "sgd":
        # Plain steps add up, so the sum over mini-batches is that of one problem at a time.
        single = made(policy, neg_transfer=1.0)
        size = np.array([3, 3, 3, 3, 3, 3, 2, 2])
        single.update(BATCH, 0.1, g / size[None, :, None])
        assert probabilities(batched) == pytest.approx(probabilities(single), rel=1e-12)


@pytest.mark.parametrize("policy", POLICIES)
def test_dropped_problems_leave_the_denominator(policy):
    g = gradients()
    drop = np.zeros((1, 8), bool)
    drop[0, [1, 4, 5, 6, 7]] = True
    g[drop] = 0.0
    left = made(policy, mini_batch=4)
    norm = left.update(BATCH, 0.1, g, drop)
    assert (norm[0, :4] > 0).all() and not norm[0, 4:].any()
    three = made(policy, mini_batch=3)
    three.update(np.array([[0, 2, 3]]), 0.1, g[:, [0, 2, 3]].copy())
    assert probabilities(left) == pytest.approx(probabilities(three), rel=1e-12)
    # A gradient of 0 alone does not leave it.
    stays = made(policy, mini_batch=4)
    assert stays.update(BATCH, 0.1, g)[0, 0] == pytest.approx(0.75 * norm[0, 0])


@pytest.mark.parametrize("policy", POLICIES)
def test_clipping_shortens_long_gradients_alone(policy):
    g = gradients()
    free = made(policy).update(BATCH, 1.0, g)
    clipped = made(policy, max_grad_norm=0.5).update(BATCH, 1.0, g)
    if policy != "attractor":
        # Here the parameters all have the rate 1, so a step is as long as its gradient.
        assert clipped == pytest.approx(np.minimum(free, 0.5), rel=1e-5)
    assert (clipped <= free * (1 + 1e-12)).all() and (clipped < 0.9 * free).any()


@pytest.mark.parametrize("p", [0.02, 0.3, 0.5, 0.97])
def test_the_expected_update_is_the_drift_of_the_theory(p):
    K = 16
    p_RPA = np.array([[[p, 1 - p]]])
    votes, decision = decided([20, 12], [10, 6], 32, K, GuardConfig.off())
    expected = replace(votes, samples=expected_samples(p_RPA, 1.0, K))
    g = gradient(expected, decision, p_RPA, GuardConfig.off())[0, 0]
    size = np.sqrt(p * (1 - p) * (K - 1) / K)
    assert g == pytest.approx([size, -size], rel=1e-4)


def test_expected_updates_keep_the_noise_of_the_vote_and_lose_that_of_the_samples():
    p0, step, V = 0.55, 0.3, 64
    config = SimConfig(
        policy="independent",
        population="point",
        ability_mean=p0,
        guard=GuardConfig.off(),
        n_answers=2,
        n_samples=V,
        schedule="constant",
        step=step,
        n_problems=4000,
        batch_size=4000,
        epochs=1,
        seed=2,
    )
    process = Process(step, V, V)
    law = process.law(logit(p0))
    square = (law.up_NM + law.down_NM) @ law.sizes_M**2
    right = 1 - process.wrong_vote(logit(p0))[0]
    size = 2 * step * np.sqrt(p0 * (1 - p0) * (V - 1) / V)
    for update, spread in (("expected", 0.0), ("sampled", None)):
        run = simulate(replace(config, update=update))
        visits = run.visits[run.visits["visit"] == 1]
        assert visits["label_correct"].mean() == pytest.approx(right, abs=0.02)
        # One optimizer step a problem: |dx| = sqrt(2) * norm, as both logits move alike.
        norm = run.steps["update_norm"].to_numpy()[0]
        if spread == 0.0:
            assert np.sqrt(2) * norm == pytest.approx(size, rel=1e-4)
        else:
            assert np.sqrt(2) * norm < np.sqrt(square[0])
            assert np.sqrt(2) * norm == pytest.approx(np.sqrt(square[0]), rel=0.02)
