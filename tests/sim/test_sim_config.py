"""Impossible settings are refused by name; the schedule is the trainer's."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from guard_core import GuardConfig
from lab.base.errors import UserError
from lab.base.settings import from_values, to_values
from lab.trace.response import read_response
from sim import SimConfig
from sim.settings.populations import EPOCHS, FREE, NAMED

WRONG = [
    ("policy", "feature"),
    ("population", "gpt-9"),
    ("optimizer", "adamw"),
    ("adam_beta_1", 1.0),
    ("max_grad_norm", math.nan),
    ("mini_batch", 9),
    ("histogram", 3),
    ("mixture", [0.5]),
    ("n_problems", 2.5),
    ("epochs", True),
    ("n_samples", 65),
    ("unparseable", 1.5),
    ("step", math.inf),
    ("vote_replicates", -1),
    ("skip_rate", 1.1),
    ("first_replicate", -1),
    ("guard", "paper"),
]


UNREAD = {
    "response": "r.npz",
    "growth": 0.0,
    "kl_coef": 0.1,
    "ema_decay": 0.9,
    "histogram": "h.csv",
    "trace": "run",
    "mixture": ((1, 0.5, 2),),
}
"""Settings that the default policy and population would ignore."""


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_value_is_named(name, value):
    with pytest.raises(UserError, match=rf"{name} = .*: must|{name} = .*: unknown"):
        SimConfig(**{name: value})


def mixed(*laws):
    return {"population": "mixture", "mixture": laws}


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
        (mixed((0.5, 0.1, 2.0), (0.4, 0.8, 2.0)), "mixture: the weights sum to 0.9, must sum to 1"),
        (mixed((1.5, 0.1, 2.0)), r"mixture\[0\]\[0\] = 1.5: must lie in \[0, 1\]"),
        (mixed((1.0, 0.1, 0.0)), r"mixture\[0\]\[2\] = 0.0: must lie in \[1e-12, 1e12\]"),
        (mixed((1.0, 0.1)), r"mixture\[0\] = \(1.0, 0.1\): must have 3 entries"),
        ({"first_replicate": 32767, "replicates": 2}, "first_replicate = 32767"),
    ],
)
def test_settings_that_contradict_each_other_are_named(given, message):
    with pytest.raises(UserError, match=message):
        SimConfig(**given)


def test_round_trip_through_plain_values():
    config = SimConfig(guard=GuardConfig.release(), population="qwen-amc", step=1, seed=7)
    assert from_values(to_values(config), SimConfig, "here") == config
    mixed = SimConfig(population="mixture", mixture=((0.25, 0.1, 2.0), (0.75, 0.9, 3.0)))
    assert from_values(to_values(mixed), SimConfig, "here") == mixed


def test_every_named_population_brings_its_sizes_where_they_are_not_given():
    for name, law in NAMED.items():
        config = SimConfig(population=name)
        assert (config.n_problems, config.epochs) == (law.n_problems, law.epochs)
    assert SimConfig(population="llama-amc", n_problems=500).n_problems == 500
    assert SimConfig(population="llama-aime24", epochs=5).epochs == 5
    config = SimConfig(replicates=4, seed=0)
    assert (config.n_problems, config.epochs, config.n_answers) == (500, 30, 10)


def test_a_response_file_brings_its_sizes_where_they_are_not_given(response_file):
    config = SimConfig(policy="measured", response=response_file, lr=1e-4)
    measured = read_response(response_file)
    own = (measured.n_problems, measured.n_answers, EPOCHS)
    assert (config.n_problems, config.n_answers, config.epochs) == own
    with pytest.raises(UserError, match="no such file; make one with guard-train measure"):
        SimConfig(policy="measured", response="none.npz", lr=1e-4)


def test_cosine_schedule_warms_up_to_the_peak_and_ends_at_zero():
    config = SimConfig(n_problems=80, epochs=10, batch_size=8, step=0.5, step_factor=0.5)
    steps = config.steps()
    # 24 of the 800 optimizer steps warm up: in the first batch those with 1/24 to 8/24 of the rate.
    assert steps[:3] == pytest.approx([0.25 * k / 24 for k in (4.5, 12.5, 20.5)])
    assert steps[3] == pytest.approx(0.25, rel=1e-4)
    assert all(later < sooner for sooner, later in pairwise(steps[3:]))
    assert 0 < steps[-1] < 1e-3
    assert steps[3 + 97 // 2] == pytest.approx(0.125, rel=0.02)


def test_constant_schedule_and_short_runs():
    constant = SimConfig(schedule="constant", step=0.2, step_factor=2.0)
    assert set(constant.steps()) == {0.4} and len(constant.steps()) == 63 * 30
    short = SimConfig(n_problems=3, epochs=1, step=0.2)
    assert short.steps() == pytest.approx([0.2 * (1 + 1 + 0.5) / 3])
    assert replace(short, warmup_ratio=1.0).steps() == pytest.approx([0.2 * 2 / 3])
    assert replace(short, mini_batch=3).steps() == [0.2]
