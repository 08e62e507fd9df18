import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import joblib
import numpy as np
import pandas as pd
import pytest

from guard_core import RCSU, GuardConfig
from lab.arm_settings import with_arm
from lab.base.arms import arm
from lab.base.errors import UserError
from lab.compare.collection import gather
from lab.compare.effort import CLOSE
from lab.compare.tables import facts, metrics
from lab.measures import MEASURES
from sim import SimConfig, simulate
from sim.cli import main
from sim.engine.run import measure
from sim.studies import sweep as module
from sim.studies.jobs import assign, job_of, kinds, parse, read
from sim.studies.sweep import Sweep, preset, preset_settings, read_sweep, run_sweep

BASE = SimConfig(n_problems=30, epochs=9, replicates=3, step=0.2, seed=4)
SWEEP = Sweep(
    base=BASE,
    arms=("ttrl", "guard", "matched", "random_skip"),
    groups=({"guard.tau_FR": (0.1, 0.3)}, {"step": (0.3, 1e308)}, {"n_samples": (65,)}),
)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "new"
    return out, run_sweep(SWEEP, out)


def same(first, second):
    pd.testing.assert_frame_equal(first, second, check_exact=True)


def test_one_row_per_cell_arm_and_replicate(swept):
    out, rows = swept
    assert len(rows) == 5 * 4 * 3
    assert rows["arm"].tolist()[::3] == [*SWEEP.arms] * 5
    assert rows["replicate"].tolist() == [0, 1, 2] * 20
    assert rows["guard.tau_FR"].tolist()[::12] == [0.1, 0.3, 0.3, 0.3, 0.3]
    assert rows["step"].tolist()[::12] == [0.2, 0.2, 0.3, 1e308, 0.2]
    same(read_sweep(out), rows)
    definition = json.loads((out / "sweep.json").read_text())["definition"]
    assert definition["arms"] == list(SWEEP.arms) and definition["settings"]["seed"] == 4
    assert rows.groupby("key")["status"].first().value_counts().to_dict() == {
        "done": 11,
        "failed": 8,
    }


def test_a_failed_cell_is_recorded_with_its_reason_and_the_rest_goes_on(swept):
    _, rows = swept
    exploded = rows[rows["step"] == 1e308]
    assert set(exploded["status"]) == {"failed"}
    assert exploded["reason"].str.contains("logits of problem .* are not finite at visit").all()
    assert exploded[list(MEASURES)].isna().all(axis=None)
    matched = exploded[exploded["arm"] == "matched"]
    assert matched["reason"].str.startswith("matched: its arms failed").all()
    impossible = rows[rows["n_samples"] == 65]
    assert impossible["reason"].str.contains("n_samples = 65: must be at most n_votes").all()
    rest = rows[(rows["step"] != 1e308) & (rows["n_samples"] != 65)]
    assert set(rest["status"]) == {"done"} and rest["pass_final"].notna().all()


def test_rows_are_what_the_runs_measure_on_their_own(swept):
    _, rows = swept
    for name, cell, step in (("ttrl", 0, 0.2), ("guard", 2, 0.3)):
        alone = measure(replace(with_arm(BASE, arm(name)), step=step))
        own = rows[(rows["arm"] == name) & (rows["cell"] == cell)]
        same(own[list(MEASURES)].reset_index(drop=True), alone.reset_index(drop=True))


def test_controls_meet_the_effort_of_the_guard(swept):
    _, rows = swept
    names = ["update_norm", "skipped", "step_factor", "skip_rate", "achieved_ratio"]
    means = rows[rows["cell"] == 0].groupby("arm")[names].mean()
    guard, matched, at_random = (means.loc[n] for n in ("guard", "matched", "random_skip"))
    assert matched["achieved_ratio"] == pytest.approx(1, abs=CLOSE)
    moved = matched["update_norm"] / guard["update_norm"]
    assert moved == pytest.approx(matched["achieved_ratio"]) and 0 < matched["step_factor"] < 1
    assert at_random["skip_rate"] == pytest.approx(guard["skipped"] / 100) and guard["skipped"] > 0
    skipped = at_random["skipped"] / guard["skipped"]
    assert skipped == pytest.approx(at_random["achieved_ratio"], abs=1e-9)


