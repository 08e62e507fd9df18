import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from measured_response import N, settings, small_response

from guard_core import GuardConfig
from lab.arm_settings import with_arm
from lab.base.arms import arm
from lab.base.errors import UserError
from lab.base.stats import difference, estimate
from lab.compare.effort import BEST_RIVAL, own_best_words
from lab.measures import MEASURES
from lab.trace.response import write_response
from lab.trace.trace import Trace
from sim import SimConfig, simulate
from sim.studies.agree import agree
from sim.studies.compare import (
    BEST,
    compare,
    contrasts,
    print_summary,
    report,
    rows_of,
    untrained_vote,
    with_votes,
)

CONFIG = SimConfig(n_problems=40, epochs=10, replicates=3, step=0.2, seed=2)


def test_a_long_summary_counts_the_lines_that_its_table_leaves_out(capsys):
    rows = [
        {"guard.W": W, "arm": name, "replicate": 0, "status": "done", "key": f"{name} {W}"}
        | dict.fromkeys((*MEASURES, "step_factor"), 1.0)
        for W in range(150)
        for name in ("vote", "ttrl")
    ]
    print_summary(pd.DataFrame(rows), ["guard.W"])
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if "more" in line] == ["... 100 more lines; all are in the file"]


def test_arms_that_are_one_run_each_have_their_lines(capsys):
    rows = [
        {"guard.negative_scale": x, "arm": name, "replicate": 0, "status": "done", "key": f"{x}"}
        | dict.fromkeys((*MEASURES, "step_factor"), 1.0)
        for x in (0.0, 1.0)
        for name in ("ttrl", "positive")
    ]
    print_summary(pd.DataFrame(rows), ["guard.negative_scale"])
    shown = re.findall(r"^(\d) +(ttrl|positive) ", capsys.readouterr().out, re.M)
    assert shown == 2 * [("0", "ttrl"), ("0", "positive"), ("1", "ttrl"), ("1", "positive")]


def test_skipped_visits_are_watched_and_not_trained_on():
    config = replace(with_arm(CONFIG, arm("ttrl")), skip_rate=0.4)
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


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare") / "new"
    return out, compare(CONFIG, ("matched", "ttrl", "guard", "frozen", "memory"), out)


def test_votes_that_need_no_training_are_rows_of_every_table(compared, tmp_path, capsys):
    _, traces = compared
    rows = with_votes(rows_of(traces, CONFIG), CONFIG)
    start = rows[rows["arm"] == "ttrl"].set_index("replicate")["maj_start"]
    vote = rows[rows["arm"] == "vote"].set_index("replicate")
    assert vote["pass_final"].to_dict() == start.to_dict() and vote["TotalDeg"].isna().all()
    report(rows_of(traces, CONFIG), CONFIG, tmp_path)
    text = capsys.readouterr().out
    own = rows[rows["arm"] == "ttrl"].set_index("replicate")["pass_final"]
    shown = re.escape(difference(estimate(own - start), starred=True))
    assert re.search(rf"\nttrl .* {shown}", text.partition("pass_final - vote")[2])
    assert text.count("\nmaj_at_n ") == 2 and text.count("\nvote ") == 1


def test_a_vote_of_a_whole_run_s_samples_is_that_of_the_arm_that_only_votes():
    """At 6 visits of 64 votes on 40 problems the two differ by the noise of their votes alone."""
    config = replace(with_arm(CONFIG, arm("maj_at_n")), epochs=5, replicates=20)
    by_arm = rows_of({"maj_at_n": simulate(config)}, config).set_index("replicate")
    assert by_arm["pass_final"].equals(by_arm["label_final"])
    drawn = untrained_vote(config, 6 * config.n_votes)
    assert drawn.shape == (20,) and abs(drawn.mean() - by_arm["label_final"].mean()) < 1.5
    few = untrained_vote(config, 1).mean()
    assert abs(few - by_arm["pass_start"].mean()) < 6 and drawn.mean() > few
    half = untrained_vote(replace(config, unparseable=0.5), 2).mean()
    assert half < few  # a quarter of the problems has no vote
    assert not untrained_vote(replace(config, unparseable=1.0), 2).any()


