"""The whole loop on the tiny task: trace, determinism, pairing, skipping, learning."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tiny_runs import check_same, timeless

from guard_core import GuardConfig
from lab.arms import arm
from lab.trace.schema import TABLES, missing
from lab.trace.trace import Trace, load
from real import TrainConfig, train
from real.model.policy import load_policy
from real.tiny import CHECKPOINT

SMALL = TrainConfig(
    n_problems=8, batch_size=4, n_votes=16, n_samples=8, epochs=2, max_rows=64, eval_samples=2
)


def small(name: str, **changes: object) -> TrainConfig:
    chosen = arm(name)
    return replace(SMALL, guard=chosen.guard, labels=chosen.labels, **changes)


@pytest.fixture(scope="module")
def ttrl() -> Trace:
    return train(small("ttrl"), progress=False)


def test_trace_has_every_visit_step_and_evaluation(ttrl: Trace):
    for table in TABLES:
        assert not missing(table, set(getattr(ttrl, table).columns))
    visits = ttrl.visits
    assert visits.groupby("visit").size().tolist() == [8, 8, 8]
    assert (visits.groupby("problem").size() == 3).all()
    assert ((visits["visit"] == 0) == (visits["step"] == 0)).all()
    assert (visits["epoch"] == visits["visit"]).all()
    assert ttrl.steps["step"].tolist() == [1, 2, 3, 4]
    assert ttrl.evals["step"].tolist() == [0, 2, 4]
    assert ttrl.evals["maj_accuracy"].notna().tolist() == [True, False, True]
    assert ttrl.run.arm == "ttrl" and ttrl.run.task == "tiny" and ttrl.run.seeds == [0]
    assert ttrl.run.status == "finished" and ttrl.run.ended is not None
    assert ttrl.run.config["lr"] == 3e-4 and ttrl.run.n_problems == 8


def test_steps_tell_what_was_done(ttrl: Trace):
    steps = ttrl.steps
    assert (steps["update_norm"] > 0).all() and (steps["n_updates"] == 4).all()
    assert (steps["lr"] > 0).all() and (steps["lr"] <= 3e-4).all()
    # Every response of the tiny task has 22 tokens once it is well formed.
    assert steps["mean_length"].between(15, 22).all()
    assert (steps["tokens_sampled"] == steps["mean_length"] * 64).all()
    assert (steps["entropy"] > 0).all() and steps["truncated"].between(0, 0.2).all()
    silent = steps["n_uniform"]
    assert (steps["tokens"] <= (4 - silent) * 8 * 22).all()
    phases = [f"seconds_{phase}" for phase in ("rollout", "grade", "guard", "update", "sync")]
    assert (steps[phases] > 0).all(axis=None)
    assert (steps["seconds_step"] >= steps[phases].sum(axis=1)).all()
    np.testing.assert_allclose(
        steps["sampled_per_second"],
        steps["tokens_sampled"] / (steps["seconds_rollout"] + steps["seconds_further"]),
    )
    np.testing.assert_allclose(
        steps["trained_per_second"], steps["tokens"] / steps["seconds_update"]
    )
    assert (steps["n_refused"] == 0).all() and (steps["n_left_out"] == 0).all()


def test_same_seed_gives_the_same_bits_in_memory_and_on_disk(ttrl: Trace, tmp_path: Path):
    again = train(small("ttrl"), tmp_path / "run", progress=False)
    check_same(ttrl, again)
    check_same(ttrl, load(tmp_path / "run"))
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["status"] == "finished" and manifest["progress"] == 1.0


def test_another_seed_gives_other_votes(ttrl: Trace):
    other = train(small("ttrl", seed=1, epochs=1), progress=False)
    mine = ttrl.visits[ttrl.visits["visit"] == 0]
    theirs = other.visits[other.visits["visit"] == 0]
    assert not np.array_equal(mine["match_rate"], theirs["match_rate"])


def test_arms_of_one_seed_share_votes_order_and_first_evaluation(ttrl: Trace):
    other = train(small("frozen"), progress=False)
    for column in ("label", "match_rate", "tie", "label_accuracy"):
        first, second = (
            t.visits.loc[t.visits["visit"] == 0, column].to_numpy() for t in (ttrl, other)
        )
        np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(ttrl.visits["problem"], other.visits["problem"])
    assert ttrl.evals.iloc[0].equals(other.evals.iloc[0])
    # The first batch is sampled before any update, so it is shared too.
    first, second = (t.visits[t.visits["step"] == 1] for t in (ttrl, other))
    np.testing.assert_array_equal(first["n_unparseable"], second["n_unparseable"])


def test_micro_batches_change_nothing_but_rounding(ttrl: Trace):
    cut = train(small("ttrl", micro_tokens=100), progress=False)
    whole = ttrl.steps.iloc[:1]
    np.testing.assert_allclose(cut.steps["loss"].iloc[0], whole["loss"].iloc[0], atol=1e-4)
    np.testing.assert_allclose(
        cut.steps["update_norm"].iloc[0], whole["update_norm"].iloc[0], rtol=1e-2
    )


def test_skipped_problems_cost_no_update():
    """Every problem that ever flipped is skipped from then on, and only those."""
    eager = GuardConfig(
        frs=False, mps=False, W=1, tau_FR=0.0, theta_MR=0.0, p_skip=1.0, skip_share=1.0
    )
    trace = train(replace(SMALL, guard=eager, epochs=4), progress=False)
    trained = trace.visits[trace.visits["visit"] > 0]
    ever = trained.groupby("problem")["flipped"].cummax()
    assert ever.any()
    np.testing.assert_array_equal(trained["skipped"], ever)
    steps = trace.steps
    assert (steps["n_skipped"] + steps["n_updates"] == 4).all()
    assert (steps["tokens"] <= steps["n_updates"] * 8 * 22).all()
    left_out = steps[steps["n_updates"] == 0]
    assert (left_out["update_norm"] == 0).all()


def test_problems_with_a_weak_label_cost_no_update():
    weak = replace(GuardConfig.off(), min_share=0.6, margin_power=1)
    trace = train(replace(SMALL, guard=weak), progress=False)
    trained = trace.visits[trace.visits["visit"] > 0]
    share = 16 * trained["match_rate"] / (16 - trained["n_unparseable"])
    assert trained["skipped"].any() and not trained["skipped"].all()
    np.testing.assert_array_equal(trained["skipped"], share < 0.6)
    # With two answers the margin is 2 * share - 1, with more it is larger.
    assert (trained["weight"] >= 2 * share - 1 - 1e-12).all() and (trained["weight"] <= share).all()
    assert (trace.steps["n_skipped"] + trace.steps["n_updates"] == 4).all()
    assert (trace.steps["n_skipped"] > 0).any()


def test_evaluations_and_the_saved_model_take_the_average_and_training_does_not(
    ttrl: Trace, tmp_path: Path
):
    # At this decay the average stays at the model before training, to the last bit.
    config = small("ttrl", average=1 - 1e-12, save_model=True)
    trace = train(config, tmp_path / "run", progress=False)
    pd.testing.assert_frame_equal(trace.visits, ttrl.visits, check_exact=True)
    pd.testing.assert_frame_equal(timeless(trace), timeless(ttrl), check_exact=True)
    evals = [t.evals.drop(columns="step") for t in (trace, ttrl)]
    pd.testing.assert_frame_equal(evals[0][:1], evals[1][:1], check_exact=True)
    assert not evals[0][-1:].equals(evals[1][-1:])
    saved, start = (
        dict(load_policy(folder, "cpu").model.named_parameters())
        for folder in (tmp_path / "run" / "model", CHECKPOINT)
    )
    assert all(torch.equal(saved[name], start[name]) for name in start)


def test_step_factor_scales_the_learning_rate(ttrl: Trace):
    half = train(small("ttrl", step_factor=0.5, epochs=2), progress=False)
    np.testing.assert_allclose(half.steps["lr"], 0.5 * ttrl.steps["lr"])
    assert half.steps["update_norm"].iloc[0] < ttrl.steps["update_norm"].iloc[0]
    assert half.run.arm == "matched" and half.run.extra["step_factor"] == 0.5


def test_several_problems_per_optimizer_step():
    trace = train(small("ttrl", mini_batch=3, epochs=1), progress=False)
    assert (trace.steps["n_updates"] == 2).all()


def test_last_batch_may_be_smaller():
    trace = train(small("guard", batch_size=3, epochs=1, eval_every=0), progress=False)
    assert trace.steps["n_problems"].tolist() == [3, 3, 2]
    assert trace.evals["step"].tolist() == [0, 3]


def test_progress_can_be_a_function():
    shares: list[float] = []
    train(small("ttrl", epochs=1), progress=shares.append)
    assert shares == [0.5, 1.0]


@pytest.mark.slow
def test_true_labels_teach_the_task():
    """Capacity is not the limit: with the truth in place of the votes pass@1 passes .95."""
    config = TrainConfig(
        n_problems=24, epochs=8, n_votes=32, eval_every=0, labels="truth", guard=GuardConfig.off()
    )
    trace = train(config, progress=False)
    assert trace.evals["pass_at_1"].iloc[0] < 0.8
    assert trace.evals["pass_at_1"].iloc[-1] > 0.95


@pytest.mark.slow
def test_votes_make_flips_rise_and_collapse():
    """Plain TTRL: labels flip early, then hardly ever; consensus grows whatever is right."""
    config = TrainConfig(n_problems=32, epochs=8, eval_every=0, guard=GuardConfig.off(), seed=1)
    visits = train(config, progress=False).visits
    flips = visits.groupby("visit")["flipped"].mean()
    assert flips.loc[1:3].max() > 0.1
    assert flips.loc[6:].max() < 0.5 * flips.max()
    agreement = visits.groupby("visit")["match_rate"].mean()
    assert agreement.loc[8] > agreement.loc[0] + 0.2