def test_controls_that_are_the_unguarded_run_itself_keep_its_replicates(tmp_path):
    # A guard without parts moves exactly as far as TTRL and skips nothing.
    base = replace(BASE, guard=GuardConfig.off())
    arms = ("ttrl", "guard", "matched", "random_skip")
    rows = run_sweep(Sweep(base=base, arms=arms, groups=({"step": (0.2,)},)), tmp_path / "s")
    assert rows["replicate"].tolist() == [0, 1, 2] * 4
    own = {name: rows[rows["arm"] == name].reset_index(drop=True) for name in arms}
    for name in ("matched", "random_skip"):
        same(own[name][["replicate", *MEASURES]], own["ttrl"][["replicate", *MEASURES]])
    assert own["random_skip"]["achieved_ratio"].isna().all()


def test_measures_are_those_of_the_trace_and_of_the_report():
    traces = {name: simulate(with_arm(BASE, arm(name))) for name in ("ttrl", "guard", "maj_at_n")}
    table = metrics(gather(list(traces.values()))[0][0])
    for name, trace in traces.items():
        found = measure(with_arm(BASE, arm(name)))
        own = facts(trace)
        shared = [column for column in MEASURES if column in table.columns]
        others = ["label_final", "update_norm"]
        assert set(MEASURES) - set(shared) == set(others)
        np.testing.assert_allclose(found[shared], table.loc[name][shared], rtol=1e-12)
        np.testing.assert_allclose(found[others], own[others], rtol=1e-12)


def test_workers_change_no_bit(swept, tmp_path):
    out, rows = swept
    same(run_sweep(SWEEP, tmp_path / "two", 2), rows)
    both = [folder / "results.csv" for folder in (out, tmp_path / "two")]
    assert both[0].read_bytes() == both[1].read_bytes()


@pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None and not os.environ.get("CI"),
    reason="needs dask",
)
def test_the_active_backend_of_joblib_runs_the_jobs(swept, tmp_path):
    from distributed import Client, LocalCluster

    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with (
        LocalCluster(**options) as cluster,
        Client(cluster) as client,
        joblib.parallel_config("dask", client=client),
    ):
        same(run_sweep(SWEEP, tmp_path / "dask"), swept[1])


@pytest.fixture
def performed(monkeypatch):
    """Keys of the jobs that were run."""
    keys = []

    def noted(task):
        keys.append(task[0].key)
        return perform(task)

    perform = module.perform
    monkeypatch.setattr(module, "perform", noted)
    return keys


def test_an_interrupted_sweep_is_readable_and_continued(swept, tmp_path, monkeypatch, performed):
    _, rows = swept
    noted = module.perform

    def stop(task):
        if len(performed) == 4:
            raise KeyboardInterrupt
        return noted(task)

    monkeypatch.setattr(module, "perform", stop)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(SWEEP, tmp_path / "s")
    monkeypatch.setattr(module, "perform", noted)
    partial = read_sweep(tmp_path / "s")
    first = set(performed)
    assert len(first) == 4 and 0 < len(partial) < len(rows) and first <= set(partial["key"])
    assert set(partial[partial["status"] == "done"]["key"]) <= first
    same(run_sweep(SWEEP, tmp_path / "s"), rows)
    done = set(rows[rows["status"] == "done"]["key"])
    assert not first & set(performed[4:]) & done
    performed.clear()
    same(run_sweep(SWEEP, tmp_path / "s"), rows)
    assert not set(performed) & done  # failed runs are tried again


def test_a_torn_line_is_run_again(swept, tmp_path, performed):
    out, rows = swept
    shutil.copytree(out, tmp_path / "s")
    path = tmp_path / "s" / "results.csv"
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    same(run_sweep(SWEEP, tmp_path / "s"), rows)
    assert 0 < len(performed) < 15


