from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import lab
from lab.base.errors import UserError
from lab.compare.agreement import (
    COPY,
    ERRORS,
    OTHER_HALF,
    cell_table,
    mean_errors,
    mean_table,
    ranking_table,
)
from lab.compare.collection import Collection, Skipped, gather
from lab.report.digest import digest as digested
from lab.report.predictions import predictions
from sim.commands import Agree

N, E = 5, 9
SETTINGS = {"lr": 1e-4, "n_votes": 64, "n_samples": 32, "batch_size": 8, "mini_batch": 1}
SETTINGS |= {"epochs": E}


def paths(level, seeds, spread=0.0):
    """(S, N, 1 + E) label accuracies: problems differ by .1, seeds by `spread`."""
    problems = 0.1 * np.arange(N)[:, None] - 0.2
    return level + problems + spread * np.arange(seeds)[:, None, None] + np.zeros((1, 1, E + 1))


def runs(make, world, name, level, spread=0.0, **changes):
    """Four seeds of one arm: runs of their own in the real world, one run in the simulator."""
    config = SETTINGS | ({"policy": "measured"} if world == "sim" else {}) | changes
    accuracy = paths(level, 4, spread)
    scores = accuracy.mean(axis=1)
    if world == "sim":
        return [make(name, accuracy, scores, world="sim", config=config)]
    return [
        make(name, accuracy[s : s + 1], scores[s : s + 1], world="real", config=config, seeds=[s])
        for s in range(4)
    ]


@pytest.fixture(scope="module")
def real(make_trace):
    return runs(make_trace, "real", "ttrl", 0.5, 0.02) + runs(make_trace, "real", "guard", 0.6)


@pytest.fixture(scope="module")
def table(real, make_trace):
    """TTRL is predicted as it was on the mean of its seeds, the guard two points too low."""
    simulated = runs(make_trace, "sim", "ttrl", 0.53) + runs(make_trace, "sim", "guard", 0.58)
    return lab.agreement(real, simulated)


def cell(table, arm, prediction):
    (row,) = table.query("arm == @arm and prediction == @prediction").to_dict("records")
    return row


@pytest.mark.parametrize(
    "setting",
    [
        *({"epochs": 12}, {"max_grad_norm": 5.0}, {"dtype": "bfloat16"}, {"lr": 2e-4}),
        *({"n_votes": 16}, {"mini_batch": 8}, {"policy": "attractor"}),
    ],
)
def test_a_simulation_with_other_settings_predicts_nothing(setting, make_trace):
    noted = {"max_grad_norm": 1.0, "dtype": "float32"}
    real = runs(make_trace, "real", "ttrl", 0.5, **noted)
    for clip in (1.0, None):  # None is the trainer's own
        simulated = runs(make_trace, "sim", "ttrl", 0.5, **noted | {"max_grad_norm": clip})
        assert len(lab.agreement(real, simulated))
    with pytest.raises(UserError, match="no simulated run has arm, learning rate"):
        lab.agreement(real, runs(make_trace, "sim", "ttrl", 0.5, **noted | setting))


def test_an_arm_with_other_settings_under_its_name_is_not_predicted(make_trace):
    def both(world, frs, kl_coef):
        own = {"guard": {"guard": {"frs": frs}}, "ttrl": {"kl_coef": kl_coef}}
        return [run for a in own for run in runs(make_trace, world, a, 0.5, **own[a])]

    real, simulated = both("real", False, 0.0), both("sim", True, 0.1)
    with pytest.raises(UserError, match="no simulated run has arm"):
        lab.agreement(real, simulated)
    simulated = both("sim", False, 0.1)
    assert set(lab.agreement(real, simulated)["arm"]) == {"guard"}
    worlds = [digested(own) for own in gather([*real, *simulated])[0]]
    ((_, drawing),) = predictions(worlds).values()
    assert [panel.text for panel in drawing.figure.layout.annotations] == ["<b>TTRL-Guard</b>"]


def test_a_run_that_noted_no_sources_agrees_with_all(real, make_trace):
    (simulated,) = runs(make_trace, "sim", "ttrl", 0.5)
    simulated.run = replace(simulated.run, extra={"sources": None})
    assert len(lab.agreement(real, simulated))


def test_runs_that_are_no_part_of_the_numbers_are_named(
    real, table, make_trace, monkeypatch, capsys
):
    killed = replace(runs(make_trace, "real", "ttrl", 0.5)[0].run, seeds=[9], status="interrupted")
    short = make_trace("ttrl", paths(0.5, 1)[..., :4], [[0.5] * 4], world="real", config=SETTINGS)
    short.run = replace(killed, progress=0.3)
    found = Collection(gather([*real, short])[0], [Skipped(Path("x"), "x: is damaged")])
    monkeypatch.setattr("lab.compare.collection.collect", lambda _: found)
    monkeypatch.setattr("sim.settings.populations.response_at", lambda _: None)
    monkeypatch.setattr("sim.studies.agree.agree", lambda *_: table)
    Agree(real=(Path("runs"),), response=Path("response.npz"), classical=()).run()
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left out: ")]
    assert "left out: TTRL, seed 9: interrupted at 30% of its steps" in told
    assert told[-1] == "left out: x: is damaged"


