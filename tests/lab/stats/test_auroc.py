import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.base.stats import auroc, pair_wins, percentile_interval, resample_counts


def by_pairs(score, lost):
    """Every pair compared, one by one."""
    pairs = [(a > b) + (a == b) / 2 for a in score[lost] for b in score[~lost]]
    return np.mean(pairs) if pairs else np.nan


def sample(seed, n=40, n_replicates=3):
    rng = np.random.default_rng(seed)
    score = rng.integers(0, 6, n).astype(float)
    return score, rng.random(n) < 0.4, rng.integers(0, n_replicates, n)


def test_by_hand():
    assert auroc([0.1, 0.4, 0.35, 0.8], [False, False, True, True]) == 0.75
    assert auroc([1, 2, 3, 4], [False, False, True, True]) == 1
    assert auroc([4, 3, 2, 1], [False, False, True, True]) == 0
    assert auroc([7, 7, 7], [True, False, False]) == 0.5
    # 1 beats 0 and ties with 1: one and a half of two pairs.
    assert auroc([1, 1, 0], [True, False, False]) == 0.75


def test_undefined_where_a_class_is_empty_or_a_score_is_nan():
    assert np.isnan(auroc([1.0, 2.0], [True, True]))
    assert np.isnan(auroc([1.0, 2.0], [False, False]))
    assert np.isnan(auroc([], []))
    assert np.isnan(auroc([1.0, np.nan], [True, False]))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 60))
def test_equals_the_comparison_of_every_pair(seed, n):
    score, lost, _ = sample(seed, n)
    assert auroc(score, lost) == pytest.approx(by_pairs(score, lost), nan_ok=True)
    assert auroc(np.exp(score) - 9, lost) == pytest.approx(auroc(score, lost), nan_ok=True)
    assert auroc(-score, lost) == pytest.approx(1 - auroc(score, lost), nan_ok=True)


def test_a_replicate_drawn_twice_is_its_rows_twice():
    score, lost, replicate = sample(3)
    wins = pair_wins(score, lost, replicate, 3)
    drawn = np.concatenate([np.flatnonzero(replicate == r) for r in (0, 2, 2)])
    assert wins.auroc([1, 0, 2]) == pytest.approx(by_pairs(score[drawn], lost[drawn]))
    assert wins.auroc([1, 1, 1]) == pytest.approx(by_pairs(score, lost))
    many = wins.auroc([[1, 0, 2], [1, 1, 1]])
    assert many.tolist() == [wins.auroc([1, 0, 2]), wins.auroc([1, 1, 1])]


def test_pairs_within_a_run_or_a_group_only():
    score, lost, replicate = sample(5)
    wins = pair_wins(score, lost, replicate, 3)
    own = [replicate == r for r in range(3)]
    pairs = np.array([(lost & o).sum() * (~lost & o).sum() for o in own])
    each = np.array([by_pairs(score[o], lost[o]) for o in own])
    assert wins.auroc_same_run([1, 1, 1]) == pytest.approx(pairs @ each / pairs.sum())
    assert wins.auroc_same_run([0, 3, 0]) == pytest.approx(each[1])
    grouped = wins.among([7, 8, 7])
    both = own[0] | own[2]
    assert grouped.auroc([1, 0, 1]) == pytest.approx(by_pairs(score[both], lost[both]))
    assert grouped.auroc([0, 1, 0]) == pytest.approx(each[1])
    # Shifting the scores of one group changes nothing within it.
    shifted = pair_wins(score + 100 * own[1], lost, replicate, 3).among([7, 8, 7])
    assert shifted.auroc([1, 1, 1]) == grouped.auroc([1, 1, 1])


def test_resamples_draw_as_many_replicates_as_there_are():
    draws = resample_counts(5, 200, np.random.default_rng(0))
    assert draws.shape == (200, 5)
    assert (draws.sum(axis=1) == 5).all()
    assert draws.mean() == 1
    assert (draws == resample_counts(5, 200, np.random.default_rng(0))).all()


def test_interval_leaves_undefined_draws_out():
    values = np.append(np.linspace(0, 1, 101), [np.nan, np.nan])
    assert percentile_interval(values) == pytest.approx((0.025, 0.975))
    assert np.isnan(percentile_interval(np.array([np.nan]))).all()
