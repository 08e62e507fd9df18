import numpy as np
import pytest

from lab.base.roles import roles_of
from lab.base.settings import to_values
from lab.compare.collection import gather
from lab.compare.families import families
from lab.compare.tables import over_steps
from lab.report.digest import digest
from lab.report.digest import families as digest_families
from real.settings.config import TrainConfig

SIM = {"policy": "attractor", "step": 0.1, "epochs": 8, "seed": 0, "guard": {"frs": False}}
REAL = {"model": "a/model", "problems": "p.json", "lr": 1e-6, "fields": {"prompt": "q"}}

HALF = np.full((1, 2, 9), 0.5), np.full((1, 9), 0.5)


def sources(weights="w", config="c", problems="p"):
    return {"model": {"model.safetensors": weights, "config.json": config}, "problems": problems}


@pytest.fixture
def runs(make_manifest):
    """Manifests from changes of one run: `runs("sim", {...}, {...})`."""

    def runs(world, *changes, extra=()):
        base = SIM if world == "sim" else REAL
        return [
            make_manifest("ttrl", world=world, config=base | change, extra=more)
            for change, more in zip(changes, extra or [{}] * len(changes), strict=True)
        ]

    return runs


def members(runs):
    return [family.members for family in families(runs)]


@pytest.mark.parametrize(
    ("world", "change"),
    [
        ("sim", {"policy": "independent"}),
        ("sim", {"epochs": 9}),
        ("sim", {"signal": 0.5}),
        ("real", {"model": "b/model"}),
        ("real", {"fields": {"prompt": "question"}}),
        ("real", {"engine": "vllm"}),
    ],
)
def test_another_setting_is_another_family(runs, world, change):
    given = {"signal": 0.3, "engine": "transformers"}
    assert members(runs(world, given, given | change)) == [[0], [1]]


@pytest.mark.parametrize(
    ("world", "change"),
    [
        ("sim", {"guard": {"frs": True}, "step_factor": 0.5, "seed": 3, "rule": "empo"}),
        ("sim", {"engine": "reference", "vote_replicates": 9, "replicates": 4}),
        ("sim", {"step": 0.2}),
        ("real", {"device": "cuda", "threads": 4, "log": ["csv"], "checkpoint_every": 5}),
        ("real", {"lr": 2e-6, "labels": "truth"}),
    ],
)
def test_arm_seed_step_size_and_machine_stay_in_the_family(runs, world, change):
    assert members(runs(world, {}, change)) == [[0, 1]]


def test_models_are_told_apart_by_their_weights_and_not_by_their_paths(runs):
    paths = [{"model": f"{place}/model"} for place in "abc"]
    kinds = [sources("one"), sources("one", config="newer"), sources("two")]
    extra = [{"sources": kind} for kind in kinds]
    assert members(runs("real", *paths, extra=extra)) == [[0, 1], [2]]
    again = [{"sources": sources(problems=digest)} for digest in "xxy"]
    assert members(runs("real", {}, {"problems": "copy.json"}, {}, extra=again)) == [[0, 1], [2]]


def test_a_setting_that_was_not_noted_agrees_with_any(runs):
    old, first, second = runs("sim", {}, {"signal": 0.3}, {"signal": 0.5})
    assert members([old, first]) == [[0, 1]]
    assert members([old, first, second]) == [[0, 1], [2]]
    (real,) = runs("real", {"model": "elsewhere"}, extra=[{"sources": sources()}])
    assert members([real, *runs("real", {"model": "elsewhere"})]) == [[0, 1]]


def test_runs_of_two_policies_are_not_paired_and_their_titles_say_so(make_trace):
    traces = [
        make_trace(arm, *HALF, config={"step": step, "policy": policy})
        for arm, policy in (("ttrl", "independent"), ("guard", "attractor"), ("ttrl", "attractor"))
        for step in (0.1, 0.2)
    ]
    comparisons, skipped = gather(traces)
    assert not skipped
    assert [(c.title, c.arms) for c in comparisons] == [
        ("Simulator: test, policy attractor, step size 0.1", ["ttrl", "guard"]),
        ("Simulator: test, policy attractor, step size 0.2", ["ttrl", "guard"]),
        ("Simulator: test, policy independent, step size 0.1", ["ttrl"]),
        ("Simulator: test, policy independent, step size 0.2", ["ttrl"]),
    ]
    assert [c.family for c in comparisons] == [0, 0, 1, 1]


def test_titles_name_few_settings_and_short_values(make_trace):
    first = {f"s{n}": 0 for n in range(6)}
    second = first | {f"s{n}": "x" * 99 for n in range(6)}
    comparisons, _ = gather([make_trace("ttrl", *HALF, config=c) for c in (first, second)])
    titles = {comparison.title for comparison in comparisons}
    assert "Simulator: test, s0 0, s1 0, s2 0, s3 0, and 2 more settings" in titles
    assert max(map(len, titles)) < 300


def test_no_two_families_share_a_title(make_trace):
    base = {f"s{n}": 0 for n in range(6)}
    others = [base | {f"s{n}": 1} for n in range(6)] + [base | dict.fromkeys(("s4", "s5"), 1)]
    paths = [base | {"s0": f"{place}/{'x' * 40}"} for place in ("one", "two")]
    configs = [base, *others, *paths]
    comparisons, _ = gather([make_trace("ttrl", *HALF, config=config) for config in configs])
    assert len({comparison.title for comparison in comparisons}) == len(configs)


def test_a_model_that_changed_in_its_place_and_two_of_one_name_have_titles_of_their_own(make_trace):
    traces = []
    for number, place in enumerate(("one", "one", "two")):
        facts = {"config": {"model": f"{place}/model"}, "extra": {"sources": sources(f"{number}")}}
        traces.append(make_trace("ttrl", *HALF, world="real", **facts))
    of_all, of_two = ([c.title for c in gather(own)[0]] for own in (traces, [traces[0], traces[2]]))
    assert len(set(of_all)) == 3
    assert of_two == [f"Real model: test, model {place}/model" for place in ("one", "two")]


@pytest.mark.parametrize(
    ("role", "expected"), [("operational", [[0, 1]]), ("measured", [[0], [1]])]
)
def test_the_roles_that_runs_note_decide_what_is_compared(make_manifest, role, expected):
    own = {"world": "real", "roles": {role: ["a_new_setting"]}}
    pair = [make_manifest("ttrl", config={"a_new_setting": n}, **own) for n in (1, 2)]
    assert members(pair) == expected


def test_seeds_that_differ_in_the_minutes_between_checkpoints_are_one_family(make_manifest):
    configs = [TrainConfig(seed=n, checkpoint_minutes=10.0 * n) for n in (1, 2)]
    pair = [
        make_manifest("ttrl", world="real", config=to_values(config), roles=roles_of(config))
        for config in configs
    ]
    assert members(pair) == [[0, 1]]


def test_no_step_is_a_step_size_like_any_other(make_trace):
    traces = [make_trace("ttrl", *HALF, config=SIM | {"step": step}) for step in (0.0, 0.1)]
    comparisons, skipped = gather(traces)
    assert [own.step_size for own in comparisons] == [0.0, 0.1] and not skipped
    (family,) = digest_families([digest(own) for own in comparisons])
    assert over_steps(family)["step"].tolist() == [0.0, 0.1]