def test_two_simulations_of_the_same_runs_are_told_apart(real, make_trace):
    grown = [runs(make_trace, "sim", "ttrl", 0.5, growth=growth) for growth in (0.0, 1.0)]
    worlds = [digested(own) for own in gather([*real, *grown[0], *grown[1]])[0]]
    captions = [drawing.caption for _, drawing in predictions(worlds).values()]
    assert len(captions) == 2 and ["growth 1" in own for own in captions] == [False, True]


def test_errors_gains_and_signs(table):
    ttrl, guard = (cell(table, arm, "measured") for arm in ("ttrl", "guard"))
    assert ttrl["seeds"] == ttrl["replicates"] == 4
    # The mean of TTRL's seeds is .53, and every problem of the simulated run lies .1 apart too.
    assert [ttrl[n] for n in ("final", "curve")] == pytest.approx([0, 0], abs=1e-9)
    assert (ttrl["real"], ttrl["predicted"]) == pytest.approx((53, 53))
    assert [guard[n] for n in ("final", "curve", "r")] == pytest.approx([2, 2, 1])
    assert guard["match_rate"] == guard["flip_rate"] == 0
    assert (guard["gain_real"], guard["gain_predicted"], guard["gain"]) == pytest.approx((7, 5, 2))
    assert guard["gain_low"] < 7 < guard["gain_high"] and guard["sign"] == 1
    assert np.isnan(ttrl["gain"]) and np.isnan(ttrl["sign"])


def test_a_gain_is_that_of_the_paired_seeds(real, make_trace):
    """TTRL's seed 3 is missing: its others end at .52, which the guard's .6 exceeds by 8 points."""
    simulated = runs(make_trace, "sim", "ttrl", 0.53) + runs(make_trace, "sim", "guard", 0.58)
    guard = cell(lab.agreement([*real[:3], *real[4:]], simulated), "guard", "measured")
    assert [guard[n] for n in ("gain_real", "gain_predicted", "gain")] == pytest.approx([8, 5, 3])
    others = runs(make_trace, "real", "guard", 0.6, 0.02)
    for kept in ([0, 1, 2, 4, 5, 6, 7], [0, 1, 2, 3, 5, 6, 7]):
        pairs = [[*real[:4], *others][place] for place in kept]
        guard = cell(lab.agreement(pairs, simulated), "guard", "measured")
        assert [guard["gain_real"], guard["gain"]] == pytest.approx([10, 5])


def test_fates_are_compared_category_by_category(real, make_trace):
    # At .3 all but two of five problems fall below the bounds at which they counted as kept.
    table = lab.agreement(real, runs(make_trace, "sim", "guard", 0.1))
    shares = [
        lab.fate_shares(lab.fates(t.visits))
        for t in (real[4], make_trace("", paths(0.1, 1), [[0] * (E + 1)]))
    ]
    gap = np.abs(shares[0] - shares[1])[list(shares[0].columns[:7])].to_numpy().mean()
    assert cell(table, "guard", "measured")["fates"] == pytest.approx(gap) and gap > 10


def test_references_are_the_other_half_and_ttrl(table):
    # Seeds lie 2 points apart: halves differ by 0, 2 or 4 points, in a third of the splits each.
    floor = cell(table, "ttrl", OTHER_HALF)
    assert 1.5 < floor["final"] < 2.5 and floor["final"] == pytest.approx(floor["curve"])
    assert cell(table, "guard", OTHER_HALF)["final"] == pytest.approx(0, abs=1e-9)
    assert cell(table, "guard", COPY)["final"] == pytest.approx(7, abs=0.5)
    assert cell(table, "ttrl", COPY)["final"] == floor["final"]


def test_one_seed_has_no_references(real, make_trace):
    table = lab.agreement([real[0]], runs(make_trace, "sim", "ttrl", 0.5)[0])
    assert list(table["prediction"]) == ["measured"] and table["seeds"].tolist() == [1]


@pytest.mark.parametrize(
    ("name", "digests"),
    [("problems", ("a", "b")), ("model", [{"model.safetensors": digest} for digest in "ab"])],
)
def test_a_run_predicts_only_runs_of_its_model_on_its_problems(make_trace, name, digests):
    sims = []
    for digest in digests:
        one = "ttrl", paths(0.5, 1), [[0.5] * (E + 1)]
        extra, config = {"sources": {name: digest}}, SETTINGS | {"policy": "measured"}
        other = make_trace(*one, world="real", config=SETTINGS, extra=extra)
        sims.append(make_trace(*one, config=config, extra=extra))
    assert len(lab.agreement([other], sims[1:])) == 1
    with pytest.raises(UserError, match="no simulated run"):
        lab.agreement([other], sims[:1])


