"""Closed forms: their numbers, what they approximate, and how well, where they claim to."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lab.base.errors import UserError
from sim.theory import Process, lock_in, windows
from sim.theory import chain as forms
from sim.theory.chain import lock_in_chain


def test_the_notes_constants() -> None:
    assert forms.escape_rate(0.1, 64) == pytest.approx(0.399 * 0.1 * 8, rel=1e-3)
    assert forms.separatrix_width(0.1, 64) == pytest.approx(math.sqrt(0.1 / (0.798 * 8)), rel=1e-3)
    assert lock_in(0.5, 0.1, 64, 32, method="diffusion") == 0.5
    x0 = math.log(0.52 / 0.48)
    z = x0 / math.sqrt(0.1 / (0.798 * 8))
    expected = 0.5 * math.erfc(z / math.sqrt(2))
    assert lock_in(0.52, 0.1, 64, 32, method="diffusion") == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("scaled", "tolerance"), [(0.0625, 0.002), (0.25, 0.004), (1.0, 0.013), (2.5, 0.031)]
)
def test_lock_in_for_small_steps(scaled: float, tolerance: float) -> None:
    p0 = np.linspace(0.4, 0.6, 41)
    exact = lock_in_chain(Process(scaled / 8, 64, 64)).at(p0)
    closed = [forms.lock_in_diffusion(float(p), scaled / 8, 64) for p in p0]
    assert np.abs(exact - closed).max() < tolerance


def test_the_window_is_a_scale_that_the_exact_mean_exceeds() -> None:
    x_d = 2 * 2.3263479 / 8
    x0 = math.log(0.55 / 0.45)
    expected = math.log(x_d / x0) / (0.398942 * 0.1 * 8)
    assert forms.window_closed_form(0.55, 0.1, 64) == pytest.approx(expected, rel=1e-5)
    assert forms.window_closed_form(0.45, 0.1, 64) == pytest.approx(expected, rel=1e-5)
    assert forms.window_closed_form(0.9, 0.1, 64) == 0.0
    for step in (0.01, 0.03, 0.1):
        ratio = windows(Process(step, 64, 64)).at(0.5).visits / forms.window_closed_form(
            0.5, step, 64
        )
        assert 1.2 < ratio < 2.0


@pytest.mark.parametrize("p0", [0.0, 1.0, math.nan, "half"])
def test_bad_chances_are_named(p0: float) -> None:
    for form in (
        lambda: forms.lock_in_diffusion(p0, 0.1, 64),
        lambda: forms.window_closed_form(p0, 0.1, 64),
    ):
        with pytest.raises(UserError, match="theory: p0 = "):
            form()
