from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax

from guard_core import Draws, Guard, GuardConfig, Votes, answer_advantages, policy_streams
from sim import SimConfig
from sim.engine.learner import expected_samples, sums_gradient
from sim.world.policies import POLICIES, Attractor, Features
from sim.world.populations import draw_population
from sim.world.sampling import Population


def small(policy, **changes):
    sizes = {"n_problems": 6, "n_answers": 4, "replicates": 2}
    config = SimConfig(policy=policy, **sizes | changes)
    population = draw_population(config)
    return config, population, POLICIES[policy](config, population)


def update(policy, problems_RP, step, gradient_RPA, drop_RP=None):
    drop_RP = np.zeros(problems_RP.shape, bool) if drop_RP is None else drop_RP
    return policy.update(problems_RP, step, gradient_RPA, drop_RP)


def probabilities(policy, problems_RP, n_answers=4):
    out = np.empty((*problems_RP.shape, n_answers))
    assert policy.probabilities(problems_RP, out) == -1
    return out


ALL = np.tile(np.arange(6), (2, 1))


def test_every_problem_moves_along_the_shared_directions_by_its_loadings():
    config, population, policy = small("attractor")
    _, _, load_RN2, theta_R2, kappa_2, _ = policy.parameters
    assert kappa_2.tolist() == [config.kappa_corr, config.kappa_att]
    theta_R2[:] = [[0.3, -0.2], [0.0, 0.5]]
    both_RN2 = np.stack([population.truth_RN, population.attractor_RN], axis=-1)
    z_RNA, moved_RN2 = np.log(population.p0_RNA), load_RN2 * theta_R2[:, None]
    z_RNA += (moved_RN2[..., None] * (both_RN2[..., None] == np.arange(4))).sum(axis=2)
    assert probabilities(policy, ALL) == pytest.approx(softmax(z_RNA, axis=-1))


def test_loadings_vary_around_one():
    config = SimConfig(n_problems=5000, replicates=2)
    policy = Attractor(config, draw_population(config))
    loads = policy.parameters.load_RN2
    assert loads.mean() == pytest.approx(1, abs=0.02)
    assert loads.std() == pytest.approx(0.3, rel=0.05)
    config = replace(config, corr_load_sd=0.1, att_share=0.6)
    population = draw_population(config)
    loads = Attractor(config, population).parameters.load_RN2
    assert loads.std(axis=(0, 1)) == pytest.approx([0.1, 0.3], rel=0.05)
    places = np.stack([population.truth_RN, population.attractor_RN], axis=-1)
    right, rival = np.moveaxis(np.take_along_axis(population.p0_RNA, places, axis=-1), -1, 0)
    assert (rival / (1 - right)).mean() == pytest.approx(0.6, abs=0.01)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_first_logit_that_is_not_finite_is_found(policy):
    config, population, _ = small(policy)
    population.p0_RNA[1, 3, 0] = np.inf
    made = POLICIES[policy](config, population)
    assert made.probabilities(ALL, np.empty((2, 6, 4))) == 6 + 3


def test_one_problem_per_step_is_the_same_with_and_without_the_fast_path():
    config, population, plain = small("attractor")
    general = POLICIES[config.policy](replace(config, max_grad_norm=1e9), population)
    rng = np.random.default_rng(0)
    for _ in range(20):
        problems = np.stack([rng.permutation(6)[:4] for _ in range(2)])
        g = rng.normal(size=(2, 4, 4))
        norm = update(general, problems, 0.1, g)
        assert norm == pytest.approx(update(plain, problems, 0.1, g), rel=1e-12)
    assert probabilities(general, ALL) == pytest.approx(probabilities(plain, ALL), rel=1e-12)