def test_a_problem_without_any_readable_response_has_no_right_vote(tmp_path: Path):
    response = small_response()
    answers = np.where(np.arange(len(response.leaf_answer)) < 6, -1, response.leaf_answer)
    write_response(tmp_path / "r.npz", replace(response, leaf_answer=answers))
    vote = untrained_vote(settings(str(tmp_path / "r.npz")), 500)
    assert vote.any() and (vote <= 100 * (N - 1) / N + 1e-9).all()


def test_real_runs_that_score_some_problems_alone_are_not_held_against_all_simulated_ones():
    visits = simulate(replace(CONFIG, epochs=1, replicates=1)).visits
    visits.loc[visits["problem"].isin([3, 7]), "label_accuracy"] = np.nan
    runs = [SimpleNamespace(title="TTRL")]
    real = SimpleNamespace(runs={"ttrl": runs}, traces={"ttrl": SimpleNamespace(visits=visits)})
    with pytest.raises(UserError, match="real: TTRL has problems without a known answer"):
        agree([real], SimpleNamespace(of=lambda runs: None))


def test_arms_that_do_not_fit_are_refused_before_the_first_run(tmp_path):
    with pytest.raises(UserError, match="kl_coef: only policy = measured reads it"):
        compare(CONFIG, ["ttrl", "recommended"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "value"), [("labels", "truth"), ("step_factor", 0.5), ("treatment", "permuted")]
)
def test_what_every_arm_has_of_its_own_is_refused(tmp_path, name, value):
    with pytest.raises(UserError, match=f"{name}: every arm has its own"):
        compare(replace(CONFIG, **{name: value}), ["ttrl"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_further_arms_have_the_settings_of_those_that_are_there(compared):
    out, _ = compared
    for changed in ({"n_problems": 41}, {"seed": 7}, {"step": 0.1}):
        with pytest.raises(UserError, match=rf"settings differ .*{next(iter(changed))} = "):
            compare(replace(CONFIG, **changed), ["truth"], out)
    assert not (out / "truth").exists()


def test_workers_change_nothing(compared, tmp_path):
    _, traces = compared
    arms = ("ttrl", "guard", "matched")
    for name, trace in compare(CONFIG, arms, tmp_path, workers=2).items():
        assert trace.visits.equals(traces[name].visits) and trace.steps.equals(traces[name].steps)
    with pytest.raises(UserError, match="workers = 0: must be at least 1"):
        compare(CONFIG, arms, tmp_path, workers=0)


ACTIVE = GuardConfig().set(flip_rate="instant", theta_MR=0.0, tau_FR=0.1, skip_share=0.5)
STILL = SimConfig(n_problems=24, epochs=8, replicates=3, step=0.0, seed=4, guard=ACTIVE)
"""Nothing moves, so every run has the same votes; the guard acts often."""
TREATED = ["weight", "beta", "skipped"]
SEEN = ["problem", "label", "flipped", "match_rate", "flip_rate", "n_minority", "label_accuracy"]


def batches(trace: Trace) -> pd.Series:
    """Every batch's treatments, in no order."""
    rows = trace.visits.groupby(["replicate", "step"])[TREATED]
    return rows.apply(lambda batch: sorted(map(tuple, batch.to_numpy(float))))


def test_a_permuted_guard_treats_as_much_and_sees_the_same():
    own, dealt = simulate(STILL), simulate(replace(STILL, treatment="permuted"))
    pd.testing.assert_frame_equal(own.visits[SEEN], dealt.visits[SEEN])
    assert (batches(own) == batches(dealt)).all()
    assert len({tuple(map(tuple, map(np.ravel, batch))) for batch in batches(own)}) > 5
    assert (own.visits["weight"] != dealt.visits["weight"]).mean() > 0.1
    assert (dealt.visits["skipped"] == (dealt.visits["route"] == 3)).all()


def test_a_comparison_replays_the_next_replicate(tmp_path: Path):
    moving = replace(STILL, step=0.3)
    traces = compare(moving, ("replayed", "permuted", "guard"), tmp_path / "all")
    keys = ["replicate", "visit", "problem"]
    own, replayed = (traces[name].visits.sort_values(keys) for name in ("guard", "replayed"))
    for replicate in range(3):
        source = own[(own["replicate"] == (replicate + 1) % 3) & (own["visit"] > 0)]
        found = replayed[(replayed["replicate"] == replicate) & (replayed["visit"] > 0)]
        np.testing.assert_array_equal(source[TREATED], found[TREATED])
    assert traces["replayed"].run.arm == "replayed" and traces["permuted"].run.arm == "permuted"
    final = [traces[name].evals["pass_at_1"].iloc[-3:].tolist() for name in traces]
    assert final[0] != final[1] != final[2]


def test_runs_without_decisions_to_replay_are_refused(tmp_path: Path):
    simulate(replace(STILL, replicates=1), tmp_path / "one")
    for treatment, message in [
        ("replayed", "is neither own nor permuted nor the folder of a guard's run"),
        (str(tmp_path / "one"), "has no other seed to replay"),
    ]:
        with pytest.raises(UserError, match=message):
            simulate(replace(STILL, replicates=1, treatment=treatment), tmp_path / "new")
        assert not (tmp_path / "new").exists()
    with pytest.raises(UserError, match="needs a finished run of 23 problems, 8 visits"):
        simulate(replace(STILL, n_problems=23, seed=5, treatment=str(tmp_path / "one")))


STEPS = (0.01, 0.1, 1.0)


@pytest.fixture(scope="module")
def rows():
    """The guard is best at .1, TTRL without training, frozen labels at the largest step."""
    # All arms share the effect of a replicate: paired differences cancel it.
    common = 5 * np.random.default_rng(8).normal(size=12)
    means = {
        "ttrl": (54, 50, 40),
        "guard": (54, 60, 50),
        "frozen": (56, 58, 63),
        "memory": (55.5, 62, 45),
        "truth": (60, 80, 90),
    }
    parts = []
    for name, scores in means.items():
        for step, mean in zip(STEPS, scores, strict=True):
            noise = np.random.default_rng(len(parts)).normal(scale=0.1, size=12)
            part = pd.DataFrame(dict.fromkeys(MEASURES, 0.0), index=range(12))
            part["pass_final"], part["pass_start"] = mean + common + noise, 55 + common
            settings = {"kappa_att": 0.0, "step": step, "arm": name, "policy": "attractor"}
            settings |= {"status": "done", "replicate": range(12), "update_norm": step}
            parts.append(part.assign(**settings))
    return pd.concat(parts, ignore_index=True)


def test_contrasts_hold_every_pair_and_guards_against_the_best_rival(rows):
    table = contrasts(rows, ["kappa_att", "step"])
    scores = table[table["metric"] == "pass_final"]
    assert len(scores) == 10 * 4 + 1
    best = scores[scores["at"] == BEST].set_index(["arm", "against"])
    assert best["step"].isna().all()
    assert best.loc[("frozen", "ttrl"), "mean"] == pytest.approx(9, abs=0.3)
    against = best.loc[("guard", BEST_RIVAL)]
    assert against["mean"] == pytest.approx(-3, abs=0.2) and against["n"] == 12
    assert against["low"] < against["mean"] < against["high"] < -2.8
    assert "below zero beyond noise" in against["verdict"]
    assert (table["low"] < table["mean"] + 1e-9).all()
    assert (table["mean"] < table["high"] + 1e-9).all()
    effort = table[(table["metric"] == "update") & (table["at"] != BEST)]
    assert effort["mean"].abs().max() < 1e-9


def test_without_a_guard_or_a_rival_there_is_no_such_difference(rows):
    for arms in (["ttrl", "frozen"], ["guard"], ["guard", "truth"]):
        part = rows[rows["arm"].isin(arms)]
        table = contrasts(part, ["step"])
        assert BEST_RIVAL not in set(table["against"]) and {"arm", "metric", "mean"} < {*table}
        assert not [line for line in own_best_words(part) if "minus the best rival" in line]
