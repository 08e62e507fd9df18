"""The learning rate falls where labels flip, or where votes agree too well."""

import numpy as np

from guard_core import GuardConfig
from guard_core.schedule import brake_factor, signal

FLIPPED = np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
MATCH = np.array([[0.5, 0.75, 0.25, 0.0], [1.0, 1.0, 0.0, 0.0]])
VISITED = np.array([[True, True, True, False], [True, True, False, False]])


def test_the_signal_counts_all_problems_for_flips_and_visited_ones_for_match_rates():
    flips = signal(FLIPPED, MATCH, VISITED, GuardConfig())
    assert flips.tolist() == [0.5, 0.0]
    match = signal(FLIPPED, MATCH, VISITED, GuardConfig(brake_on="match_rate"))
    assert match.tolist() == [0.5, 1.0]
    nothing = signal(FLIPPED, MATCH, VISITED & False, GuardConfig(brake_on="match_rate"))
    assert nothing.tolist() == [0.0, 0.0]


def test_the_rate_falls_only_above_the_limit():
    value = np.array([0.2, 0.21, 0.0])
    assert brake_factor(value, GuardConfig(brake=0.5)).tolist() == [1.0, 0.5, 1.0]
    assert brake_factor(value, GuardConfig(brake=0.0)).tolist() == [1.0, 0.0, 1.0]
    assert brake_factor(value, GuardConfig()).tolist() == [1.0, 1.0, 1.0]
