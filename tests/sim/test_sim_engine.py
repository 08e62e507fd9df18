import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sim_compiled import sim_configs

from guard_core import GuardConfig
from lab import Trace, UserError, load
from lab.__main__ import main as report_main
from lab.arm_settings import with_arm
from lab.base.arms import arm
from sim import SimConfig, simulate
from sim.engine.rows import majority_right
from sim.engine.run import Simulation

SMALL = SimConfig(n_problems=21, epochs=9, replicates=3, seed=5)


def same(first: Trace, second: Trace) -> bool:
    return all(getattr(first, t).equals(getattr(second, t)) for t in ("visits", "steps", "evals"))


def one_replicate(table: pd.DataFrame, number: int) -> pd.DataFrame:
    return table[table["replicate"] == number].reset_index(drop=True)


@pytest.mark.parametrize("policy", ["independent", "attractor"])
@pytest.mark.parametrize("name", ["guard", "memory"])
def test_a_replicate_is_the_same_run_alone(policy, name):
    small = replace(SMALL, policy=policy, step=0.3, vote_replicates=3)
    config = with_arm(small, arm(name))
    together = simulate(config)
    alone = simulate(replace(config, replicates=1, first_replicate=2))
    for table in ("visits", "steps", "evals", "votes"):
        whole = one_replicate(getattr(together, table), 2)
        assert whole.equals(getattr(alone, table))


def test_a_folder_holds_the_same_trace_whatever_settings_it_has_that_no_longer_exist(tmp_path):
    written = simulate(SMALL, tmp_path / "run")
    assert written.folder == tmp_path / "run"
    assert same(written, simulate(SMALL))
    assert not written.visits.equals(simulate(replace(SMALL, seed=6)).visits)
    manifest = load(tmp_path / "run").run
    assert manifest.world == "sim" and manifest.status == "finished"
    assert manifest.task == "llama-math500" and manifest.seeds == [5]
    assert manifest.config["n_problems"] == 21 and manifest.progress == 1.0
    path = tmp_path / "run" / "run.json"
    facts = json.loads(path.read_text())
    facts["config"] |= {"engine": "torch", "device": "cuda", "cuda_graph": True}
    path.write_text(json.dumps(facts | {"backend": "torch on cuda"}))
    old = load(tmp_path / "run")
    assert same(old, written) and old.run.config["engine"] == "torch"
    assert report_main([str(tmp_path / "run"), "--format", "md"]) == 0


def test_arms_share_problems_order_and_first_votes():
    traces = [
        simulate(with_arm(SMALL, arm(name)))
        for name in ("ttrl", "guard", "frozen", "memory", "memory_guard", "truth")
    ]
    first = traces[0].visits
    shared = ["replicate", "step", "epoch", "visit", "problem", "n_votes"]
    for trace in traces[1:]:
        assert trace.visits[shared].equals(first[shared])
        assert trace.visits[first["visit"] == 0].equals(first[first["visit"] == 0])
    assert not traces[0].visits.equals(traces[3].visits)


def test_majority_accuracy_is_that_of_new_votes_after_training():
    """A policy that training does not move has other votes, of the same law."""
    config = SimConfig(n_problems=400, epochs=3, replicates=8, guard=GuardConfig.off(), step=0.0)
    trace = simulate(config)
    accuracy = trace.evals.pivot(index="replicate", columns="epoch", values="maj_accuracy")
    assert (accuracy[0] != accuracy[3]).any()
    assert accuracy[3].mean() == pytest.approx(accuracy[0].mean(), abs=0.02)


def test_a_majority_without_any_answer_is_wrong():
    counts_RPA = np.array([[[0, 0, 0], [2, 2, 0], [1, 3, 0], [0, 1, 1]]])
    right_RP = majority_right(counts_RPA, np.array([[0, 0, 1, 0]], np.int32))
    assert right_RP.tolist() == [[0.0, 0.5, 1.0, 0.0]]


def test_majority_accuracy_is_of_the_votes_whatever_the_labels():
    off = replace(SMALL, guard=GuardConfig.off(), step=0.0)
    plain = simulate(off)
    still = {name: simulate(with_arm(off, arm(name))) for name in ("frozen", "memory", "truth")}
    assert all(trace.evals.equals(plain.evals) for trace in still.values())


