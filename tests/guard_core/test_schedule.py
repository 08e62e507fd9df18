"""The learning rate: by optimizer step in the trainer, by batch in the simulator."""

from itertools import pairwise

import pytest

from guard_core.schedule import rate_factor, scheduled_steps, step_factors


def test_it_warms_up_and_falls_to_zero() -> None:
    factors = [rate_factor(done, 100, 0.03) for done in range(100)]
    assert factors[:4] == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0])
    assert all(a >= b for a, b in pairwise(factors[3:]))
    assert 0 < factors[-1] < 1e-3
    assert rate_factor(0, 10, 0.0) == 1.0


def test_every_optimizer_step_has_its_rate_batch_by_batch() -> None:
    # 96 batches of 8 steps: 24 of the 768 warm up.
    factors = step_factors(scheduled_steps(64, 8, 1), 12, 0.03)
    assert [len(batch) for batch in factors] == [8] * 96
    means = [sum(batch) / 8 for batch in factors]
    assert means[:4] == pytest.approx([0.1875, 0.5208, 0.8542, 1.0], abs=1e-4)
    flat = [factor for batch in factors for factor in batch]
    assert flat == [rate_factor(done, 768, 0.03) for done in range(768)]


def test_the_last_batch_may_be_smaller() -> None:
    assert scheduled_steps(21, 8, 3) == [3, 3, 2]
    assert scheduled_steps(16, 8, 8) == [1, 1]
    factors = step_factors([3, 3, 2], 2, 0.0)
    assert factors[2] == [rate_factor(6, 16, 0.0), rate_factor(7, 16, 0.0)]