def test_another_sweep_in_the_folder_is_refused_with_the_differing_fields(swept):
    out, rows = swept
    other = replace(SWEEP, base=replace(BASE, seed=9, n_votes=80), arms=("ttrl", "guard"))
    with pytest.raises(UserError, match="settings differ") as caught:
        run_sweep(other, out)
    text = str(caught.value)
    assert "settings.seed = 9 (was 4)" in text
    assert "settings.n_votes = 80 (was 64)" in text and "arms = [" in text
    assert "settings.step" not in text and str(out) in text
    same(read_sweep(out), rows)
    with pytest.raises(UserError, match=r"with: vary = \[{'step': \[0.1\]}\] \(was \[{'guard.tau"):
        run_sweep(replace(SWEEP, groups=({"step": (0.1,)},)), out)


def test_numbers_of_an_array_are_those_of_a_list(tmp_path):
    steps = np.array([0.1, -1.0])
    rows = run_sweep(Sweep(base=BASE, groups=({"step": tuple(steps)},)), tmp_path)
    assert rows["status"].unique().tolist() == ["done", "failed"]
    same(run_sweep(Sweep(base=BASE, groups=({"step": (0.1, -1.0)},)), tmp_path), rows)


def test_a_sweep_of_an_earlier_version_goes_on(tmp_path):
    sweep = Sweep(base=BASE, groups=({"step": (0.1,)},))
    rows, path = run_sweep(sweep, tmp_path), tmp_path / "sweep.json"
    facts = json.loads(path.read_text())
    facts["definition"].pop("vary", None)
    facts["definition"]["groups"] = {"step": {"step": [0.1]}}
    path.write_text(json.dumps(facts))
    same(run_sweep(sweep, tmp_path), rows)


@pytest.mark.parametrize(
    ("name", "content"),
    [("results.csv", "a,b\n1,2\n"), ("sweep.json", "{"), ("sweep.json", '{"format": 99}')],
)
def test_a_damaged_folder_is_refused(tmp_path, name, content):
    with pytest.raises(UserError, match="holds no sweep"):
        read_sweep(tmp_path)
    sweep = Sweep(base=BASE, groups=({"step": (0.1,)},))
    run_sweep(sweep, tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match="is damaged"):
        run_sweep(sweep, tmp_path)


def test_a_lost_worker_ends_the_sweep_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "perform", die)
    with pytest.raises(UserError, match=r"a worker was lost.* repeat the command to continue"):
        run_sweep(SWEEP, tmp_path / "s", 2)


def die(task):
    os.kill(os.getpid(), signal.SIGKILL)


def started(out, **options):
    """A long sweep of the command line that has its first rows."""
    line = [sys.executable, "-m", "sim", "sweep", "--out", str(out), "--workers", "2"]
    line += ["--vary", "step=uniform:.01:.1:400", "--n-problems", "100", "--epochs", "20"]
    process = subprocess.Popen(line, start_new_session=True, stderr=subprocess.PIPE, **options)
    deadline, path = time.monotonic() + 120, out / "results.csv"
    while time.monotonic() < deadline and not (path.exists() and path.read_text().count("\n") > 1):
        time.sleep(0.05)
    return process


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_workers_end_with_a_killed_parent(tmp_path):
    process = started(tmp_path / "s")
    process.kill()
    process.wait()
    with pytest.raises(ProcessLookupError):
        for _ in range(300):
            os.killpg(process.pid, 0)
            time.sleep(0.1)


def test_a_stop_signal_on_the_command_line(tmp_path):
    out, number = tmp_path / "s", signal.SIGTERM
    process = started(out, stdout=subprocess.PIPE, text=True)
    # As a terminal or a cluster does it: to the workers as well.
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors and "interrupted" in errors.splitlines()[-1]
    rows = read_sweep(out)
    assert 0 < len(rows) < 400 * 20


READING = replace(BASE, n_problems=10, epochs=8, replicates=1)


def histogram(path, p0=0.5):
    path.write_text(f"p0,weight\n{p0},1\n")
    return replace(READING, population="histogram", histogram=str(path))