def test_runs_that_did_not_finish_are_left_out(real, make_trace):
    short = replace(real[3], evals=real[3].evals.query("epoch < 5"))
    given = [*real[:3], short, *real[4:]]
    found = cell(lab.agreement(given, runs(make_trace, "sim", "ttrl", 0.5)), "ttrl", "measured")
    assert (found["seeds"], found["real"]) == (3, pytest.approx(52))


def test_mean_errors_and_text(table):
    means = mean_errors(table).set_index("prediction")
    own = table.query("prediction == 'measured'")[list(ERRORS)].mean()
    assert means.loc["measured", list(ERRORS)].tolist() == pytest.approx(own.tolist())
    assert means.loc["measured", ["cells", "signs", "right_signs"]].tolist() == [2, 1, 1]
    first, *cells = cell_table(table).lines()
    assert first.split()[:4] == ["lr", "arm", "real", "sim."] and "TTRL-Guard" in cells[1]
    assert "+7.0 [" in cells[1] and cells[1].rstrip().endswith("+5.0")
    assert list(mean_table(table).markdown())[2].startswith("| measured | 2 | 1.0 |")


@pytest.mark.filterwarnings("error")
def test_runs_too_short_for_fates_have_the_errors_of_their_curves(make_trace, monkeypatch):
    monkeypatch.setitem(globals(), "E", 2)
    real, simulated = runs(make_trace, "real", "ttrl", 0.5), runs(make_trace, "sim", "ttrl", 0.53)
    own = cell(lab.agreement(real, simulated), "ttrl", "measured")
    assert [own[n] for n in ("final", "curve", "flip_rate")] == pytest.approx([3, 3, 0])
    assert np.isnan([own["fates"], own["r"]]).all()


@pytest.mark.filterwarnings("error")
def test_arms_are_ranked_at_each_learning_rate(real, make_trace):
    third = runs(make_trace, "real", "frozen", 0.7)
    levels = {"ttrl": 0.5, "guard": 0.7, "frozen": 0.6}  # one of three pairs is the other way round
    simulated = [runs(make_trace, "sim", arm, level)[0] for arm, level in levels.items()]
    table = lab.agreement(real + third, simulated)
    own = table[table["prediction"] == "measured"]
    right = own.assign(lr=1e-5, predicted=own["real"])
    head, *rows = (line.split() for line in ranking_table(pd.concat([table, right])).lines())
    assert head[-2:] == ["1e-05", "0.0001"] and rows == [["measured", "1.00", "0.33"]]
    alone = ranking_table(lab.agreement(third, simulated))
    assert list(alone.lines())[1].split() == ["measured", "-"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("epochs", [0, 4, 8])
def test_runs_that_still_go_on_are_predicted_and_not_compared(real, make_trace, epochs):
    def begun(trace):
        parts = {name: getattr(trace, name) for name in ("visits", "steps", "evals")}
        parts = {name: part[part["epoch"] <= epochs] for name, part in parts.items()}
        return replace(trace, **parts)

    simulated = runs(make_trace, "sim", "ttrl", 0.5) + runs(make_trace, "sim", "guard", 0.6)
    table = lab.agreement([*real[:4], *map(begun, real[4:])], simulated)
    guard = cell(table, "guard", "measured")
    assert (guard["seeds"], guard["predicted"]) == (0, pytest.approx(60))
    assert np.isnan([guard["real"], guard["final"], guard["gain_real"]]).all()
    assert cell(table, "ttrl", "measured")["seeds"] == 4


def test_problems_without_a_true_answer_have_no_part_in_r(real, make_trace):
    simulated = runs(make_trace, "sim", "ttrl", 0.5)
    whole = cell(lab.agreement(real[:4], simulated), "ttrl", "measured")
    for trace in (given := [replace(trace, visits=trace.visits.copy()) for trace in real[:4]]):
        trace.visits.loc[trace.visits["problem"] == 1, "label_accuracy"] = np.nan
    some = cell(lab.agreement(given, simulated), "ttrl", "measured")
    assert some["r"] == pytest.approx(whole["r"]) == pytest.approx(1)


def test_two_predictions_by_one_policy_keep_both_their_rows(real, make_trace):
    simulated = runs(make_trace, "sim", "ttrl", 0.5, parts_off=[])
    simulated += runs(make_trace, "sim", "ttrl", 0.5, parts_off=["self"])
    names = set(lab.agreement(real[:4], simulated)["prediction"]) - {OTHER_HALF, COPY}
    assert names == {f"measured, test, parts_off {off}" for off in ("[]", "['self']")}
