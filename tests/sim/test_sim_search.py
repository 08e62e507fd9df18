import functools
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from measured_response import FACTS, settings, small_response
from scipy import stats

from guard_core import GuardConfig
from lab.base.arms import arm
from lab.base.columns import where
from lab.base.errors import UserError
from lab.base.roles import roles_of
from lab.base.settings import to_values
from lab.base.simulated import check_settings
from lab.trace.response import Facts, write_response
from real import TrainConfig
from sim import simulate
from sim.cli import main
from sim.studies import search as module
from sim.studies import sweep
from sim.studies.agree import check_same
from sim.studies.search import Search, results, run_search, scores

AXES = {"kl_coef": (0.0, 0.3), "guard.discount": (1.0, 0.8)}


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    file = tmp_path_factory.mktemp("search") / "response.npz"
    write_response(file, small_response())
    base = settings(str(file), epochs=1, replicates=3)
    arms = ("ttrl", "memory", "frozen")
    return Search(base=base, arms=arms, axes=AXES, lrs=(0.01, 0.02), budget=60)


@pytest.fixture(scope="module")
def searched(search, tmp_path_factory):
    folder = tmp_path_factory.mktemp("searched") / "whole"
    return folder, run_search(search, folder)


def test_candidates_differ_in_their_runs(search):
    titles = [c.title for c in replace(search, budget=1000).candidates()]
    assert titles[:3] == ["ttrl", "memory", "frozen"] and len(set(titles)) == len(titles)
    # The discount reaches vote memory alone.
    names = {"ttrl kl_coef=0.3", "frozen kl_coef=0.3", "memory kl_coef=0.3"}
    names |= {"memory discount=0.8", "memory kl_coef=0.3 discount=0.8"}
    assert set(titles[3:]) == names
    assert [c.title for c in search.candidates()][:3] == titles[:3]


def test_a_value_that_an_arm_has_of_its_own_is_the_plain_one(search):
    axes = {"kl_coef": (0.0, 0.05), "guard.hysteresis": (0.0, 0.25)}
    own = replace(search, arms=("recommended",), axes=axes, budget=1000)
    values = ("", " kl_coef=0.0", " hysteresis=0.0", " kl_coef=0.0 hysteresis=0.0")
    assert {c.title for c in own.candidates()} == {f"recommended{own}" for own in values}