def test_features_move_theta_along_the_gradient_and_all_logits_with_it():
    _, population, policy = small("features", feature_dim=40)
    phi = policy.phi_RNDA.astype(float)
    problems = np.array([[4, 1], [0, 5]])
    g = np.random.default_rng(1).normal(size=(2, 2, 4))
    norm = update(policy, problems, 0.2, g)
    theta = np.zeros((2, 40))
    for r in range(2):
        for p in range(2):
            change = 0.2 * phi[r, problems[r, p]] @ g[r, p]
            assert norm[r, p] == pytest.approx(np.linalg.norm(change))
            theta[r] += change
    assert policy.theta_RD == pytest.approx(theta)
    z = np.log(population.p0_RNA) + np.einsum("rnda,rd->rna", phi, theta)
    p = np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)
    assert probabilities(policy, ALL) == pytest.approx(p)


def test_features_have_unit_length_in_the_mean_and_no_direction():
    config = SimConfig(policy="features", n_problems=400, n_answers=5, feature_dim=25)
    population = draw_population(config)
    phi_NDA = Features(config, population).phi_RNDA[0]
    right = np.take_along_axis(phi_NDA, population.truth_RN[0, :, None, None], axis=2)
    # 10,000 independent numbers of spread 0.2: their mean lies within 4 of its errors of 0.002.
    assert abs(right.mean()) < 0.008 and phi_NDA.std() == pytest.approx(1 / 5, rel=0.02)


def test_features_belong_to_the_replicate_or_to_the_fixed_population():
    config, _, drawn = small("features")
    own = drawn.phi_RNDA
    assert own.shape == (2, 6, 64, 4) and (own[0] != own[1]).any()
    alone = replace(config, replicates=1, first_replicate=1)
    assert (Features(alone, draw_population(alone)).phi_RNDA[0] == own[1]).all()
    fixed = replace(config, fixed_population=True, first_replicate=3)
    policy = Features(fixed, draw_population(fixed))
    assert (policy.phi_RNDA == own[:1]).all()
    g = np.zeros((2, 1, 4))
    g[1, 0, 2] = 1.0
    update(policy, np.zeros((2, 1), np.int64), 0.5, g)
    after = probabilities(policy, ALL)
    assert after[0] == pytest.approx(draw_population(fixed).p0_RNA[0])
    assert np.abs(after[1] - after[0]).max() > 0.01


def path(gradients):
    """Logit of answer 0 of two that start equal, after each update by Adam along `gradients`."""
    config = SimConfig(policy="independent", n_problems=1, n_answers=2, optimizer="adam")
    zero, found = np.zeros((1, 1), np.int64), []
    policy = Attractor(config, Population(np.full((1, 1, 2), 0.5), zero, zero + 1))
    for g in gradients:
        update(policy, zero, 0.05, np.array([[[g, -g]]]))
        p_A = probabilities(policy, zero, n_answers=2)[0, 0]
        found.append(0.5 * np.log(p_A[0] / p_A[1]))
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
    assert path(GRADIENTS) == pytest.approx(list(adam(GRADIENTS, 0.05)))
    # The first step is one of full size, whatever the gradient.
    assert path([1e-3])[0] == pytest.approx(0.05, rel=1e-4)


def test_a_problem_has_its_own_moments_and_shared_directions_theirs():
    config = SimConfig(n_problems=3, n_answers=3, optimizer="adam", load_sd=0.0, neg_transfer=1.0)
    population = draw_population(config)
    policy = Attractor(config, population)
    pulls = [0.5, 0.1, 0.2]
    for problem, pull in enumerate(pulls):
        g = np.zeros((1, 1, 3))
        g[..., population.attractor_RN[0, problem]] = pull
        update(policy, np.full((1, 1), problem), 0.1, g)
    assert (policy.local.steps == 1).all() and (policy.shared.steps == 3).all()
    own = np.take_along_axis(policy.parameters.z_RNA, population.attractor_RN[..., None], axis=2)
    start = np.take_along_axis(population.p0_RNA, population.attractor_RN[..., None], axis=2)
    # Each problem's first step has full size, the shared direction follows its own history.
    assert own - np.log(start) == pytest.approx(0.1)
    moved = list(adam(pulls, 0.1 * config.kappa_att))[-1]
    assert policy.parameters.theta_R2[0].tolist() == [0, pytest.approx(moved)]


