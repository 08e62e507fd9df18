"""Parts of the measured dynamics switched off: each changes what it names and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
from measured_response import CURVED, KEY, SAMPLING, A, N, rows, settings, small_response

from lab.trace.response import write_response
from sim import simulate
from sim.world.measured import Apart
from sim.world.training import Adam, TrainedBatch, train_batch
from sim.world.tree import (
    batch_probs,
    draw_weights,
    edge_log_probs,
    leaf_probs,
    tree_of,
    without_unseen,
)

ADAM, RATE = Adam(0.9, 0.999, 1e-8, 1.0, 0.01, 1), 0.05
WHOLE = tree_of(small_response())


def weights_of():
    response = small_response()
    return draw_weights(response, response.features, CURVED, SAMPLING, np.random.default_rng(1))


def leaves_of(tree, at, n):
    log_p, p = np.empty(99), np.empty(99)
    edge_log_probs(tree, at, n, log_p)
    return p[: leaf_probs(tree, log_p, n, p)]


def answers_of(at, n):
    out, unseen = np.empty((1, A + 1)), np.empty(1)
    batch_probs(WHOLE, at, np.array([n]), out, unseen)
    return out[0]


def batches():
    """Arguments of `train` after the optimizer steps taken, for three visits of problem 2."""
    rng = np.random.default_rng(4)
    for batch in range(3):
        samples, streams = rng.integers(1, 6, (1, A + 1)), rng.normal(size=(2, 1, A + 1))
        key = np.uint64(KEY + np.uint64(batch))
        yield (
            TrainedBatch(np.array([2]), np.array([RATE]), samples, streams, np.array([False])),
            key,
        )


def trained(own, visits):
    """Weights of the whole model and those that every problem reads, after some visits."""
    whole, apart, taken = weights_of(), Apart(weights_of(), N, own), (0, 0)
    for given, _ in zip(batches(), range(visits), strict=False):
        norms = np.empty(1), np.empty(1)
        taken = (
            train_batch(WHOLE, whole, ADAM, taken[0], *given, norms[0]),
            apart.train(WHOLE, ADAM, taken[1], *given, norms[1]),
        )
    assert taken == (visits, visits)
    return whole, apart, norms


def decayed(visits):
    start, w = weights_of().start.astype(float), 0.0
    for _ in range(visits):
        w = w - RATE * ADAM.decay * (start + w)
    return w


def test_without_the_leak_unseen_responses_have_no_probability_and_others_keep_their_ratios():
    weights = weights_of()
    weights.moved[:] = np.random.default_rng(2).normal(scale=0.2, size=len(weights.moved))
    cut = without_unseen(WHOLE)
    for n in range(N):
        unseen = WHOLE.leaf_unseen[WHOLE.leaf_start[n] : WHOLE.leaf_start[n + 1]]
        before, after = (leaves_of(tree, weights, n) for tree in (WHOLE, cut))
        assert unseen.any() and (before > 0).all() and (after[unseen] == 0).all()
        assert after.sum() == pytest.approx(1)
        for node in (slice(0, 3), slice(3, 5)):  # leaves that differ in their last token alone
            seen = ~unseen[node]
            ratios = [p[node][seen] / p[node][seen].sum() for p in (before, after)]
            assert ratios[0] == pytest.approx(ratios[1])


def test_without_unseen_responses_there_is_no_leak_to_switch_off(response_file, tmp_path):
    assert simulate(settings(response_file, parts_off=("leak",))).run.extra["trust"]["unseen"] == 0
    whole = small_response()
    path = tmp_path / "seen.npz"
    write_response(path, replace(whole, leaf_unseen=np.zeros_like(whole.leaf_unseen)))
    first, second = (simulate(settings(str(path), parts_off=p)) for p in ((), ("leak",)))
    assert rows(first).equals(rows(second)) and first.evals.equals(second.evals)


def test_a_problem_that_alone_is_visited_has_its_own_effect_and_others_have_none():
    whole, apart, norms = trained(own=True, visits=3)
    assert apart._w_ND[2] == pytest.approx(whole.w, rel=1e-12, abs=1e-15)
    assert norms[0] == pytest.approx(norms[1], rel=1e-12)
    expected = answers_of(whole, 2)
    assert answers_of(apart.read_by(2), 2) == pytest.approx(expected, rel=1e-9)
    for n in set(range(N)) - {2}:
        assert apart._w_ND[n] == pytest.approx(decayed(3))


def test_without_its_own_effect_a_problem_stays_and_the_others_move_as_in_the_whole_model():
    whole, apart, _ = trained(own=False, visits=1)
    assert apart._w_ND[2] == pytest.approx(decayed(1))
    for n in set(range(N)) - {2}:
        assert apart._w_ND[n] == pytest.approx(whole.w, rel=1e-12, abs=1e-15)
        expected = answers_of(whole, n)
        assert answers_of(apart.read_by(n), n) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("part", ["own", "others"])
def test_runs_with_a_part_off_differ_and_a_seed_fixes_their_bits(response_file, part):
    config = settings(response_file, mini_batch=1, parts_off=(part,))
    first, second, whole = (simulate(c) for c in (config, config, replace(config, parts_off=())))
    assert rows(first).equals(rows(second))
    assert first.evals.pass_at_1.iloc[0] == whole.evals.pass_at_1.iloc[0]
    assert not first.evals.equals(whole.evals)
    assert first.run.extra["trust"]["unseen"] > 0
