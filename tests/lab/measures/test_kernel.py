"""The measured kernel: gradients of answer classes, transfer, correlations and spectrum."""

from dataclasses import replace

import numpy as np
import pytest

from lab.errors import UserError
from lab.measures.kernel import (
    Classes,
    classes,
    correlations,
    mean_correlations,
    spectrum,
    transfer,
)
from lab.trace.response import Facts, Response

N, D = 3, 7


def response(features):
    """Per problem a root with two tokens and behind the first a node with two more: 3 leaves."""
    rng = np.random.default_rng(1)
    p = np.concatenate([rng.dirichlet([3, 3]) for _ in range(2 * N)])
    return Response(
        facts=Facts(
            task="test",
            model={},
            problems="",
            problem_ids=["a", "b", "c"],
            answers=[["0", "1"]] * N,
            temperature=1.0,
            n_weights=4 * D,
            settings={},
            left_out=0.0,
        ),
        truth_N=np.array([0, 1, 0]),
        edge_start=np.arange(N + 1) * 4,
        edge_node=np.tile([0, 0, 1, 1], N),
        log_p0=np.log(p),
        features=features,
        scale=rng.uniform(1, 7, D).astype(np.float32),
        start=np.zeros(D, np.float32),
        norm2=np.ones(len(features)),
        leaf_start=np.arange(N + 1) * 3,
        leaf_answer=np.tile([0, 1, 1], N),
        leaf_length=np.full(3 * N, 4),
        leaf_unseen=np.zeros(3 * N, bool),
        path_start=np.concatenate([[0], np.cumsum(np.tile([2, 2, 1], N))]),
        path_edge=np.tile([0, 2, 0, 3, 1], N),
    )


def log_p_classes(measured, w_D):
    """(N, 2) log-probabilities of both answers under a change of the weights."""
    z_E = measured.log_p0 + measured.features @ (measured.scale * w_D)
    p_NVT = np.exp(z_E).reshape(N, 2, 2)
    root, behind = np.moveaxis(p_NVT / p_NVT.sum(-1, keepdims=True), 1, 0)
    right = root[:, 0] * behind[:, 0]
    return np.log(np.stack([right, 1 - right], 1))


def test_gradients_are_those_of_the_tree():
    measured = response(np.random.default_rng(2).normal(size=(4 * N, D)))
    found = classes(measured)
    assert found.problem_C.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.right_C.tolist() == [True, False, False, True, True, False]
    assert np.log(found.p_C) == pytest.approx(log_p_classes(measured, np.zeros(D)).ravel())
    for w_D in np.eye(D) * 1e-6:
        change = (log_p_classes(measured, w_D) - log_p_classes(measured, -w_D)).ravel() / 2e-6
        assert (found.gradient_CD * np.sqrt(measured.scale)) @ (w_D / 1e-6) == pytest.approx(
            change, abs=1e-6
        )


def test_adam_divides_by_the_mean_square_of_the_labels_gradients():
    measured = response(np.random.default_rng(3).normal(size=(4 * N, D)))
    plain, scaled = classes(measured), classes(measured, adam=True)
    ratio_CD = scaled.gradient_CD / plain.gradient_CD
    assert ratio_CD == pytest.approx(np.tile(ratio_CD[0], (len(ratio_CD), 1)))
    assert ratio_CD.std(axis=1).min() > 0


def test_problems_with_weights_of_their_own_move_nothing_else():
    features = np.zeros((4 * N, D))
    for n in range(N):
        features[4 * n : 4 * n + 4, 2 * n : 2 * n + 2] = np.random.default_rng(n).normal(
            size=(4, 2)
        )
    table = transfer(classes(response(features)))
    assert len(table) == N
    assert table[["moved", "lifted", "rms"]].to_numpy() == pytest.approx(0)
    pairs = correlations(classes(response(features)))
    assert len(pairs) == 12 and pairs.correlation.to_numpy() == pytest.approx(0, abs=1e-12)
    assert spectrum(classes(response(features)))[:4] == pytest.approx([1 / 3] * 3 + [0])


def test_equal_problems_move_each_other_as_themselves():
    measured = response(np.tile(np.random.default_rng(4).normal(size=(4, D)), (N, 1)))
    measured = replace(measured, log_p0=np.tile(measured.log_p0[:4], N), truth_N=np.zeros(N, int))
    table = transfer(classes(measured))
    assert table.moved.to_numpy() == pytest.approx(N - 1)
    right = table.right.to_numpy(bool)
    assert right.all() or not right.any()
    assert table.lifted.to_numpy() == pytest.approx((N - 1) * (1 if right.all() else -1))
    means = mean_correlations(correlations(classes(measured))).set_index("kind")
    assert means["mean"].tolist() == pytest.approx([1, 1, -1])
    assert means["low"].tolist() == pytest.approx([1, 1, -1])


def test_a_part_of_the_classes_and_files_without_any():
    measured = response(np.random.default_rng(5).normal(size=(4 * N, D)))
    found = classes(measured)
    part: Classes = found.take(found.right_C)
    assert part.problem_C.tolist() == [0, 1, 2] and part.gradient_CD.shape == (3, D)
    with pytest.raises(UserError, match=r"least = 0.999: no answer is that likely"):
        classes(measured, least=0.999)
