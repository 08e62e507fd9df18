"""Row order must not matter (docs/method.md, section 8)."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from guard_histories import Batch, History, Walked, checked, configs, vote_histories, walk
from hypothesis import given
from hypothesis import strategies as st

from guard_core import GuardConfig


def with_distinct_picks(history: History, rng: np.random.Generator) -> History:
    """Equal picks are settled in batch order; real draws hardly ever are equal."""
    batches = []
    for batch in history.batches:
        order = np.argsort(rng.random(batch.pick.shape), axis=-1)
        batches.append(replace(batch, pick=order / 16))
    return replace(history, batches=batches)


def permuted(batch: Batch, order: np.ndarray) -> Batch:
    rows = {f.name: getattr(batch, f.name)[..., order] for f in fields(batch) if f.name in ROW}
    return replace(batch, answers=batch.answers[..., order, :], **rows)


ROW = {"problems", "tie", "skip", "pick"}


def compare(one: Walked, two: Walked, order: np.ndarray, axis: int, close: dict) -> None:
    for got, want in ((two.decision, one.decision), (two.streams, one.streams)):
        for name, value in want.items():
            rows = np.take(value, order, axis=axis)
            np.testing.assert_allclose(got[name], rows, err_msg=name, **close)


@checked(70)
@given(
    history=vote_histories(min_problems=2),
    config=configs(),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_output_follows_its_problem(history: History, config: GuardConfig, seed: int) -> None:
    rng = np.random.default_rng(seed)
    config = replace(config, skip_order="random")
    history = with_distinct_picks(history, rng)
    orders = [rng.permutation(batch.problems.shape[-1]) for batch in history.batches]
    shuffled = [permuted(b, order) for b, order in zip(history.batches, orders, strict=True)]
    base, last = walk(history, config)
    other, other_last = walk(replace(history, batches=shuffled), config)
    # Only the batch's standard deviation adds up rows, and so depends on their order's rounding.
    loose = {"rtol": 1e-12, "atol": 1e-12}
    close = loose if config.advantage_scale == "batch" else {"rtol": 0}
    axis = len(history.leading)
    for one, two, order in zip(base, other, orders, strict=True):
        compare(one, two, order, axis, close)
    for field in fields(last):
        np.testing.assert_array_equal(getattr(last, field.name), getattr(other_last, field.name))


def test_first_come_first_served_does_depend_on_it() -> None:
    """The release's order is an option, and the reason why it is not the default."""
    flips = [np.array([[[answer] * 8] * 4])[0] for answer in (0, 1, 1)]
    quarter = np.full(4, 0.0)
    batches = [
        Batch(np.arange(4), answers, 2, quarter, quarter, np.arange(4) / 4) for answers in flips
    ]
    config = GuardConfig(W=1, tau_FR=0.0, theta_MR=0.0, skip_order="first")
    history = History(4, (), 8, None, batches)
    skipped = walk(history, config)[0][-1].decision["skip"]
    assert skipped.tolist() == [True, False, False, False]
    batches[-1] = permuted(batches[-1], np.array([3, 2, 1, 0]))
    skipped = walk(history, config)[0][-1].decision["skip"]
    assert skipped.tolist() == [True, False, False, False]
    skipped = walk(history, replace(config, skip_order="random"))[0][-1].decision["skip"]
    assert skipped.tolist() == [False, False, False, True]
