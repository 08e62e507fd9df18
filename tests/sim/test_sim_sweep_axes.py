"""Axes of a sweep, their notation, and refused ones."""

import pytest

from lab.base.errors import UserError
from sim import SimConfig
from sim.studies.jobs import assign, job_of, names, parse, read
from sim.studies.sweep import Sweep, preset, preset_settings


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("step=.01,.02,1", (0.01, 0.02, 1.0)),
        ("guard.W=2,3", (2, 3)),
        ("n_votes=16", (16,)),
        ("policy=independent,attractor", ("independent", "attractor")),
        ("guard.tie_break=first", ("first",)),
        ("fixed_population=true,False", (True, False)),
        ("ability_mean=none,.4", (None, 0.4)),
        ("step=uniform:0:.3:4", (0.0, 0.1, 0.2, 0.3)),
        ("step=loguniform:.01:1:3", (0.01, 0.1, 1.0)),
        ("guard.W=uniform:2:5:4", (2, 3, 4, 5)),
        ("guard.W=loguniform:1:3:9", (1, 2, 3)),
    ],
)
def test_axes_as_they_are_typed(text, axis):
    assert parse(text) == (text.partition("=")[0], axis)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step", "give name=value"),
        ("step=", "give name=value"),
        ("stepp=1", "no such setting; perhaps you meant step"),
        ("guard.label_from=memory", "what the arms differ in"),
        ("replicates=3", "every replicate is a row"),
        ("n_votes=2.5", "vary n_votes = '2.5': must be of type int"),
        ("policy=magnet", "must be one of independent, attractor"),
        ("fixed_population=1", "must be of type bool"),
        ("policy=uniform:0:1", "is no number"),
        ("step=uniform:0:1", "give uniform:low:high:count"),
        ("step=uniform:1:.5:3", "finite low < high"),
        ("step=uniform:0:inf:3", "finite low < high"),
        ("step=loguniform:0:1:3", "above 0"),
        ("step=uniform:0:1:1", "at least 2"),
    ],
)
def test_wrong_axes_are_refused_by_name(text, message):
    with pytest.raises(UserError, match=message):
        parse(text)


def test_every_setting_can_be_read_and_assigned():
    config = SimConfig()
    for name in names():
        assert assign(config, {name: read(config, name)}) == config
    changed = assign(config, {"guard.W": 7, "guard.tau_FR": 0.2, "step": 1.0})
    assert (changed.guard.W, changed.guard.tau_FR, changed.step) == (7, 0.2, 1.0)


def test_a_grid_is_all_combinations_and_groups_follow_each_other():
    sweep = Sweep(groups=({"step": (0.1, 0.2), "guard.W": (2, 3)}, {"kappa_att": (0.0,)}))
    cells = [values for _, values in sweep.cells()]
    grid = [{"step": step, "guard.W": W} for step in (0.1, 0.2) for W in (2, 3)]
    assert cells == [*grid, {"kappa_att": 0.0}]
    assert [labels["cell"] for labels, _ in sweep.pairs({})] == list(range(5))
    assert {group for group, _ in sweep.cells()} == {"step x guard.W", "kappa_att"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "nothing to vary"),
        ({"groups": ({"step": ()},)}, "step: no values"),
        ({"groups": ({"step": ("fast",)},)}, "must be of type float"),
        ({"groups": ({"guard.W": (2.5,)},)}, "must be of type int"),
        ({"groups": ({"step": (0.1,)},), "arms": ()}, "at least one"),
        ({"groups": ({"step": (0.1,)},), "arms": ("matched",)}, "needs ttrl and guard"),
        ({"groups": ({"step": (0.1,)},), "arms": ("magic",)}, "unknown"),
        ({"groups": ({"step": (0.1,) * 1001, "load_sd": (0.1,) * 1000},)}, "1001000 cells, at"),
    ],
)
def test_wrong_sweeps_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        Sweep(**changes)


def job(sweep, number, arm):
    found = job_of(sweep.base, sweep.cells()[number][1], arm)
    assert not found.reason
    return found


def test_runs_that_cannot_differ_are_one_job():
    sweep = Sweep(
        arms=("ttrl", "guard", "memory", "matched"),
        groups=(
            {"guard.W": (3, 5)},
            {"guard.tau_MR": (0.6,)},
            {"guard.discount": (1.0, 0.5)},
            {"guard.margin_power": (1,)},
        ),
    )
    keys = {arm: [job(sweep, n, arm).key for n in range(6)] for arm in sweep.arms}
    # Cells 1 to 3 are the default; without a guard its thresholds are nothing.
    assert len(set(keys["ttrl"][:4])) == len(set(keys["memory"][:4])) == 1
    assert keys["memory"][4] != keys["memory"][3]
    assert keys["ttrl"][5] != keys["ttrl"][0] and keys["memory"][5] != keys["memory"][0]
    assert keys["guard"][0] != keys["guard"][1] == keys["guard"][2] == keys["guard"][3]
    matched = job(sweep, 0, "matched")
    assert (matched.guard_key, matched.unguarded_key) == (keys["guard"][0], keys["ttrl"][0])


def test_the_guards_settings_reach_every_guarded_arm():
    base = SimConfig()
    sweep = Sweep(base=base, arms=("guard", "frs", "release"), groups=({"guard.W": (9,)},))
    guards = [job(sweep, 0, arm).config.guard for arm in sweep.arms]
    assert [guard.W for guard in guards] == [9, 9, 9]
    assert [guard.mps for guard in guards] == [True, False, True]
    assert guards[2].skip_by == "mask"


def test_a_varied_population_brings_its_size_unless_it_was_set():
    group = {"population": ("llama-amc", "qwen-aime25")}
    whole = Sweep(groups=(group,))
    sizes = [(job(whole, n, "guard").config) for n in (0, 1)]
    assert [(c.n_problems, c.epochs) for c in sizes] == [(83, 30), (30, 60)]
    small = Sweep(base=SimConfig(n_problems=20, epochs=30), groups=(group,))
    assert job(small, 1, "guard").config.n_problems == 20


def test_presets_are_the_papers_rows():
    base = SimConfig(**preset_settings("sensitivity"))
    assert (base.population, base.n_problems, base.epochs) == ("qwen-math500", 500, 30)
    assert base.replicates == 20
    sweep = preset("sensitivity", base)
    cells = sweep.cells()
    assert len(cells) == 24 and sweep.arms == ("ttrl", "guard")
    values = {n: [own[n] for _, own in cells if n in own] for n in sweep.names}
    assert values["guard.W"] == [2, 3, 5, 8, 12, 20]
    assert (values["guard.tau_FR"][0], values["guard.tau_FR"][-1]) == (0.1, 0.5)
    assert (values["guard.beta_max"][0], values["guard.beta_max"][-1]) == (0.05, 0.5)
    # The default stands in all three rows: 22 different guards, and TTRL once.
    assert len({job.key for _, job in sweep.pairs({})}) == 23
    assert len(preset("W", base).cells()) == 6
