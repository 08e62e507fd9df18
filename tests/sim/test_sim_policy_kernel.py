"""The measured kernel: what it moves, what it equals, and which files it refuses."""

from pathlib import Path

import numpy as np
import pytest

from lab.errors import UserError
from sim import SimConfig, simulate
from sim.world.policies import Attractor, Independent, Kernel
from sim.world.policies.kernel import read_kernel
from sim.world.populations import draw_population

N = 6


def symmetric(n=N, seed=0):
    k = np.random.default_rng(seed).normal(size=(n, n))
    return k @ k.T / n


@pytest.fixture
def saved(tmp_path):
    def save(k_NN, name="k.npy"):
        path = tmp_path / name
        if path.suffix == ".npy":
            np.save(path, k_NN)
        else:
            np.savetxt(path, k_NN, delimiter=",")
        return str(path)

    return save


def config_of(**changes):
    return SimConfig(**{"n_problems": N, "n_answers": 4, "replicates": 2, **changes})


def updates(policies, n_answers=4, batches=10):
    rng = np.random.default_rng(3)
    for _ in range(batches):
        problems = np.stack([rng.permutation(N)[:3] for _ in range(2)])
        g = rng.normal(size=(2, 3, n_answers))
        yield [policy.update(problems, 0.1, g) for policy in policies]


def probabilities(policy, n_answers=4):
    out = np.empty((2, N, n_answers))
    assert policy.probabilities(np.tile(np.arange(N), (2, 1)), out) == -1
    return out


@pytest.mark.parametrize("neg_transfer", [1.0, 0.3])
def test_an_update_moves_both_roles_of_every_problem(saved, neg_transfer):
    k = symmetric()
    config = config_of(policy="kernel", kernel=saved(k), neg_transfer=neg_transfer)
    population = draw_population(config)
    policy = Kernel(config, population)
    truth, attractor = population.truth_RN[0], population.attractor_RN[0]
    other = [
        next(a for a in range(4) if a not in pair) for pair in zip(truth, attractor, strict=True)
    ]
    g = np.zeros((2, 1, 4))
    g[0, 0, truth[2]], g[0, 0, attractor[2]], g[0, 0, other[2]] = -0.6, 0.5, 0.1
    norm = policy.update(np.full((2, 1), 2), 0.2, g)
    moved = np.zeros((N, 4))
    for i in range(N):
        moved[i, truth[i]] = 0.2 * k[i, 2] * -0.6 * (1.0 if i == 2 else neg_transfer)
        moved[i, attractor[i]] = 0.2 * k[i, 2] * 0.5
    moved[2, other[2]] = 0.2 * k[2, 2] * 0.1
    assert norm == pytest.approx(np.array([[np.linalg.norm(moved)], [0.0]]))
    p = population.p0_RNA[0] * np.exp(moved)
    assert probabilities(policy)[0] == pytest.approx(p / p.sum(axis=1, keepdims=True))
    assert probabilities(policy)[1] == pytest.approx(population.p0_RNA[1])


def test_the_identity_is_the_independent_policy(saved):
    config = config_of(policy="kernel", kernel=saved(np.eye(N)))
    population = draw_population(config)
    kernel, independent = Kernel(config, population), Independent(config, population)
    for one, other in updates([kernel, independent]):
        assert one == pytest.approx(other, rel=1e-12)
    assert probabilities(kernel) == pytest.approx(probabilities(independent), rel=1e-12)


def test_a_constant_coupling_is_the_attractor_with_equal_loads(saved):
    shared = {"n_answers": 2, "neg_transfer": 1.0, "load_sd": 0.0}
    config = config_of(policy="kernel", kernel=saved(np.eye(N) + 0.3), **shared)
    population = draw_population(config)
    same = Attractor(config_of(kappa_corr=0.3, kappa_att=0.3, **shared), population)
    kernel = Kernel(config, population)
    for _ in updates([kernel, same], n_answers=2):
        assert probabilities(kernel, 2) == pytest.approx(probabilities(same, 2), rel=1e-9)