@pytest.mark.parametrize("policy", ["independent", "attractor", "features"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_step_that_explodes_names_the_visit(policy, optimizer, tmp_path):
    config = replace(SMALL, policy=policy, optimizer=optimizer, step=1e308)
    with pytest.raises(UserError, match=r"step = 1e\+308: the logits of problem \d+ .* visit \d "):
        simulate(config, tmp_path / "run")
    found = load(tmp_path / "run")
    assert found.run.status == "failed" and len(found.visits) in (63, 2 * 63)


def test_an_interrupted_run_can_be_read(tmp_path, monkeypatch):
    whole = Simulation.epoch

    def epoch(self, number):
        if number == 4:
            raise KeyboardInterrupt
        return whole(self, number)

    monkeypatch.setattr(Simulation, "epoch", epoch)
    with pytest.raises(KeyboardInterrupt):
        simulate(SMALL, tmp_path / "run")
    found = load(tmp_path / "run")
    assert found.run.status == "interrupted" and found.run.progress == pytest.approx(3 / 9)
    assert found.visits["epoch"].max() == 3 and len(found.visits) == 3 * 21 * 4


def test_the_norm_of_a_batch_is_the_mean_over_its_optimizer_steps():
    """Of 8 and 3 problems, in steps of 3, 3 and 2 problems and of 3."""
    size = {"n_problems": 11, "batch_size": 8, "mini_batch": 3, "epochs": 1, "replicates": 2}
    _, part = Simulation(SimConfig(**size)).run()
    norm_RN = part.epoch.norm_RN
    wanted_RB = np.stack([norm_RN[:, [0, 3, 6]].mean(axis=1), norm_RN[:, 8]], axis=1)
    assert part.steps["update_norm"] == pytest.approx(wanted_RB.ravel())
    assert (norm_RN[:, 6] != norm_RN[:, 0]).all()


@st.composite
def configs(draw: st.DrawFn) -> SimConfig:
    config = draw(sim_configs())
    return replace(
        config,
        policy=draw(st.sampled_from(["independent", "attractor", "features"])),
        optimizer=draw(st.sampled_from(["sgd", "adam"])),
        max_grad_norm=draw(st.sampled_from([None, 0.2])),
        mini_batch=draw(st.integers(1, config.batch_size)),
        update=draw(st.sampled_from(["sampled", "expected"])),
        fixed_population=draw(st.booleans()),
        feature_dim=draw(st.sampled_from([1, 10, 64])),
        population=draw(st.sampled_from(["llama-math500", "qwen-amc", "llama-aime24"])),
        unparseable=draw(st.sampled_from([0.0, 0.0, 0.3, 1.0])),
        step=draw(st.sampled_from([0.0, 0.06, 1.0, 20.0])),
        schedule=draw(st.sampled_from(["cosine", "constant"])),
        seed=draw(st.integers(0, 2**63 - 1)),
    )


@given(configs())
@settings(max_examples=25, deadline=None)
def test_every_trace_is_complete_and_finite(config):
    trace = simulate(config)
    visits = trace.visits
    rows = config.replicates * config.n_problems
    assert len(visits) == rows * (config.epochs + 1)
    assert len(trace.steps) == config.replicates * config.epochs * config.n_batches
    undefined = visits["visit"] == 0
    assert visits.loc[undefined, "mean_match_rate"].isna().all()
    assert np.isfinite(visits[~undefined].to_numpy(float)).all()
    assert np.isfinite(trace.steps.to_numpy(float)).all()
    if config.step == 0 or config.unparseable == 1:
        assert not trace.steps["update_norm"].any()
    if config.unparseable == 1:
        assert (visits["label"] == -1).all() and not trace.evals["pass_at_1"].any()
    between = trace.evals["epoch"].between(1, config.epochs - 1)
    assert (trace.evals["maj_accuracy"].isna() == between).all()
    assert np.isfinite(trace.evals.drop(columns="maj_accuracy").to_numpy(float)).all()
    shares = visits[["match_rate", "flip_rate", "beta", "label_accuracy"]]
    assert shares.min(axis=None) >= 0 and shares.max(axis=None) <= 1
    assert visits["n_unparseable"].between(0, config.n_votes).all()
    assert visits["label"].between(-1, config.n_answers - 1).all()
    # The label's votes, the truth's votes and the unparseable ones all lie within the V votes.
    apart = ~visits["label_correct"]
    used = visits["label_accuracy"] + visits["match_rate"] * apart
    used += visits["n_unparseable"] / config.n_votes
    assert used.max() <= 1 + 1e-9


VOTED = SimConfig(
    n_problems=21, epochs=4, batch_size=8, replicates=3, vote_replicates=2, unparseable=0.2
)


def test_keeping_votes_changes_nothing_else():
    config = replace(VOTED, guard=GuardConfig().set(label_from="memory"))
    runs = [simulate(replace(config, vote_replicates=n)) for n in (0, 1, 99)]
    assert same(runs[0], runs[1]) and same(runs[0], runs[2]) and runs[0].votes.empty
    assert [sorted(run.votes["replicate"].unique()) for run in runs[1:]] == [[0], [0, 1, 2]]
    columns = ["visit", "problem", "answer", "count"]
    one, all_three = (run.votes.sort_values(["replicate", *columns]) for run in runs[1:])
    assert one_replicate(all_three, 0).equals(one_replicate(one, 0))


def test_a_control_has_the_routes_of_the_guard_where_it_skips_nothing():
    """Also where the smallest share skipped a problem of the guard's that was not at high risk."""
    still = replace(SMALL, step=0.0, guard=GuardConfig().set(min_share=0.6, tau_FR=0.1, W=2))
    own, dealt = (simulate(replace(still, treatment=t)).visits for t in ("own", "permuted"))
    unskipped = simulate(replace(still, guard=still.guard.set(min_share=0.0, rcsu=False))).visits
    routes = np.where(dealt["skipped"], 3, unskipped["route"])
    assert (own["route"] != unskipped["route"]).any() and (own["skipped"] != dealt["skipped"]).any()
    np.testing.assert_array_equal(dealt["route"], routes)
