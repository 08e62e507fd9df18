"""The problems of a response file as a population."""

from __future__ import annotations

import numpy as np

from sim.settings.config import SimConfig
from sim.world.measured.tree import first_probs, read_measured
from sim.world.populations import P_MIN, Population


def measured_population(config: SimConfig) -> Population:
    """Return the problems of the response file, the same for all replicates.

    Probabilities are those of the token trees before training among readable responses, the truth
    is the reference answer (an id that no response gives where there is none), the attractor the
    likeliest wrong answer.

    Raises:
        UserError: the response file has a defect, or another number of problems or answers.
    """
    assert config.response is not None  # SimConfig asks for it
    response = read_measured(config.response, config.n_problems, config.n_answers)
    p0_NA = np.maximum(first_probs(response)[:, :-1], P_MIN)
    p0_NA /= p0_NA.sum(axis=1, keepdims=True)
    truth_N = np.where(response.truth_N < 0, config.n_answers - 1, response.truth_N)
    wrong_NA = p0_NA.copy()
    wrong_NA[np.arange(len(truth_N)), truth_N] = -1.0
    parts = (p0_NA, truth_N, wrong_NA.argmax(axis=1))
    return Population(*(np.stack([part] * config.replicates) for part in parts))