def test_rounds_add_replicates_and_keep_the_better_half(search, searched):
    five = replace(search, base=replace(search.base, replicates=5), budget=99)
    assert search.ends == [1, 2, 3] and five.ends == [1, 2, 4, 5]
    assert search.sizes(8) == [8, 4, 3] and search.n_runs(8) == 2 * 15
    folder, rows = searched
    n = len(search.candidates())
    assert search.n_runs(n) == len(rows) <= 60
    assert rows.groupby("round")["candidate"].nunique().tolist() == [n, -(-n // 2), 3]
    first = scores(where(rows, round=0), search.lrs)["mean"]
    others = pd.Series(first.drop(["ttrl", "memory", "frozen"])).sort_values(ascending=False)
    second = set(rows[rows["round"] == 1]["candidate"])
    assert second == {"ttrl", "memory", "frozen", *others.index[: -(-n // 2) - 3]}
    assert run_search(search, folder).equals(rows)
    with pytest.raises(UserError, match=r"search\.budget = 59 \(was 60\)"):
        run_search(replace(search, budget=59), folder)


def test_a_stopped_search_goes_on_to_the_same_rows(search, searched, tmp_path, monkeypatch):
    calls, made = [], []

    def stop(*args, **options):
        calls.append(args)
        if len(calls) in (2, 5):  # in the second round, and in the third of the second start
            raise KeyboardInterrupt
        return run_jobs(*args, **options)

    def perform(task):
        made.append(task[0].key)
        return do(task)

    run_jobs, do = module.run_jobs, sweep.perform
    monkeypatch.setattr(sweep, "perform", perform)
    monkeypatch.setattr(module, "run_jobs", stop)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run_search(search, tmp_path / "parts")
    monkeypatch.setattr(module, "run_jobs", run_jobs)
    pd.testing.assert_frame_equal(run_search(search, tmp_path / "parts"), searched[1])
    assert len(set(made)) == len(made)  # what was finished is not run again


SCORES = np.array([50.0, 51.0, 52.0])


def scored(*runs):
    """Rows from candidates, their learning rates and the scores of their replicates."""
    return pd.DataFrame(
        {"candidate": name, "lr": lr, "replicate": r, "pass_final": score}
        | {"response": "a.npz", "maj_start": 51.5}
        for name, lr, scores in runs
        for r, score in enumerate(scores)
    )


def test_intervals_are_corrected_for_the_number_of_candidates():
    gains = np.array([1.0, 2.0, 3.0, 4.0])
    shifts = {"ttrl": 0 * gains, "best": gains, **{f"c{k}": -gains for k in range(40)}}
    rows = scored(*((name, lr, 50 + lr + shifts[name]) for name in shifts for lr in (1.0, 3.0)))
    two = pd.concat([where(rows, candidate=n) for n in ("ttrl", "best")])
    few = results(two, (1.0, 3.0), "mean")
    all_of_them = results(rows, (1.0, 3.0), "mean")
    for table in (few, all_of_them):
        best = table.loc["best"]
        assert table.index[0] == "best" and (best["mean"], best["minimum"]) == (54.5, 53.5)
        assert (best["minus_vote"], best["gain"]) == (3, 2.5)
        assert best["low"] + best["high"] == pytest.approx(5)
    width = [table.loc["best", "high"] - 2.5 for table in (few, all_of_them)]
    # One difference at 95 %, and 41 of them together.
    quantiles = [stats.t.ppf(1 - 0.025 / n, 3) for n in (1, 41)]
    assert np.array(width) / (gains.std(ddof=1) / 2) == pytest.approx(quantiles)


def test_nothing_is_compared_with_a_reference_that_failed():
    reference = ("ttrl", 1.0, SCORES), ("ttrl", 3.0, SCORES * np.nan)
    rows = scored(*reference, ("memory", 1.0, SCORES + 10), ("memory", 3.0, SCORES - 10))
    table = results(rows, (1.0, 3.0), "mean")
    assert list(table.index) == ["memory"] and table.loc["memory", "mean"] == 51
    assert np.isnan(table.loc["memory", "gain"])


def test_a_candidate_of_which_one_run_failed_has_no_score():
    rows = scored(*((name, lr, SCORES) for name in ("ttrl", "memory") for lr in (1.0, 3.0)))
    rows.loc[rows.index[-1], "pass_final"] = np.nan  # a later replicate of vote memory
    assert list(results(rows, (1.0, 3.0), "mean").index) == ["ttrl"]
    none = results(rows.assign(pass_final=np.nan), (1.0, 3.0), "mean")
    assert none.empty and "gain" in none


def test_candidates_that_the_table_lacks_are_told(search, tmp_path, capsys):
    rows = scored(*((name, lr, SCORES) for name in ("ttrl", "memory") for lr in (0.01, 0.02)))
    rows = rows.assign(status="done", reason="")
    rows.loc[rows.index[-1], ["pass_final", "status", "reason"]] = np.nan, "failed", "lr = 0.02: no"
    module.report(search, rows, tmp_path)
    assert "left out: memory; the first failed: lr = 0.02: no" in capsys.readouterr().out


def test_a_rule_of_the_settings_is_that_of_the_arms(search, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(module, "run_search", lambda own, *_, **__: seen.append(own))
    monkeypatch.setattr(module, "report", lambda *_: None)
    given = ["--policy", "measured", "--response", str(search.base.response), "--lr", "0.01"]
    words = ["search", "--out", str(tmp_path / "s"), *given, "--rule", "srt"]
    assert main([*words, "--arms", "srt", "guard", "memory"]) == 0
    assert seen[0].arms == ("srt", "srt+guard", "srt+memory")


def test_the_command(search, tmp_path, capsys):
    words = ["search", "--out", str(tmp_path / "s"), "--policy", "measured", "--quiet"]
    sizes = ["--lr", "0.01", "--lrs", "0.01", "--epochs", "1", "--replicates", "2"]
    given = ["--response", str(search.base.response), *sizes]
    few = ["--arms", "ttrl", "memory", "--vary", "kl_coef=0,.3", "--budget", "8"]
    assert main([*words, *given, *few]) == 0
    table = pd.read_csv(tmp_path / "s" / "search.csv")
    assert {"ttrl", "memory"} < set(table["candidate"])
    assert {"mean", "minimum", "gain", "low", "high", "0.01"} < set(table.columns)
    shown = capsys.readouterr().out
    assert "runs of" in shown and "mean - ttrl" in shown
    assert max(map(len, shown.splitlines()[:-1])) <= 100
    assert main(["search", "--out", str(tmp_path / "no")]) == 2
    assert "needs the policy measured" in capsys.readouterr().err


def test_what_cannot_be_searched_is_refused(search):
    for message, changes in {
        "budget = 5: the plain arms alone need 18 runs": {"budget": 5},
        "vary lr: give learning rates by --lrs": {"axes": {"lr": (0.1,)}},
        "sets: give response files other than --response": {"sets": (search.base.response,)},
        "arms: give at least one": {"arms": ()},
        "arms: matched is a control": {"arms": ("ttrl", "guard", "matched")},
        "labels: every arm has its own": {"base": replace(search.base, labels="truth")},
    }.items():
        with pytest.raises(UserError, match=message):
            replace(search, **changes)


def test_candidates_are_judged_over_all_sets(search, searched, tmp_path):
    other = tmp_path / "other.npz"
    write_response(other, small_response(truths=(2, 1, 0, 0, 1, 2)))
    both = replace(search, sets=(str(other),), budget=120)
    rows = run_search(both, tmp_path / "both")
    _, alone = searched
    first = rows[rows["response"] == search.base.response]
    plain = first[first["candidate"] == "ttrl"].reset_index(drop=True)
    kept = alone[alone["candidate"] == "ttrl"].reset_index(drop=True)
    pd.testing.assert_frame_equal(plain, kept)
    table, ttrl = scores(rows, both.lrs), where(rows, candidate="ttrl")
    assert table.loc["ttrl", "mean"] == pytest.approx(ttrl["pass_final"].mean())
    gain = ttrl["pass_final"].mean() - ttrl["maj_start"].mean()
    assert table.loc["ttrl", "minus_vote"] == pytest.approx(gain)
    with pytest.raises(UserError, match=r"response: .*missing"):
        run_search(replace(both, sets=(str(tmp_path / "missing.npz"),)), tmp_path / "no")


TINY = {"n_votes": 16, "n_samples": 8, "batch_size": 4, "mini_batch": 2, "epochs": 6, "lr": 0.02}
TINY |= {"temperature": 1.0, "eval_temperature": 1.0}


@pytest.fixture(scope="module")
def real(response_file, tmp_path_factory):
    """Folder with two runs of six epochs as if by the trainer: TTRL, and under a KL penalty."""
    folder = tmp_path_factory.mktemp("real")
    for name, kl_coef in (("ttrl", 0.0), ("kl", 0.3)):
        made = TrainConfig(guard=GuardConfig.off(), kl_coef=kl_coef, **TINY).settled()
        shared = {"epochs": 6, "replicates": 1, "guard": GuardConfig.off(), "kl_coef": kl_coef}
        simulate(settings(response_file, **shared), folder / name, arm=arm(name))
        path = folder / name / "run.json"
        changes = {"world": "real", "backend": "cpu"}
        changes |= {"config": to_values(made), "roles": roles_of(made)}
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_short_runs_and_penalties_are_compared_as_far_as_they_can_be(
    real, response_file, tmp_path, capsys, monkeypatch
):
    opened, copy = [], shutil.copy(response_file, tmp_path / "r.npz")
    load = np.load
    monkeypatch.setattr(np, "load", lambda path, **how: opened.append(path) or load(path, **how))
    data = ["--real", str(real), "--response", str(copy), "--replicates", "2", "--quiet"]
    assert main(["agree", *data, "--out", str(tmp_path / "all")]) == 0
    assert opened == [str(copy)]  # once for all cells
    shown = capsys.readouterr().out
    assert "left out: fates and r (fewer than 8 visits): ttrl at lr 0.02, kl at lr 0.02" in shown
    assert "left out: classical policies (kl_coef = 0.3): kl at lr 0.02" in shown
    assert max(map(len, shown.splitlines())) <= 100
    table = pd.read_csv(tmp_path / "all" / "agreement.csv")
    ttrl = table[table.arm == "ttrl"].set_index("prediction")
    policies = ["measured", "independent", "attractor"]
    assert ttrl.loc[policies, ["real", "predicted", "final", "curve"]].notna().all(axis=None)
    assert ttrl[["fates", "r"]].isna().all(axis=None)
    assert {*table[table.arm == "kl"].prediction} & {*policies} == {"measured"}
    for taken, words in (("all", "is not empty"), ("all/agreement.csv", "is a file")):
        assert main(["agree", *data, "--out", str(tmp_path / taken)]) == 2
        assert f"{words}; choose a new folder\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("at", "value", "code", "said"),
    [
        (("extra", "sources", "problems"), "0", 2, "was measured with other problems than the run"),
        (("extra", "sources", "model"), {"a": "0"}, 2, "was measured with another model than the"),
        (("roles",), {}, 2, "was made by an earlier version"),
        # A brake is simulated by the measured policy alone.
        (("config", "guard", "brake"), {"brake": 0.5}, 0, "classical policies (their step size"),
    ],
)
def test_a_run_that_the_file_was_not_measured_for_or_that_has_a_brake(
    real, response_file, tmp_path, capsys, at, value, code, said
):
    path = shutil.copytree(real / "ttrl", tmp_path / "ttrl") / "run.json"
    run = json.loads(path.read_text())
    functools.reduce(dict.__getitem__, at[:-1], run)[at[-1]] = value
    path.write_text(json.dumps(run))
    words = ["--real", str(path.parent), "--response", response_file, "--out", str(tmp_path / "o")]
    assert main(["agree", *words, "--replicates", "2", "--quiet"]) == code
    shown = capsys.readouterr()
    assert said in (shown.err if code else shown.out)
    assert shown.err.count("\n") == (code == 2) and (tmp_path / "o").exists() == (code == 0)


def test_the_trainers_defaults_are_modelled_and_a_setting_without_a_role_is_refused():
    config = TrainConfig().settled()
    values, roles = to_values(config), roles_of(config)
    check_settings(values, roles, "here")
    with pytest.raises(UserError, match="here has shape = constant, which the measured policy"):
        check_settings(values | {"shape": "constant"}, roles, "here")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_response_tokens", 12),
        ("extract", "flexible"),
        ("answer_check", "math"),
        ("temperature", 0.5),
        ("eval_temperature", 0.5),
    ],
)
def test_responses_that_were_read_otherwise_are_refused(name, value):
    measured, own = (to_values(TrainConfig(**c).settled()) for c in ({}, {name: value}))
    facts = Facts(**FACTS | {"temperature": 0.6}, n_weights=1, run=measured)
    run = SimpleNamespace(title="TTRL", seeds=[0], roles=roles_of(TrainConfig().settled()))
    run.extra = {"sources": {"model": facts.model, "problems": facts.problems}}
    check_same(SimpleNamespace(**vars(run), config=measured), facts, "r.npz")
    with pytest.raises(UserError, match=f"real: TTRL, seed 0 has {name} = .*, the response file"):
        check_same(SimpleNamespace(**vars(run), config=own), facts, "r.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "grpo"}, "here has loss = grpo, which the measured policy does not have"),
        ({"stop": ("=",)}, "here has stop = .*=.*, which the measured policy does not have"),
        ({"eval_top_p": 0.9}, "here has eval_top_p = 0.9, which the measured policy does not"),
        ({"rule": "one_shot_em"}, "rule = one_shot_em: policy = measured needs a rule"),
    ],
)
def test_a_setting_that_the_policy_lacks_is_refused(changes, message):
    config = TrainConfig(**changes)
    with pytest.raises(UserError, match=message):
        check_settings(to_values(config), roles_of(config), "here")