def first_votes(path, step=0.2):
    simulate(replace(READING, seed=int(10 * step)), path)
    return replace(READING, population="trace", trace=str(path))


@pytest.mark.parametrize(
    ("make", "name", "changed"), [(histogram, "h.csv", 0.6), (first_votes, "run", 0.5)]
)
def test_a_changed_file_is_not_taken_for_what_was_run(tmp_path, make, name, changed):
    base = make(tmp_path / name)
    sweep = Sweep(base=base, arms=("ttrl", "guard", "matched"), groups=({"step": (0.1, 0.3)},))
    rows = run_sweep(sweep, tmp_path / "s")
    assert run_sweep(sweep, tmp_path / "s").equals(rows)
    if (tmp_path / name).is_dir():
        (tmp_path / name).rename(tmp_path / "old")
    make(tmp_path / name, changed)
    with pytest.raises(UserError, match=r"differ .*: files\..* = '.*' \(was '.*'\)"):
        run_sweep(sweep, tmp_path / "s")
    other = run_sweep(sweep, tmp_path / "t")
    assert not set(other["key"]) & set(rows["key"])
    assert not np.allclose(other["pass_start"], rows["pass_start"])
    assert not np.allclose(other["pass_final"], rows["pass_final"])
    (tmp_path / name).rename(tmp_path / "gone")
    same(read_sweep(tmp_path / "t"), other)
    with pytest.raises(UserError, match=f"{name} cannot be read"):
        run_sweep(sweep, tmp_path / "t")


def test_a_file_may_be_an_axis_and_one_bad_file_is_one_failed_cell(tmp_path):
    base = histogram(tmp_path / "h.csv")
    (tmp_path / "bad.csv").write_text("p0,weight\n2,1\n")
    paths = tuple(str(tmp_path / name) for name in ("h.csv", "bad.csv"))
    rows = run_sweep(Sweep(base=base, groups=({"histogram": paths},)), tmp_path / "s")
    assert rows["status"].tolist() == ["done", "failed"]
    assert "p0 = '2', must be a number in [0, 1]" in rows["reason"].iloc[1]


@pytest.mark.parametrize(
    "command", [["run"], ["compare", "--arms", "ttrl"], ["sweep", "--vary", "step=.1,.2"]]
)
def test_bad_files_are_refused_before_anything_is_written(tmp_path, capsys, command):
    (tmp_path / "h.csv").write_text("p0,weight\n0.5,0.7\n")
    for name, message in (("h.csv", "the weights sum to 0.7"), ("none.csv", "cannot be read")):
        options = ["--population", "histogram", "--histogram", str(tmp_path / name), "--quiet"]
        assert main([*command, "--out", str(tmp_path / "out"), *options]) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1 and message in lines[0]
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("step=.01,.02,1", (0.01, 0.02, 1.0)),
        ("guard.W=2,3", (2, 3)),
        ("policy=independent,attractor", ("independent", "attractor")),
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
        ("stepp=1", "no such setting; perhaps you meant step"),
        ("guard.label_from=memory", "what the arms differ in"),
        ("step_factor=.5,1", "what the arms differ in"),
        ("skip_rate=.1", "what the arms differ in"),
        ("replicates=3", "every replicate is a row"),
        ("n_votes=2.5", "vary n_votes = '2.5': must be of type int"),
        ("policy=magnet", "must be one of independent, attractor"),
        ("policy=uniform:0:1", "is no number"),
        ("step=uniform:0:1", "give uniform:low:high:count"),
        ("step=uniform:1:.5:3", "finite low < high"),
        ("step=loguniform:0:1:3", "above 0"),
        ("step=.1,.2,0.1", "a value is there twice"),
        ("step=uniform:0:1:1", "at least 2"),
    ],
)
def test_wrong_axes_are_refused_by_name(text, message):
    with pytest.raises(UserError, match=message):
        parse(text)


