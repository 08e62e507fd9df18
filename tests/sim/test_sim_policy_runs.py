"""Whole runs of every policy under every optimizer obey what every trace must."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard_core import GuardConfig
from lab.base.errors import UserError
from sim import SimConfig, simulate
from sim.engine.run import Simulation

N = 10


RUNS = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(["independent", "attractor", "features"]),
        "guard": st.sampled_from([GuardConfig.paper(), GuardConfig.release(), GuardConfig.off()]),
        "optimizer": st.sampled_from(["sgd", "adam"]),
        "max_grad_norm": st.sampled_from([None, 0.2]),
        "mini_batch": st.integers(1, 4),
        "batch_size": st.integers(4, 12),
        "update": st.sampled_from(["sampled", "expected"]),
        "step": st.sampled_from([0.0, 0.06, 1.0, 20.0]),
        "unparseable": st.sampled_from([0.0, 0.3, 1.0]),
        "fixed_population": st.booleans(),
        "feature_dim": st.sampled_from([1, 10, 64]),
        "n_answers": st.integers(2, 5),
        "seed": st.integers(0, 2**63 - 1),
    }
)


@given(chosen=RUNS)
@settings(max_examples=25, deadline=None)
def test_every_run_is_finite_and_its_probabilities_are(chosen):
    config = SimConfig(n_problems=N, epochs=4, replicates=2, n_votes=12, n_samples=7, **chosen)
    simulation = Simulation(config)
    problems_RP = np.tile(np.arange(N), (2, 1))
    for part in simulation.run():
        p_RPA = np.empty((2, N, config.n_answers))
        assert simulation.policy.probabilities(problems_RP, p_RPA) == -1
        assert p_RPA.min() >= 0 and p_RPA.sum(axis=-1) == pytest.approx(1.0)
        if part.steps is not None:
            norm = np.asarray(part.steps["update_norm"], float)
            assert np.isfinite(norm).all() and (norm >= 0).all()
            if config.step == 0 or config.unparseable == 1:
                assert not norm.any()


@pytest.mark.parametrize("policy", ["independent", "attractor", "features"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_step_that_explodes_names_the_visit(policy, optimizer):
    config = SimConfig(policy=policy, optimizer=optimizer, n_problems=N, step=1e308, epochs=3)
    with pytest.raises(UserError, match=r"step = 1e\+308: the logits of problem \d+ .* visit \d "):
        simulate(config)
