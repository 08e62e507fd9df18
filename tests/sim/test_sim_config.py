import math
from dataclasses import replace

import numpy as np
import pytest

from lab.base.errors import UserError
from sim import SimConfig, simulate
from sim.settings.populations import FREE, NAMED
from sim.world.populations import draw_population

WRONG = {"policy": "feature", "population": "gpt-9", "max_grad_norm": math.nan, "mini_batch": 9}
WRONG |= {"histogram": 3, "n_problems": 2.5, "n_samples": 65, "guard": "paper"}
UNREAD = {"response": "r.npz", "growth": 0.0, "kl_coef": 0.1, "ema_decay": 0.9, "trace": "run"}
UNREAD |= {"histogram": "h.csv", "dtype": "bfloat16"}
"""Settings that the default policy and population would ignore."""


@pytest.mark.parametrize(("name", "value"), [*WRONG.items(), ("step", math.inf), ("step", -1)])
def test_a_wrong_value_is_named(name, value):
    with pytest.raises(UserError, match=rf"{name} = .*: must|{name} = .*: unknown"):
        SimConfig(**{name: value})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(
            ({"population": name}, f"{needs[0]}: must be given with")
            for name, needs in FREE.items()
        ),
        *(
            ({name: value}, f"{name}: only (policy|population) = ")
            for name, value in UNREAD.items()
        ),
        ({"population": "trace", "trace": "run", "ability_mean": 0.5}, "ability_mean: .*trace"),
        (
            {"population": "point", "ability_mean": 0.5, "ability_concentration": 3.0},
            "ability_concentration: .*point does not read it",
        ),
        ({"rule": "srt", "update": "expected"}, "only rule = ttrl has it"),
        ({"first_replicate": 32767, "replicates": 2}, "first_replicate = 32767"),
    ],
)
def test_settings_that_contradict_each_other_are_named(given, message):
    with pytest.raises(UserError, match=message):
        SimConfig(**given)


def test_constant_schedule_and_short_runs():
    constant = SimConfig(schedule="constant", step=0.2, step_factor=2.0)
    assert set(constant.steps()) == {0.4} and len(constant.steps()) == 63 * 30
    short = SimConfig(n_problems=3, epochs=1, step=0.2)
    assert short.steps() == pytest.approx([0.2 * (1 + 1 + 0.5) / 3])
    assert replace(short, warmup_ratio=1.0).steps() == pytest.approx([0.2 * 2 / 3])
    assert replace(short, mini_batch=3).steps() == [0.2]


def abilities(config, of="truth"):
    """(R, N) probability of the correct answer, or of the attractor."""
    drawn = draw_population(config)
    ids_RN = getattr(drawn, f"{of}_RN")
    return np.take_along_axis(drawn.p0_RNA, ids_RN[..., None], axis=2)[..., 0]


@pytest.mark.parametrize("name", NAMED)
def test_named_populations_have_their_mean_and_size(name):
    law, config = NAMED[name], SimConfig(population=name, ability_floor=0.0)
    sizes = {"math500": (500, 30), "amc": (83, 30), "aime24": (30, 60), "aime25": (30, 60)}
    assert (config.n_problems, config.epochs) == sizes[name.split("-")[1]]
    spread = np.sqrt(law.mean * (1 - law.mean) / (1 + law.concentration) / 4000)
    large = replace(config, n_problems=4000)
    assert abilities(large).mean() == pytest.approx(law.mean, abs=5 * spread + 1e-8)


def test_population_has_the_named_ability_and_attractor_share():
    law = {"ability_mean": 0.3, "ability_concentration": 5.0, "ability_floor": 0.0}
    config = SimConfig(population="beta", n_problems=20000, **law)
    correct = abilities(config)
    share = abilities(config, "attractor") / (1 - correct)
    for drawn, concentration in ((correct, 5), (share, 4)):
        assert drawn.mean() == pytest.approx(0.3, abs=0.01)
        assert drawn.var() == pytest.approx(0.3 * 0.7 / (concentration + 1), rel=0.05)


def test_ability_floor_and_fixed_populations():
    correct = abilities(SimConfig(n_problems=2000, ability_floor=0.1))
    assert correct.min() == pytest.approx(0.1) and correct.max() == pytest.approx(0.9)
    fixed = draw_population(SimConfig(replicates=2, first_replicate=4, fixed_population=True))
    for p0_NA in fixed.p0_RNA:
        assert (p0_NA == draw_population(SimConfig()).p0_RNA[0]).all()


HISTOGRAM = "p0,weight\n0.1,0.5\n0.6,0.25\n0.9,0.25\n"


