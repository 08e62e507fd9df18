import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lab.base.stats import auroc_of_runs, percentile_interval, resample_counts


def by_pairs(score, lost):
    """Every pair compared, one by one."""
    pairs = [(a > b) + (a == b) / 2 for a in score[lost] for b in score[~lost]]
    return np.mean(pairs) if pairs else np.nan


def auroc(score, lost):
    score, lost = np.asarray(score, float), np.asarray(lost, bool)
    (found,) = auroc_of_runs(score, lost, np.zeros(len(score), int), np.ones((1, 1), int))
    return found


def sample(seed, n=40):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 6, n).astype(float), rng.random(n) < 0.4, rng.integers(0, 3, n)


def test_an_unknown_score_leaves_no_auroc():
    assert np.isnan(auroc([1.0, np.nan], [True, False]))


@settings(max_examples=60, deadline=None)
@example(0, 0)
@example(0, 1)  # one problem, lost
@example(1, 1)  # one problem, kept
@given(st.integers(0, 10_000), st.integers(0, 60))
def test_equals_the_comparison_of_every_pair(seed, n):
    score, lost, _ = sample(seed, n)
    assert auroc(score, lost) == pytest.approx(by_pairs(score, lost), nan_ok=True)
    assert auroc(np.exp(score) - 9, lost) == pytest.approx(auroc(score, lost), nan_ok=True)
    assert auroc(-score, lost) == pytest.approx(1 - auroc(score, lost), nan_ok=True)


def test_only_pairs_within_a_run_count_each_as_often_as_its_run_is_drawn():
    score, lost, replicate = sample(5)
    own = [replicate == r for r in range(3)]
    pairs = np.array([(lost & o).sum() * (~lost & o).sum() for o in own])
    each = np.array([by_pairs(score[o], lost[o]) for o in own])
    drawn = np.array([[1, 1, 1], [0, 3, 0], [2, 0, 1]])
    expected = [(w * pairs) @ each / (w @ pairs) for w in drawn]
    assert auroc_of_runs(score, lost, replicate, drawn) == pytest.approx(expected)
    # Shifting the scores of one run changes nothing within it.
    shifted = auroc_of_runs(score + 100 * own[1], lost, replicate, drawn)
    assert shifted == pytest.approx(expected)


def test_resamples_draw_as_many_replicates_as_there_are():
    draws = resample_counts(5, 200, np.random.default_rng(0))
    assert draws.shape == (200, 5) and (draws.sum(axis=1) == 5).all()
    assert draws.mean() == 1 and (draws == resample_counts(5, 200, np.random.default_rng(0))).all()


def test_interval_leaves_undefined_draws_out():
    values = np.append(np.linspace(0, 1, 101), [np.nan, np.nan])
    assert percentile_interval(values) == pytest.approx((0.025, 0.975))
    assert np.isnan(percentile_interval(np.array([np.nan]))).all()