def made(policy, **changes):
    return small(policy, n_problems=8, replicates=1, **changes)[2]


BATCH = np.arange(8)[None]


def gradients(seed=5):
    return np.random.default_rng(seed).normal(scale=0.3, size=(1, 8, 4))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_mini_batch_takes_one_step_along_the_mean(policy, optimizer):
    g = gradients()
    batched = made(policy, mini_batch=3, optimizer=optimizer, neg_transfer=1.0)
    norm = update(batched, BATCH, 0.1, g)[0]
    assert len(set(norm)) == 3 and norm[0] == norm[2] and norm[3] == norm[5] and norm[6] == norm[7]
    if optimizer == "sgd":
        # Plain steps add up, so the sum over mini-batches is that of one problem at a time.
        single = made(policy, neg_transfer=1.0)
        size = np.array([3, 3, 3, 3, 3, 3, 2, 2])
        update(single, BATCH, 0.1, g / size[None, :, None])
        expected = probabilities(single, BATCH)
        assert probabilities(batched, BATCH) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("policy", POLICIES)
def test_dropped_problems_leave_the_denominator(policy):
    g = gradients()
    drop = np.zeros((1, 8), bool)
    drop[0, [1, 4, 5, 6, 7]] = True
    g[drop] = 0.0
    left = made(policy, mini_batch=4)
    norm = update(left, BATCH, 0.1, g, drop)
    assert (norm[0, :4] > 0).all() and not norm[0, 4:].any()
    three = made(policy, mini_batch=3)
    update(three, np.array([[0, 2, 3]]), 0.1, g[:, [0, 2, 3]].copy())
    expected = probabilities(three, BATCH)
    assert probabilities(left, BATCH) == pytest.approx(expected, rel=1e-12)
    # A gradient of 0 alone does not leave it.
    stays = made(policy, mini_batch=4)
    assert update(stays, BATCH, 0.1, g)[0, 0] == pytest.approx(0.75 * norm[0, 0])


@pytest.mark.parametrize("policy", POLICIES)
def test_clipping_shortens_long_gradients_alone(policy):
    g = gradients()
    free = update(made(policy), BATCH, 1.0, g)
    clipped = update(made(policy, max_grad_norm=0.5), BATCH, 1.0, g)
    if policy != "attractor":
        # Here the parameters all have the rate 1, so a step is as long as its gradient.
        assert clipped == pytest.approx(np.minimum(free, 0.5), rel=1e-5)
    assert (clipped <= free * (1 + 1e-12)).all() and (clipped < 0.9 * free).any()


@pytest.mark.parametrize("p", [0.02, 0.3, 0.5, 0.97])
def test_the_expected_update_is_the_drift_of_the_theory(p):
    K, config, p_RPA = 16, GuardConfig.off(), np.array([[[p, 1 - p]]])
    votes = Votes(np.array([[[20, 12]]]), expected_samples(p_RPA, 1.0, K), 32, K)
    guard = Guard(config)
    rows = guard.init(1, leading=(1,), n_answers=2)
    _, decision = guard.step(rows, votes, Draws(*np.full((3, 1, 1), 0.5)))
    pair = answer_advantages(votes.samples, K, decision, config)
    streams = policy_streams(*pair, decision, config)
    both_RPA = (streams.majority + streams.minority)[..., :-1]
    weight_RP = streams.weight / K
    g = sums_gradient(votes.samples * both_RPA, p_RPA, weight_RP, streams.drop)[0, 0]
    size = np.sqrt(p * (1 - p) * (K - 1) / K)
    assert g == pytest.approx([size, -size], rel=1e-4)
