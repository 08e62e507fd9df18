"""The learning rate: by optimizer step in the trainer, by batch in the simulator."""

from itertools import pairwise

import pytest

from guard_core.schedule import batch_factors, rate_factor, scheduled_steps


def test_it_warms_up_and_falls_to_zero() -> None:
    factors = [rate_factor(done, 100, 0.03) for done in range(100)]
    assert factors[:4] == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0])
    assert all(a >= b for a, b in pairwise(factors[3:]))
    assert 0 < factors[-1] < 1e-3
    assert rate_factor(0, 10, 0.0) == 1.0


def test_a_batch_takes_the_mean_of_its_optimizer_steps() -> None:
    # 96 batches of 8 steps: 24 of the 768 warm up.
    factors = batch_factors(scheduled_steps(64, 8, 1), 12, 0.03)
    assert len(factors) == 96
    assert factors[:4] == pytest.approx([0.1875, 0.5208, 0.8542, 1.0], abs=1e-4)
    rates = [rate_factor(done, 768, 0.03) for done in range(768)]
    for batch, factor in enumerate(factors):
        assert factor == pytest.approx(sum(rates[8 * batch : 8 * batch + 8]) / 8, abs=1e-12)


def test_the_last_batch_may_be_smaller() -> None:
    assert scheduled_steps(21, 8, 3) == [3, 3, 2]
    assert scheduled_steps(16, 8, 8) == [1, 1]
    steps = batch_factors([3, 3, 2], 2, 0.0)
    assert steps[2] == pytest.approx((rate_factor(6, 16, 0.0) + rate_factor(7, 16, 0.0)) / 2)
    assert batch_factors([1, 1], 2, 0.0) == [rate_factor(done, 4, 0.0) for done in range(4)]
