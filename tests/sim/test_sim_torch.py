"""The engine on PyTorch leaves the trace of the compiled one, but for rounding.

Whole numbers are compared exactly. A last-bit difference of an exponential can in principle move a
vote, for about one vote in 10^15; the seeds here are ones where it does not.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guard_core import GuardConfig
from lab.errors import UserError
from sim import SimConfig, simulate
from sim.cli import main
from sim.engine.measure import measure
from sim.engine.simulation import run_epochs
from sim.torch_engine.votes import Ballot
from sim.torch_engine.words import fold, seed_key, unit
from sim.world import random
from sim.world.sampling import draw_votes

CPU = torch.device("cpu")
SMALL = SimConfig(n_problems=21, epochs=7, batch_size=8, replicates=3)
POLICIES = ("independent", "attractor", "features", "kernel")
OPTIMIZERS: dict[str, dict] = {
    "sgd": {},
    "adam": {"optimizer": "adam"},
    "mini-batches": {"mini_batch": 3},
    "clipped": {"max_grad_norm": 0.1, "mini_batch": 2},
    "adam, mini-batches, clipped": {"optimizer": "adam", "max_grad_norm": 0.2, "mini_batch": 5},
}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    noise_NN = np.random.default_rng(0).normal(0, 0.1, (SMALL.n_problems, SMALL.n_problems))
    path = tmp_path_factory.mktemp("kernel") / "kernel.npy"
    np.save(path, np.eye(SMALL.n_problems) + (noise_NN + noise_NN.T) / 2)
    return str(path)


def with_policy(name: str, kernel: str) -> SimConfig:
    return replace(SMALL, policy=name, feature_dim=12, kernel=kernel if name == "kernel" else None)


def on_torch(config: SimConfig) -> SimConfig:
    return replace(config, engine="torch", device="cpu")


def assert_same_trace(one, two, tolerance: float) -> None:
    for first, second in zip(one, two, strict=True):
        for table in ("visits", "steps", "evals", "votes"):
            a, b = getattr(first, table) or {}, getattr(second, table) or {}
            assert set(a) == set(b)
            for name in a:
                assert a[name].dtype == b[name].dtype, name
                if a[name].dtype.kind == "f":
                    np.testing.assert_allclose(
                        a[name], b[name], rtol=0, atol=tolerance, err_msg=name
                    )
                else:
                    np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def assert_agrees(config: SimConfig) -> None:
    assert_same_trace(run_epochs(config), run_epochs(on_torch(config)), 1e-9)


@given(
    st.integers(0, 2**63 - 1),
    st.integers(0, 30_000),
    st.integers(0, 4),
    st.integers(0, 10**5),
    st.integers(1, 5),
)
@settings(max_examples=50, deadline=None)
def test_random_numbers_are_the_same_bits(seed, first, purpose, epoch, replicates):
    expected_RN = random.uniforms(seed, first, replicates, purpose, epoch, 7)
    key_R = fold(seed_key(seed, CPU), torch.arange(first, first + replicates))
    stream_R1 = fold(fold(key_R, purpose), torch.tensor(epoch))[:, None]
    found_RN = unit(fold(stream_R1, torch.arange(7)))
    assert (found_RN.numpy() == expected_RN).all()


@given(st.integers(0, 2**31), st.integers(1, 80), st.integers(2, 12), st.data())
@settings(max_examples=50, deadline=None)
def test_votes_are_the_same_where_the_probabilities_are(seed, n_votes, n_answers, data):
    n_samples = data.draw(st.integers(1, n_votes))
    parseable = data.draw(st.sampled_from([1.0, 0.7, 0.0]))
    rng = np.random.default_rng(seed)
    p_RPA = rng.dirichlet(np.full(n_answers, data.draw(st.sampled_from([0.01, 1.0]))), (3, 4))
    problems_RP = rng.permuted(np.tile(np.arange(9), (3, 1)), axis=1)[:, :4].copy()
    counts_RPA, samples_RPA = np.empty((2, 3, 4, n_answers), np.int64)
    sizes = (n_votes, counts_RPA, samples_RPA, n_samples)
    draw_votes(seed, 5, 2, problems_RP, p_RPA, parseable, *sizes)
    key_R = fold(seed_key(seed, CPU), torch.arange(5, 8))
    key_RP = fold(fold(fold(key_R, random.VOTES), 2)[:, None], torch.from_numpy(problems_RP))
    votes = Ballot(n_votes, n_samples, parseable, CPU).draw(key_RP, torch.from_numpy(p_RPA))
    assert (votes.counts.numpy() == counts_RPA).all()
    assert (votes.samples.numpy() == samples_RPA).all()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_and_optimizer_agrees(policy, optimizer, kernel):
    for seed in (0, 1):
        config = replace(with_policy(policy, kernel), seed=seed, **OPTIMIZERS[optimizer])
        assert_agrees(config)


GUARDS = [
    GuardConfig.off(),
    GuardConfig.release(),
    GuardConfig(tie_break="incumbent", label_from="memory", discount=0.9, advantage_scale="batch"),
    GuardConfig(label_from="frozen", weight_on="reward", empty_minority="plain"),
    GuardConfig(W=1, tau_FR=0.0, theta_MR=0.0, p_skip=0.9, skip_share=0.5, advantage_scale="none"),
]


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize(
    "options",
    [
        {"unparseable": 0.3, "n_votes": 5, "n_samples": 3},
        {"skip_rate": 0.4, "labels": "truth", "mini_batch": 2},
        {"update": "expected", "unparseable": 0.1, "schedule": "constant"},
        {"fixed_population": True, "first_replicate": 4, "n_answers": 2, "batch_size": 1},
    ],
)
def test_every_guard_and_setting_agrees(guard, options):
    assert_agrees(replace(SMALL, guard=guard, **options))


def test_shared_features_agree():
    assert_agrees(replace(SMALL, policy="features", feature_dim=5, fixed_population=True))


def test_same_seed_same_bits_and_replicates_stand_alone():
    config = on_torch(replace(SMALL, replicates=4))
    assert_same_trace(run_epochs(config), run_epochs(config), 0)
    whole, alone = simulate(config), simulate(replace(config, first_replicate=2, replicates=1))
    part = whole.visits[whole.visits["replicate"] == 2].reset_index(drop=True)
    assert (part["label"] == alone.visits["label"]).all()
    np.testing.assert_allclose(part["label_accuracy"], alone.visits["label_accuracy"])


def test_many_answers_in_one_chunk_or_several(monkeypatch):
    config = replace(SMALL, n_answers=40)
    monkeypatch.setattr("sim.torch_engine.engine._WORDS", 1000)
    assert_agrees(config)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_exploding_step_names_the_same_visit(policy, kernel):
    config = replace(with_policy(policy, kernel), step=1e308, schedule="constant")
    messages = []
    for engine in (config, on_torch(config)):
        with pytest.raises(UserError) as error, np.errstate(all="ignore"):
            list(run_epochs(engine))
        messages.append(str(error.value))
    assert messages[0] == messages[1] and "step = 1e+308" in messages[0]


def test_measures_and_commands_take_the_engine(tmp_path, capsys):
    table, other = measure(SMALL), measure(on_torch(SMALL))
    np.testing.assert_allclose(table, other, atol=1e-7)
    few = ["--n-problems", "12", "--epochs", "7", "--engine", "torch", "--device", "cpu", "--quiet"]
    assert main(["run", "--out", str(tmp_path / "run"), *few]) == 0
    assert str(tmp_path / "run") in capsys.readouterr().out
    assert simulate(on_torch(SMALL)).run.backend == "torch on cpu"


def test_what_is_missing_is_named(monkeypatch):
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="device = cuda: PyTorch finds no CUDA device"):
            run_epochs(replace(SMALL, engine="torch", device="cuda"))
    with pytest.raises(UserError, match="device: only engine = torch reads it"):
        replace(SMALL, device="cpu")
    with pytest.raises(UserError, match="cuda_graph: only a GPU has it"):
        replace(SMALL, engine="torch", device="cpu", cuda_graph=True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="PyTorch is not installed; pip install"):
        run_epochs(on_torch(SMALL))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("cuda_graph", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_gpu_agrees(policy, cuda_graph, kernel):
    for options in OPTIMIZERS.values():
        config = replace(with_policy(policy, kernel), **options)
        on_gpu = replace(config, engine="torch", device="cuda", cuda_graph=cuda_graph)
        assert_same_trace(run_epochs(config), run_epochs(on_gpu), 1e-9)
        assert_same_trace(run_epochs(on_gpu), run_epochs(on_gpu), 0)
