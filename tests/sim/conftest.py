"""Rows of a sweep with scores of one's choice."""

import numpy as np
import pandas as pd
import pytest

from sim.measure import MEASURES

START = 55.0
COMMON = np.random.default_rng(8).normal(size=12)
"""What a replicate brings to every arm: paired differences do not see it."""


def _rows(scores, **others):
    parts = []
    for (kappa, step, arm), mean in scores.items():
        noise = np.random.default_rng(len(parts)).normal(scale=0.1, size=12)
        part = pd.DataFrame(dict.fromkeys(MEASURES, 0.0), index=range(12))
        part["pass_final"] = mean + 5 * COMMON + noise
        part["pass_start"] = START + 5 * COMMON
        part["update_norm"] = step
        settings = {"kappa_att": kappa, "step": step, "arm": arm, "status": "done", **others}
        parts.append(part.assign(replicate=range(12), **settings))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="session")
def scored():
    """Rows from mean scores by (kappa_att, step, arm), 55 before training, 12 replicates."""
    return _rows
