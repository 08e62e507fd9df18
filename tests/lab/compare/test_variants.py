import numpy as np
import pytest

from guard_core import GuardConfig
from lab.base.settings import to_values
from lab.compare.collection import gather
from lab.compare.families import arm_names
from lab.report.digest import digest


@pytest.fixture
def make(make_trace):
    def make(arm, final, seeds=(0, 1), **guard):
        path_RE = np.linspace(np.full(len(seeds), 0.6), final + 0.01 * np.arange(len(seeds)), 10).T
        accuracy = np.repeat(path_RE[:, None], 3, axis=1)
        config = {"step": 0.1, "guard": to_values(GuardConfig().set(**guard))}
        return make_trace(arm, accuracy, path_RE, seeds=list(seeds), config=config)

    return make


def test_settings_that_differ_name_the_arm(make):
    runs = [make("guard", 0.4).run, make("guard", 0.4, W=3).run, make("ttrl", 0.4, W=3).run]
    assert arm_names(runs) == ["guard", "guard (W=3)", "ttrl"]
    alike = [make("guard", 0.4, W=3, seeds=[s]).run for s in (0, 1)]
    assert arm_names(alike) == ["guard", "guard"]


def test_a_custom_guard_beside_the_guard_is_its_variant(make):
    custom, guard = make("custom", 0.4, W=3), make("guard", 0.5)
    assert arm_names([custom.run]) == ["custom"]
    assert arm_names([custom.run, guard.run]) == ["guard (W=3)", "guard"]
    (comparison,), _ = gather([custom, guard])
    titles = {"guard": "TTRL-Guard", "guard (W=3)": "TTRL-Guard (W=3)"}
    assert digest(comparison).titles == titles


def test_settings_of_a_rule_name_the_arm_and_a_custom_guard_is_its_variant(make):
    runs = [make("srt", 0.4).run for _ in range(3)]
    for run, options in zip(runs, ({}, {"keep": 0.5}, {"keep": 1.0}), strict=True):
        run.config |= {"rule": "srt", "rule_options": options}
    assert arm_names(runs) == ["srt", "srt (keep=0.5)", "srt"]
    runs = [make("srt+custom", 0.4, W=3).run, make("srt+guard", 0.4).run, make("guard", 0.4).run]
    for run in runs[:2]:
        run.config["rule"] = "srt"
    assert arm_names(runs) == ["srt+guard (W=3)", "srt+guard", "guard"]


def test_labels_and_step_factor_name_a_custom_arm(make):
    runs = [make("custom", 0.4, W=3).run for _ in range(3)]
    for run, other in zip(runs, ({}, {"labels": "truth"}, {"step_factor": 0.5}), strict=True):
        run.config |= {"labels": "votes", "step_factor": 1.0, **other}
    factored = "custom (labels=votes, step_factor=0.5)"
    assert arm_names(runs) == ["custom", "custom (labels=truth, step_factor=1.0)", factored]
    matched = [make("matched", 0.4).run for _ in range(2)]
    for run, factor in zip(matched, (0.4, 0.5), strict=True):
        run.config |= {"step_factor": factor}
    assert arm_names(matched) == ["matched", "matched"]  # found for each set of seeds


def test_a_rule_of_a_users_own_is_another_one_where_its_file_changed(make):
    runs = [make(arm, 0.4).run for arm in ("mine", "mine", "srt", "srt")]
    for run, digest_ in zip(runs, "abab", strict=True):
        run.config |= {"rule": run.arm, "rules": [f"/a/mine.py#{digest_}"]}
    assert arm_names(runs) == ["mine (rules=a)", "mine (rules=b)", "srt", "srt"]
    assert arm_names(runs[:1]) == ["mine"]


def test_an_arm_has_one_name_at_all_step_sizes(make):
    traces = [make("guard", 0.4, W=3), make("guard", 0.4, W=3), make("guard", 0.5)]
    for trace in traces[1:]:
        trace.run.config["step"] = 0.2
    small, large = gather(traces)[0]
    assert small.arms == ["guard (W=3)"] and large.arms == ["guard", "guard (W=3)"]


def test_skips_and_decisions_name_an_arm_too(make):
    runs = [make("ttrl", 0.4).run for _ in range(2)] + [make("guard", 0.5).run]
    runs += [make("custom", 0.4, W=3).run for _ in range(4)]
    treatments = ("own", "permuted", "runs/guard/seed-0", "runs/guard/seed-1")
    skips = [{"skip_rate": rate} for rate in (0.0, 0.3)]
    others = [*skips, {"treatment": "own"}, *({"treatment": t} for t in treatments)]
    for run, other in zip(runs, others, strict=True):
        run.config |= other
    replayed = "guard (W=3, treatment=replayed)"
    names = ["ttrl", "ttrl (skip_rate=0.3)", "guard", "guard (W=3, treatment=own)"]
    assert arm_names(runs) == [*names, "guard (W=3, treatment=permuted)", replayed, replayed]
    controls = [make("random_skip", 0.4).run for _ in range(2)]
    for run, rate in zip(controls, (0.1, 0.2), strict=True):
        run.config |= {"skip_rate": rate}
    assert arm_names(controls) == ["random_skip", "random_skip"]


def test_variants_stand_beside_each_other(make):
    traces = [make("ttrl", 0.3), make("guard", 0.2, W=3)]
    traces += [make("guard", 0.4 + tau, tau_FR=tau) for tau in (0.1, 0.2, 0.3)]
    (comparison,), skipped = gather(traces)
    assert not skipped and comparison.arms[:2] == ["ttrl", "guard"]
    assert set(comparison.arms[2:]) == {
        "guard (W=5, tau_FR=0.1)",
        "guard (W=5, tau_FR=0.2)",
        "guard (W=3, tau_FR=0.3)",
    }
    world = digest(comparison)
    assert world.titles["guard (W=5, tau_FR=0.1)"] == "TTRL-Guard (W=5, tau_FR=0.1)"
    assert world.metrics.loc["guard (W=5, tau_FR=0.1)", "pass_final"].mean() == pytest.approx(50.5)