def test_every_setting_can_be_read_and_assigned():
    config = SimConfig()
    for name in kinds():
        assert assign(config, {name: read(config, name)}) == config
    changed = assign(config, {"guard.W": 7, "guard.tau_FR": 0.2, "step": 1.0})
    assert (changed.guard.rates.W, changed.guard.rates.tau_FR, changed.step) == (7, 0.2, 1.0)


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
        ({"groups": ({"step": 0.1},)}, "step: must be a list of values, not 0.1"),
        ({"groups": ({"population": "llama-amc"},)}, "must be a list of values, not 'llama-amc'"),
        ({"groups": ({"step": ("fast",)},)}, "must be of type float"),
        ({"groups": ({"step": (0.1,)},), "arms": ("matched",)}, "needs ttrl and guard"),
        ({"groups": ({"step": (0.1,)},), "arms": "ttrl"}, "arms: give at least one, in a list"),
        ({"groups": ({"treatment": ("own",)},)}, "treatment: this is what the arms differ in"),
        (
            {"groups": ({"step": (0.1,)}, {"guard.W": (2,)}), "arms": ("guard: W=3",)},
            "guard.W: arm guard: W=3 has its own",
        ),
        (
            {"groups": ({"step": (0.1,)},), "arms": ("guard: W=3", "guard,W=3")},
            "guard,W=3 is there twice",
        ),
        ({"groups": ({"step": (0.1,) * 1001, "load_sd": (0.1,) * 1000},)}, "1001000 cells, at"),
    ],
)
def test_wrong_sweeps_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        Sweep(**changes)


def test_values_of_arrays_and_ranges_are_those_of_lists(tmp_path):
    axes = {"step": np.array([0.1, 0.2]), "n_votes": np.arange(32, 34), "seed": range(2)}
    sweep = Sweep(base=BASE, groups=(axes,))
    lists = {"step": [0.1, 0.2], "n_votes": [32, 33], "seed": [0, 1]}
    assert sweep == Sweep(base=BASE, groups=(lists,))
    assert set(run_sweep(sweep, tmp_path / "s")["status"]) == {"done"}


def job(sweep, number, arm):
    found = job_of(sweep.base, sweep.cells()[number][1], arm)
    assert not found.reason
    return found


def test_a_sweep_leaves_no_folder_to_replay():
    assert "arm replayed: replays a run's folder" in job_of(SimConfig(), {}, "replayed").reason


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
    assert matched.partners == (keys["ttrl"][0], keys["guard"][0])


def test_settings_of_the_guard_reach_the_arms_that_have_their_part():
    groups = ({"guard.W": (9,)}, {"guard.theta_MR": (0.2, 0.9)})
    sweep = Sweep(arms=("ttrl", "guard", "frs", "release"), groups=groups)
    jobs = {arm: [job(sweep, n, arm) for n in range(3)] for arm in sweep.arms}
    guards = [jobs[arm][0].config.guard for arm in ("guard", "frs", "release")]
    assert [guard.rates.W for guard in guards] == [9, 9, 9]
    assert [guard.mps is None for guard in guards] == [False, True, False]
    assert guards[2].advantages.skip_by == "mask"
    assert jobs["guard"][1].config.guard == GuardConfig(rcsu=RCSU(theta_MR=0.2))
    same_run = [arm for arm, (_, low, high) in jobs.items() if low.key == high.key]
    assert same_run == ["ttrl", "frs"]


def test_a_varied_population_brings_its_size_unless_it_was_set():
    group = {"population": ("llama-amc", "qwen-aime25")}
    whole = Sweep(groups=(group,))
    sizes = [(job(whole, n, "guard").config) for n in (0, 1)]
    assert [(c.n_problems, c.epochs) for c in sizes] == [(83, 30), (30, 60)]
    small = Sweep(base=SimConfig(n_problems=20, epochs=30), groups=(group,))
    assert job(small, 1, "guard").config.n_problems == 20


def test_the_release_arm_is_the_script_of_the_cell_of_a_varied_population():
    for population in ("llama-amc", "qwen-amc"):
        made = job_of(SimConfig(), {"population": population}, "guard_release").config
        assert made.guard == GuardConfig.release_scripts(population)


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
