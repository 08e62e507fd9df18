"""Paired arms, and controls that move or skip as much as a guard, found from its run."""

from dataclasses import replace

import numpy as np
import pytest

from guard_core import GuardConfig
from lab.arm_settings import with_arm
from lab.base.arms import arm
from lab.base.errors import UserError
from lab.compare.effort import CLOSE, achieved_ratio
from lab.trace.trace import load
from sim import SimConfig, simulate
from sim.engine.run import measure
from sim.studies.compare import compare
from sim.studies.controls import find

BASE = SimConfig(n_problems=60, epochs=12, replicates=4, step=0.3, seed=2)
BUSY = replace(BASE, guard=GuardConfig(tau_FR=0.1, theta_MR=0.0, W=2, skip_share=0.5))
"""A guard that fires and skips often, so that there is something to match."""


@pytest.fixture(scope="module")
def runs():
    return {"guard": measure(BUSY), "ttrl": measure(with_arm(BASE, arm("ttrl")))}


def mean(table, name):
    return float(table[name].to_numpy().mean())


def test_matched_effort_moves_as_far_as_the_guard(runs):
    asked = []

    def run(config):
        asked.append(config)
        return measure(config)

    found = find("matched", with_arm(BASE, arm("ttrl")), runs["guard"], runs["ttrl"], run)
    assert mean(runs["guard"], "update_norm") < 0.97 * mean(runs["ttrl"], "update_norm")
    assert found.achieved_ratio == pytest.approx(1, abs=CLOSE)
    assert 0 < found.config.step_factor < 1 and len(asked) <= 3
    assert found.config == replace(
        with_arm(BASE, arm("ttrl")), step_factor=found.config.step_factor
    )
    ratio = mean(measure(found.config), "update_norm") / mean(runs["guard"], "update_norm")
    assert ratio == found.achieved_ratio


def test_random_skipping_skips_as_much_as_the_guard(runs):
    found = find("random_skip", with_arm(BASE, arm("ttrl")), runs["guard"], runs["ttrl"], measure)
    share = mean(runs["guard"], "skipped") / 100
    assert found.config.skip_rate == share > 0.01
    assert found.achieved_ratio == pytest.approx(1, abs=0.2)
    assert mean(found.table, "skipped") == pytest.approx(100 * share * found.achieved_ratio)


def test_a_guard_that_never_skips_leaves_ttrl_as_it_is(runs):
    never = measure(replace(BASE, guard=GuardConfig.only("frs")))
    found = find("random_skip", with_arm(BASE, arm("ttrl")), never, runs["ttrl"], measure)
    assert found.config.skip_rate == 0 and np.isnan(found.achieved_ratio)
    assert found.table.equals(runs["ttrl"])


@pytest.mark.parametrize("side", ["guard", "ttrl"])
def test_runs_that_did_not_move_cannot_be_matched(runs, side):
    still = {**runs, side: runs[side].assign(update_norm=0.0)}
    with pytest.raises(UserError, match="did not move"):
        find("matched", with_arm(BASE, arm("ttrl")), still["guard"], still["ttrl"], measure)


def test_skipped_visits_are_watched_and_not_trained_on():
    config = replace(with_arm(BASE, arm("ttrl")), skip_rate=0.4)
    visits = simulate(config).visits
    training = visits[visits["visit"] > 0]
    n = len(training)
    assert training["skipped"].mean() == pytest.approx(0.4, abs=4 * (0.24 / n) ** 0.5)
    assert (training["route"] == 3).equals(training["skipped"])
    assert not visits[visits["visit"] == 0]["skipped"].any()
    everything = simulate(replace(config, skip_rate=1.0))
    assert (everything.steps["update_norm"] == 0).all()
    assert everything.evals.groupby("replicate")["pass_at_1"].nunique().eq(1).all()
    assert (everything.steps["n_skipped"] == everything.steps["n_problems"]).all()


CONFIG = SimConfig(n_problems=40, epochs=10, replicates=3, step=0.2, seed=2)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare") / "new"
    arms = [arm(name) for name in ("matched", "ttrl", "guard", "frozen", "memory")]
    return out, compare(CONFIG, arms, out)


def test_every_arm_leaves_its_folder_and_starts_from_the_same_votes(compared):
    out, traces = compared
    assert list(traces) == ["matched", "ttrl", "guard", "frozen", "memory"]
    for name in traces:
        run = load(out / name).run
        assert run.arm == name and run.seeds == [2] and run.task == "llama-math500"
    starts = [trace.visits[trace.visits["visit"] == 0] for trace in traces.values()]
    assert all(start.equals(starts[0]) for start in starts)


def test_matched_effort_is_matched_and_says_how_well(compared):
    _, traces = compared
    facts = traces["matched"].run.extra
    ratio = achieved_ratio(traces["matched"].steps, traces["guard"].steps)
    assert facts["achieved_ratio"] == pytest.approx(ratio)
    assert ratio == pytest.approx(1, abs=0.02)
    assert traces["matched"].run.config["step_factor"] == facts["step_factor"]
    lr = traces["matched"].steps["lr"] / traces["ttrl"].steps["lr"]
    assert lr.to_numpy() == pytest.approx(facts["step_factor"])


def test_arms_that_do_not_fit_are_refused_before_the_first_run(tmp_path):
    for names, message in (
        (["guard", "matched"], "matched needs ttrl and guard; add them"),
        (["ttrl", "recommended"], "kl_coef: only policy = measured reads it"),
    ):
        with pytest.raises(UserError, match=message):
            compare(CONFIG, [arm(name) for name in names], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_comparison_goes_on_and_workers_change_nothing(compared, tmp_path):
    _, traces = compared
    arms = [arm(name) for name in ("ttrl", "guard", "matched")]
    compare(CONFIG, arms[:1], tmp_path)
    kept = (tmp_path / "ttrl" / "run.json").read_bytes()
    found = compare(CONFIG, arms, tmp_path, workers=2)
    assert (tmp_path / "ttrl" / "run.json").read_bytes() == kept
    for name, trace in found.items():
        assert trace.visits.equals(traces[name].visits) and trace.steps.equals(traces[name].steps)
    with pytest.raises(UserError, match="settings differ from those it was run with: epochs;"):
        compare(replace(CONFIG, epochs=9), arms[:1], tmp_path)
    with pytest.raises(UserError, match="workers = 0: must be at least 1"):
        compare(CONFIG, arms, tmp_path, workers=0)
