"""Closed forms: their numbers, what they approximate, and how well, where they claim to."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lab.errors import UserError
from sim.theory import Process, lock_in, lock_in_chain, windows
from sim.theory import diffusion as forms


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


def test_the_closed_form_fails_for_large_steps_and_the_chain_does_not() -> None:
    exact = lock_in(0.55, 1.0, 64, 64)
    assert abs(lock_in(0.55, 1.0, 64, 64, method="diffusion") - exact) > 0.08


@pytest.mark.parametrize(("n_votes", "n_samples"), [(64, 64), (64, 32), (16, 8)])
def test_the_full_diffusion_tends_to_the_chain(n_votes: int, n_samples: int) -> None:
    errors = []
    for scaled in (0.25, 0.0625):
        process = Process(scaled / math.sqrt(n_votes), n_votes, n_samples)
        errors.append(
            max(
                abs(forms.lock_in_scale(p, process) - float(lock_in_chain(process).at(p)))
                for p in (0.45, 0.51, 0.53)
            )
        )
    assert errors[1] < errors[0] < 0.008
    assert errors[1] < 0.0025
    assert forms.lock_in_scale(0.5, process) == pytest.approx(0.5, abs=1e-9)
    assert (forms.lock_in_scale(0.9999, process), forms.lock_in_scale(1e-4, process)) == (0.0, 1.0)


def test_drift_and_variance_against_the_exact_moments() -> None:
    process = Process(0.1, 64, 64)
    x_N = np.linspace(-1.0, 1.0, 21)
    drift_N, square_N = process.moments(x_N)
    assert forms.drift(x_N, process) == pytest.approx(drift_N, rel=0.04, abs=1e-9)
    assert forms.variance(x_N, 0.1) == pytest.approx(square_N, rel=0.04)
    near = 0.01
    assert float(forms.drift(near, process)[0]) == pytest.approx(
        forms.escape_rate(0.1, 64) * near, rel=0.01
    )


def test_the_sinh_law_solves_its_equation() -> None:
    x0, step, tiny = 0.8, 0.1, 1e-5
    t = np.array([0.0, 10.0, 100.0])
    x = forms.logit_after(x0, step, t)
    assert x[0] == pytest.approx(x0)
    speed = (forms.logit_after(x0, step, t + tiny) - x) / tiny
    assert speed == pytest.approx(step / np.cosh(x / 2), rel=1e-3)


def _mean_shares(x0: float, process: Process, at: tuple[int, ...]) -> list[float]:
    """Share of the wrong answer by visit along the exact mean motion of the logit."""
    shares, x = [], x0
    for visit in range(1, max(at) + 1):
        x += float(process.moments(x)[0][0])
        if visit in at:
            shares.append(1 / (1 + math.exp(x)))
    return shares


def test_the_sinh_law_holds_while_the_sample_sees_the_minority() -> None:
    process = Process(0.02, 256, 256)
    exact = _mean_shares(0.5, process, (20, 60, 100))
    closed = 1 / (1 + np.exp(forms.logit_after(0.5, 0.02, [20, 60, 100])))
    assert closed == pytest.approx(exact, rel=0.03)


def test_below_one_sample_the_minority_decays_like_one_over_t() -> None:
    process = Process(0.1, 64, 32)
    start = 1 / (4 * 32)
    exact = _mean_shares(math.log((1 - start) / start), process, (100, 400, 1000))
    tail = forms.tail_share(start, 0.1, 32, np.array([100, 400, 1000]))
    assert tail == pytest.approx(exact, rel=0.06)
    sinh = 1 / (1 + np.exp(forms.logit_after(math.log((1 - start) / start), 0.1, 1000)))
    assert exact[-1] > 5 * sinh


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
        lambda: forms.lock_in_scale(p0, Process(0.1, 8, 8)),
    ):
        with pytest.raises(UserError, match="theory: p0 = "):
            form()