def test_mini_batches_add_up_before_they_are_measured(saved):
    k = np.ones((N, N))
    config = config_of(policy="kernel", kernel=saved(k), mini_batch=2, neg_transfer=1.0)
    population = draw_population(config)
    policy = Kernel(config, population)
    g = np.zeros((2, 2, 4))
    for place, problem in enumerate((0, 1)):
        g[0, place, population.truth_RN[0, problem]] = 1.0 - 2.0 * place
    # Both problems pull all correct answers equally hard, one up and one down.
    assert policy.update(np.tile([0, 1], (2, 1)), 0.1, g) == pytest.approx(0.0, abs=1e-15)


def test_a_run_reads_the_matrix_from_csv(saved):
    k = np.eye(20) + 0.05
    run = {"policy": "kernel", "n_problems": 20, "n_answers": 4, "epochs": 9, "step": 0.3}
    csv = simulate(SimConfig(kernel=saved(k, "k.csv"), **run))
    npy = simulate(SimConfig(kernel=saved(k), **run))
    assert csv.visits.equals(npy.visits)
    still = simulate(SimConfig(kernel=saved(np.eye(20), "eye.npy"), **run))
    assert not csv.visits.equals(still.visits)


def bad(change):
    k = symmetric()
    change(k)
    return k


WRONG = [
    (symmetric(5), r"has shape \(5, 5\), must be n_problems x n_problems = \(6, 6\)"),
    (np.ones(N), r"has shape \(6,\), must be"),
    (bad(lambda k: k.__setitem__((1, 2), np.nan)), r"entry \[1, 2\] is nan, must be a finite"),
    (bad(lambda k: k.__setitem__((3, 3), np.inf)), r"entry \[3, 3\] is inf, must be a finite"),
    (bad(lambda k: k.__setitem__((0, 4), 9.0)), r"is not symmetric: \[0, 4\] is 9, \[4, 0\] is "),
    (-np.eye(N), r"entry \[0, 0\] is -1, must be at least 0"),
    (np.eye(N) * 1j, "holds complex128, must hold real numbers"),
    (np.full((N, N), "x"), "holds <U1, must hold real numbers"),
]


@pytest.mark.parametrize(("k", "message"), WRONG)
def test_a_defect_names_setting_file_and_place(saved, k, message):
    path = saved(k)
    with pytest.raises(UserError, match="kernel: .*k.npy:? " + message):
        read_kernel(path, N)


def test_files_that_are_no_matrix_are_refused(tmp_path, saved):
    with pytest.raises(UserError, match=r"kernel: .*none.npy cannot be read"):
        read_kernel(str(tmp_path / "none.npy"), N)
    with pytest.raises(UserError, match=r"neither a .npy nor a .csv file"):
        read_kernel(str(tmp_path / "k.pt"), N)
    (tmp_path / "k.csv").write_text("1,0\n0,x\n")
    with pytest.raises(UserError, match=r"k.csv cannot be read \(.*'x'"):
        read_kernel(str(tmp_path / "k.csv"), 2)
    (tmp_path / "cut.npy").write_bytes(Path(saved(symmetric())).read_bytes()[:100])
    with pytest.raises(UserError, match=r"cut.npy cannot be read"):
        read_kernel(str(tmp_path / "cut.npy"), N)


def test_pickles_are_not_opened(tmp_path):
    path = tmp_path / "objects.npy"
    np.save(path, np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match=r"objects.npy cannot be read"):
        read_kernel(str(path), 1)


def test_a_bad_kernel_ends_the_run_with_its_reason(tmp_path, saved):
    config = SimConfig(policy="kernel", kernel=saved(symmetric()), n_problems=7)
    with pytest.raises(UserError, match=r"kernel: .* has shape \(6, 6\)"):
        simulate(config)
