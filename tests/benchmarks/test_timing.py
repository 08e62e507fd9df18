"""The stopwatch of parts inside parts, and medians of noisy times."""

from __future__ import annotations

import math
from itertools import count

import numpy as np
import pytest
import stopwatch
from medians import middle
from stopwatch import Spent, Stopwatch


def test_parts_stop_the_parts_around_them(monkeypatch: pytest.MonkeyPatch):
    ticks = count()
    monkeypatch.setattr(stopwatch, "now", lambda: Spent(*[float(next(ticks))] * 2))
    watch = Stopwatch()
    with watch.part("step"):  # 0
        with watch.part("pay"):  # 1
            with watch.part("weigh"):  # 2, 3
                pass
            with watch.part("weigh"):  # 4, 5
                pass
        with watch.part("pay"):  # 6 to 8, 9
            pass
    assert {name: spent.cpu for name, spent in watch.parts.items()} == {
        "weigh": 2.0,
        "pay": 3.0 + 1.0,
        "step": 3.0,
    }


def test_a_part_that_fails_is_closed():
    watch = Stopwatch()
    with pytest.raises(ZeroDivisionError), watch.part("step"), watch.part("pay"):
        _ = 1 / 0
    with watch.part("step"):
        pass
    assert set(watch.parts) == {"step", "pay"}


def test_medians_have_intervals_of_order_statistics():
    assert middle([3.0]).median == 3 and math.isnan(middle([1.0, 2, 3, 4, 5]).low)
    assert middle([6.0, 1, 5, 2, 4, 3]) == (3.5, 1, 6)
    assert middle([float(n) for n in range(9)]) == (4, 1, 7)
    assert middle([1.0] * 8 + [99.0]).times(2) == (2, 2, 2)


def test_the_interval_covers_the_median_of_a_skewed_distribution():
    rng = np.random.default_rng(0)
    found = [middle(rng.exponential(size=9).tolist()) for _ in range(2000)]
    covered = np.mean([low <= math.log(2) <= high for _, low, high in found])
    assert 0.95 <= covered <= 0.975  # exactly 1 - 20 / 512
