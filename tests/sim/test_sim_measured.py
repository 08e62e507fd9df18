"""The policy of a measured model: arms, replicates, commands and refusals."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from measured_response import A, N, rows, settings, small_response

from guard_core import GuardConfig
from lab.base.errors import UserError
from lab.trace.response import read_response, write_response
from lab.trace.trace import load
from sim import SimConfig, simulate
from sim.cli import main
from sim.world.measured import Trust

ARMS = {
    "ttrl": {"guard": GuardConfig.off()},
    "guard": {},
    "frozen": {"guard": replace(GuardConfig.off(), label_from="frozen")},
    "memory": {"guard": replace(GuardConfig.off(), label_from="memory")},
    "truth": {"guard": GuardConfig.off(), "labels": "truth"},
    "rule": {"rule": "empo"},
    "skips": {"skip_rate": 0.5},
}


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_runs_and_a_seed_fixes_its_bits(response_file, arm):
    config = settings(response_file, **ARMS[arm])
    first, second = simulate(config), simulate(config)
    assert rows(first).equals(rows(second)) and first.evals.equals(second.evals)
    assert len(rows(first)) == 2 * N * 4 and first.evals.pass_at_1.between(0, 1).all()
    assert first.visits.n_unparseable.sum() > 0
    assert first.steps.update_norm.max() > 0
    assert first.run.extra["trust"]["growth"] > 0 and first.run.extra["trust"]["unseen"] > 0


def test_a_replicate_does_not_depend_on_the_others(response_file):
    both, alone = (
        simulate(settings(response_file)),
        simulate(settings(response_file, first_replicate=1, replicates=1)),
    )
    assert rows(both, 1).equals(rows(alone, 1).assign(index=rows(both, 1)["index"]))
    assert not rows(both, 0).label_accuracy.equals(rows(both, 1).label_accuracy)


def test_growth(response_file):
    fast = simulate(settings(response_file))
    linear = simulate(settings(response_file, growth=0.0))
    assert not linear.evals.pass_at_1.equals(fast.evals.pass_at_1)
    # The trust of a linear run is that of the measured growth too.
    assert linear.run.extra["trust"]["growth"] > 0


def test_a_penalty_holds_the_policy_near_the_start(response_file):
    moved = [
        simulate(
            settings(response_file, guard=GuardConfig.off(), kl_coef=kl, growth=0.0)
        ).run.extra["trust"]["growth"]
        for kl in (0.0, 3.0)
    ]
    assert moved[1] < 0.7 * moved[0]


def test_evaluations_are_those_of_averaged_weights_and_training_goes_on(response_file):
    plain, start, last, between = (
        simulate(settings(response_file, ema_decay=decay)) for decay in (0.0, 1 - 1e-12, 1e-12, 0.7)
    )
    for run in (start, last, between):
        assert run.visits.equals(plain.visits) and run.steps.equals(plain.steps)
    first = plain.evals.pass_at_1[plain.evals.epoch == 0].to_numpy()
    assert start.evals.pass_at_1.to_numpy() == pytest.approx(np.tile(first, 4))
    assert last.evals.pass_at_1.to_numpy() == pytest.approx(plain.evals.pass_at_1.to_numpy())
    moved = between.evals.epoch > 0
    assert (between.evals.pass_at_1[moved] != plain.evals.pass_at_1[moved]).all()


def test_the_brake_ends_training_or_slows_it(response_file):
    stop, half, plain = (
        simulate(settings(response_file, guard=replace(GuardConfig.off(), **brake))).steps
        for brake in (
            {"brake": 0.0, "brake_on": "match_rate", "brake_above": 0.0},
            {"brake": 0.5, "brake_on": "match_rate", "brake_above": 0.0},
            {"brake": 0.5, "brake_above": 1.0},
        )
    )
    assert (stop.lr == 0).all() and (stop.update_norm == 0).all()
    batch = stop.groupby("replicate").cumcount()
    assert half.lr.to_numpy() == pytest.approx(plain.lr * 0.5 ** (batch + 1))
    untouched = simulate(settings(response_file, guard=GuardConfig.off())).steps
    assert plain.equals(untouched)
    with pytest.raises(UserError, match=r"^guard.brake: only policy = measured has it"):
        SimConfig(guard=replace(GuardConfig.off(), brake=0.0))


def test_a_truth_that_no_response_gives_is_one_more_answer(tmp_path):
    path = tmp_path / "r.npz"
    write_response(path, small_response(truths=(-1, 1, 2, 0, 1, 0)))
    assert read_response(path).n_answers == A + 1
    trace = simulate(settings(str(path), n_answers=A + 1))
    assert (trace.visits[trace.visits.problem == 0].label_accuracy == 0).all()


def test_the_command_takes_sizes_from_the_file_and_prints_trust(response_file, tmp_path, capsys):
    words = ["--policy", "measured", "--response", response_file, "--lr", "0.05", "--arm", "ttrl"]
    out = tmp_path / "run"
    assert main(["run", "--out", str(out), *words, "--n-votes", "32", "--quiet"]) == 0
    shown = capsys.readouterr().out
    config = load(out).run.config
    assert (config["n_problems"], config["n_answers"], config["epochs"]) == (N, A, 12)
    assert shown.count("measured policy: mass on unseen responses 0.") == 1
    assert load(out).run.extra["trust"].keys() == {"unseen", "growth"}


@pytest.mark.parametrize(
    ("named", "setting", "value"), [("kl", "kl_coef", 0.2), ("averaged", "ema_decay", 0.95)]
)
def test_an_arm_brings_its_settings(named, setting, value, response_file, tmp_path, capsys):
    words = ["--policy", "measured", "--response", response_file, "--lr", "0.05", "--arm", named]
    for name, more in (("arm", []), ("own", [f"--{setting.replace('_', '-')}", "0.5"])):
        out = str(tmp_path / name)
        assert main(["run", "--out", out, *words, *more, "--epochs", "1", "--quiet"]) == 0
    arm, own = (load(tmp_path / name).run for name in ("arm", "own"))
    assert (arm.arm, arm.config[setting]) == (named, value)
    assert (own.arm, own.config[setting]) == ("ttrl", 0.5)
    capsys.readouterr()
    assert main(["run", "--out", str(tmp_path / "no"), "--arm", named]) == 2
    assert f"{setting}: only policy = measured reads it" in capsys.readouterr().err


def test_a_settings_file_may_leave_response_and_rate_to_the_command_line(
    response_file, tmp_path, capsys
):
    toml, out = tmp_path / "s.toml", tmp_path / "run"
    toml.write_text('policy = "measured"\nepochs = 2\n')
    words = ["run", "--out", str(out), "--config", str(toml), "--quiet"]
    for given, message in (
        ([], "response: must be given with policy = measured"),
        (["--response", response_file], "lr: must be given with policy = measured"),
    ):
        assert main([*words, *given]) == 2
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1 and not out.exists()
    assert main([*words, "--response", response_file, "--lr", "0.05"]) == 0
    config = load(out).run.config
    assert (config["lr"], config["epochs"], config["n_problems"]) == (0.05, 2, N)


def test_trust_says_where_it_ends():
    assert "outside" not in Trust(0.15, 1.0).line() and "outside" not in Trust(0.0, None).line()
    for far in (Trust(0.16, 0.0), Trust(0.0, 1.1)):
        assert "outside of the linear range" in far.line() and "--growth 0" in far.line()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"response": None}, "response: must be given"),
        ({"lr": None}, "lr: must be given"),
        ({"policy": "attractor"}, "response: only policy = measured reads it"),
        ({"update": "expected"}, "update = expected: policy = measured"),
        ({"unparseable": 0.1}, "unparseable = 0.1: "),
        ({"step": 0.1}, "step = 0.1: policy = measured reads lr"),
        ({"rule": "scope"}, "rule = scope: rewards single responses"),
        ({"rule": "one_shot_em"}, "rule = one_shot_em: policy = measured needs a rule with"),
        ({"parts_off": ("leak", "leak")}, "parts_off = leak, leak: name each part at most once"),
        ({"parts_off": ("own", "others")}, "parts_off = own, others: without own and others no"),
        ({"parts_off": ("own",)}, "parts_off = own: own and others need mini_b"),
        ({"parts_off": ("own",), "ema_decay": 0.5}, "parts_off = own: own and others have no av"),
        ({"parts_off": ("all",)}, "parts_off"),
    ],
)
def test_settings_that_do_not_fit_are_refused(response_file, changes, message):
    with pytest.raises(UserError, match=f"^{message}") as refused:
        settings(response_file, **changes)
    assert "\n" not in str(refused.value)


def test_files_that_do_not_fit_are_refused(response_file, tmp_path):
    with pytest.raises(UserError, match=f"n_problems = 5: .* has {N}"):
        simulate(settings(response_file, n_problems=5))
    with pytest.raises(UserError, match=f"n_answers = 4: .* has {A}"):
        simulate(settings(response_file, n_answers=4))
    with pytest.raises(UserError, match="no such file"):
        simulate(settings(str(tmp_path / "none.npz")))
    other = replace(small_response(), facts=replace_version(small_response().facts))
    write_response(tmp_path / "old.npz", other)
    with pytest.raises(UserError, match="format version 99, not 3"):
        simulate(settings(str(tmp_path / "old.npz")))


def replace_version(facts):
    facts.version = 99
    return facts


def test_logits_that_are_not_finite_stop_the_run(response_file):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UserError, match=r"lr = 1e\+308: the logits of problem"):
            simulate(settings(response_file, lr=1e308))
