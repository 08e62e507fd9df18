"""Votes with known outcomes for the tests of the alarm."""

import numpy as np
import pandas as pd
import pytest

from lab.measures.fate import fates

RIGHT, WRONG, W = 3, 5, 5


@pytest.fixture(scope="session")
def voted(make_visits):
    """Two-answer votes from label accuracies (R, N, 1 + visits): the larger share is the label."""

    def table(accuracy, **columns):
        accuracy = np.asarray(accuracy, float)
        correct = accuracy >= 0.5
        flipped = np.diff(correct, axis=-1, prepend=correct[..., :1])
        windows = [
            flipped[..., max(0, t - W + 1) : t + 1].sum(-1) for t in range(flipped.shape[-1])
        ]
        return pd.DataFrame(
            make_visits(
                accuracy,
                label=np.where(correct, RIGHT, WRONG),
                flipped=flipped,
                flip_rate=np.stack(windows, axis=-1) / W,
                match_rate=np.maximum(accuracy, 1 - accuracy),
                label_correct=correct,
                **columns,
            )
        )

    return table


@pytest.fixture(scope="session")
def world(voted):
    """Four runs of 60 problems: some fall from their start, others rise, all with noisy votes."""
    rng = np.random.default_rng(7)
    start = rng.uniform(0.3, 0.95, (4, 60, 1))
    falls = rng.random((4, 60, 1)) < 0.4
    t = np.arange(13)
    mean = np.where(falls, start - 0.05 * t, start + 0.02 * t).clip(0.05, 0.97)
    visits = voted(rng.binomial(64, mean) / 64)
    return visits, fates(visits)