@pytest.fixture
def csv(tmp_path):
    def write(text):
        file = tmp_path / "h.csv"
        file.write_text(text)
        return SimConfig(population="histogram", histogram=str(file), n_problems=8000)

    return write


def test_histogram_of_shares_or_counts(csv):
    p = abilities(replace(csv(HISTOGRAM), replicates=2))
    bins, seen = np.unique(p.round(6), return_counts=True)
    assert bins == pytest.approx([0.1, 0.6, 0.9])
    assert seen / p.size == pytest.approx([0.5, 0.25, 0.25], abs=0.02)
    assert (p[0] != p[1]).any()
    counts = csv("\ufeffweight, p0 ,note\n200,0.1,x\n100,0.6,\n\n100,0.9,\n")
    assert (abilities(counts) == p[:1]).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p0,weight\n0.1,0.5\n0.2,0.4\n", "the weights sum to 0.9, must sum to 1 or be whole"),
        ("p0,weight\n0.1,0\n", "the weights sum to 0, must sum to 1"),
        ("p0,weight\n0.1,0.5\n1.2,0.5\n", "line 3: p0 = '1.2', must be"),
        ("p0,weight\n0.1,-1\n", "line 2: weight = '-1', must be a number >= 0"),
        ("p0,weight\n0.1,much\n", "line 2: weight = 'much', must be a number >= 0"),
        ("p0,weight\n0.1\n", "line 2: weight = nan, must be a number >= 0"),
        ("p0,weight\n0,5,1\n", "lines have more entries than the first; write p0,weight as in"),
        ("p0;weight\n0,5;1\n", "lines have more entries than the first"),
        ("p0,weight\n.5,1\n0,5,1\n", "cannot be read .*line 3, saw 3.$"),
        ("p0,weight\n", "holds no rows"),
        ("p,w\n0.1,1\n", "must name the columns p0 and weight"),
    ],
)
def test_an_impossible_histogram_names_file_and_line(csv, text, message):
    with pytest.raises(UserError, match=f"histogram: .*h.csv.*{message}"):
        draw_population(csv(text))


@pytest.fixture
def source(tmp_path):
    """A run, and its first label accuracies problem by problem."""
    config = SimConfig(n_problems=25, epochs=1, n_votes=16, n_samples=8, replicates=2, seed=4)
    config = replace(config, fixed_population=True)
    visits = simulate(config, tmp_path / "source").visits
    first = visits[visits["visit"] == 0]
    return str(tmp_path / "source"), first.groupby("problem")["label_accuracy"].mean().to_numpy()


def test_a_trace_gives_its_first_accuracies_problem_by_problem(source):
    folder, known = source
    law = {"population": "trace", "trace": folder, "ability_floor": 0.03}
    config = SimConfig(n_problems=25, replicates=3, **law)
    fixed = abilities(replace(config, fixed_population=True))
    assert fixed == pytest.approx(np.tile(np.clip(known, 0.03, 0.97), (3, 1)))
    free = abilities(replace(config, n_problems=4000))
    assert set(free.round(6).ravel()) == set(np.clip(known, 0.03, 0.97).round(6))
    assert free.mean() == pytest.approx(np.clip(known, 0.03, 0.97).mean(), abs=0.02)
    assert (free[0] != free[1]).any()


def test_replicates_that_drew_their_own_problems_are_not_averaged(tmp_path):
    config = SimConfig(n_problems=30, epochs=1, replicates=20, seed=4)
    own = simulate(config, tmp_path / "source").visits.query("visit == 0")["label_accuracy"]
    law = SimConfig(population="trace", trace=str(tmp_path / "source"), n_problems=4000)
    assert abilities(law).std() == pytest.approx(own.clip(0.01, 0.99).std(), rel=0.05)


def test_a_trace_that_does_not_fit_is_refused(source, tmp_path):
    folder, _ = source
    config = SimConfig(population="trace", trace=folder, fixed_population=True, n_problems=24)
    with pytest.raises(UserError, match=r"n_problems = 24: .* has 25 problems"):
        draw_population(config)
    with pytest.raises(UserError, match="nowhere"):
        draw_population(replace(config, trace=str(tmp_path / "nowhere")))


@pytest.mark.parametrize("mean", [0.0, 1e-320, 0.5, 1.0])
def test_extreme_laws_are_still_distributions(mean):
    for concentration in (1e-12, 1e12):
        law = {"ability_mean": mean, "ability_concentration": concentration, "ability_floor": 0.0}
        config = SimConfig(population="beta", n_problems=200, **law)
        assert abilities(config).mean() == pytest.approx(mean, abs=0.2)
