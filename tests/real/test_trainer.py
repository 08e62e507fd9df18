from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from tiny_runs import Stopped, check_same, stop_at, timeless

from guard_core import GuardConfig
from lab.arm_settings import with_arm
from lab.base.arms import arm
from lab.base.errors import UserError
from lab.trace.manifest import read_manifest
from lab.trace.schema import TABLES, missing
from lab.trace.trace import load
from real import TrainConfig, resume, train
from real.answers import AnswerIds
from real.model.policy import load_policy
from real.run import batches
from real.settings.stored import stored_config
from real.tiny import CHECKPOINT

SMALL = TrainConfig(
    n_problems=8, batch_size=4, n_votes=16, n_samples=8, epochs=2, max_rows=64, eval_samples=2
)


def small(name, **changes):
    return replace(with_arm(SMALL, arm(name)), **changes)


@pytest.fixture(scope="module")
def ttrl():
    return train(small("ttrl"), progress=False)


def test_trace_has_every_visit_step_and_evaluation(ttrl):
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


def test_steps_tell_what_was_done(ttrl):
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
    sampling = steps["seconds_rollout"] + steps["seconds_further"]
    np.testing.assert_allclose(steps["sampled_per_second"], steps["tokens_sampled"] / sampling)
    trained = steps["tokens"] / steps["seconds_update"]
    np.testing.assert_allclose(steps["trained_per_second"], trained)
    assert (steps["n_refused"] == 0).all() and (steps["n_left_out"] == 0).all()
    assert "kl" not in steps


def test_a_penalty_records_its_divergence_which_grows_from_the_start(ttrl):
    steps = train(small("ttrl", kl_coef=1e-9), progress=False).steps
    assert steps["kl"].gt(0).all() and steps["kl"].iloc[-1] > steps["kl"].iloc[0]
    np.testing.assert_allclose(steps["loss"], ttrl.steps["loss"], atol=1e-6)


def test_skipped_problems_cost_no_update():
    """Every problem that ever flipped is skipped from then on, and only those."""
    eager = GuardConfig().set(
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


def test_evaluations_and_the_saved_model_take_the_average_and_training_does_not(ttrl, tmp_path):
    # At this decay the average stays at the model before training, to the last bit.
    config = small("ttrl", ema_decay=1 - 1e-12, save_model=True)
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


@pytest.mark.slow
def test_true_labels_teach_the_task():
    """Capacity is not the limit: with the truth in place of the votes pass@1 passes .95."""
    config = TrainConfig(
        n_problems=24, epochs=8, n_votes=32, eval_every=0, labels="truth", guard=GuardConfig.off()
    )
    trace = train(config, progress=False)
    assert trace.evals["pass_at_1"].iloc[0] < 0.8
    assert trace.evals["pass_at_1"].iloc[-1] > 0.95


SHORT = TrainConfig(
    n_problems=8, n_votes=4, n_samples=2, epochs=8, eval_every=0, max_bad_steps=6, max_unread=1.0
)
"""8 optimizer steps a batch."""


def test_labels_that_flip_at_visit_2_end_the_run_and_the_next_rate_is_said(tmp_path):
    """The votes of a problem are those of the same run without the bound, whose flips are known."""
    config = replace(SHORT, lr=3e-4, epochs=3)
    visits = train(config, progress=False).visits.query("visit == 2")
    share = visits["flipped"].mean()
    assert 0 < share < 1
    trace = train(replace(config, flips_below=share + 0.01), progress=False)
    assert trace.visits["visit"].max() == 3
    said = rf"{share:.0%} of the labels flipped at visit 2, .* start again with --lr 0\.0001$"
    with pytest.raises(UserError, match=said):
        train(replace(config, flips_below=share), tmp_path / "run", progress=False)
    with pytest.raises(UserError, match=said):  # however often it is gone on with
        resume(tmp_path / "run", progress=False)
    assert load(tmp_path / "run").visits["visit"].max() == 2
    free = stored_config(tmp_path / "run")
    check_same(resume(tmp_path / "run", replace(free, flips_below=None), False), trace)
    taught = replace(config, flips_below=0.0, labels="truth", guard=GuardConfig.off())
    assert train(taught, progress=False).visits["visit"].max() == 3  # true labels never flip


def test_one_unread_problem_in_an_epoch_s_last_batch_does_not_end_the_run(monkeypatch):
    config = replace(SHORT, n_problems=5, batch_size=4, epochs=2, max_unread=0.5)
    (last,) = next(batch for batch in batches(config, 5) if batch.ends_epoch).problems_P
    read = AnswerIds.ids

    def read_others(ids, problem, texts, extract="strict"):
        return read(ids, problem, [""] * len(texts) if problem == last else texts, extract)

    monkeypatch.setattr(AnswerIds, "ids", read_others)
    assert train(config, progress=False).steps["n_unread"].tolist()[:2] == [0, 1]


def test_an_update_that_overflows_is_noted_and_ends_the_run(tmp_path, capsys):
    with pytest.raises(UserError, match=r"was not finite, 6 times in a row; lower lr"):
        train(replace(SHORT, lr=1e10), tmp_path / "run", progress=False)
    run = read_manifest(tmp_path / "run")
    assert run.status == "failed" and "6 times in a row" in (run.error or "")
    refused = "optimizer steps refused since the norm of the update was not finite"
    assert refused in [line.partition(": ")[0] for line in run.extra["notices"]]
    assert f"{refused}: " in capsys.readouterr().err
    assert run.extra["refused_steps"] == sum(
        number for text, (number, _, _) in run.extra["faults"].items() if "refused" in text
    )


@pytest.mark.parametrize("share", [0, 1])
def test_a_resumed_run_keeps_its_notices(share, tmp_path, monkeypatch):
    """With a bound that is never reached the dead run goes on, and counts in each batch."""
    monkeypatch.setattr("real.record.alarms._FORGOTTEN", 1.1)  # an alarm in the first batch
    config = replace(SHORT, lr=1e36, epochs=1, batch_size=4, max_bad_steps=99, checkpoint_every=1)
    whole = train(config, progress=False).run.extra
    with pytest.raises(Stopped):
        train(config, tmp_path / "run", stop_at(share))
    extra = resume(tmp_path / "run", progress=False).run.extra
    assert extra["faults"] == whole["faults"] and extra["notices"] == whole["notices"]
    assert extra["refused_steps"] == whole["refused_steps"] > 0
