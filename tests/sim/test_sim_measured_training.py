"""The compiled training of the measured policy against NumPy."""

import numpy as np
import pytest
from measured_response import CURVED, KEY, SAMPLING, A, D, N, small_response

from sim.world.sampling import fold
from sim.world.training import Adam, TrainedBatch, draw_leaves, train_batch
from sim.world.tree import batch_probs, draw_curvature, draw_weights, leaf_probs, tree_of
from sim.world.tree import edge_log_probs as edges_of


class Plain:
    """The law of `sim.world.measured` with dense matrices."""

    def __init__(self, response, weights):
        self.r, self.scale = response, weights.scale.astype(float)
        own = slice(weights.first, weights.first + len(weights.w))
        self.features = weights.features[:, own].astype(float)
        self.curvature = weights.curvature.astype(float) @ weights.basis.astype(float)
        self.start = weights.start.astype(float)
        self.w, self.moved = np.zeros_like(self.start), np.zeros_like(self.start)
        self.first, self.second = np.zeros_like(self.start), np.zeros_like(self.start)
        self.taken = self.clipped = 0

    @property
    def turning(self):
        return np.sqrt(max(CURVED * np.sqrt(self.scaled @ self.w) - SAMPLING, 0))

    @property
    def scaled(self):
        return (self.scale * self.w).astype(np.float32)

    def of(self, n):
        """Slices of edges and leaves; nodes (V, E) and paths (L, E) as 0 and 1."""
        r = self.r
        edges, leaves = slice(*r.edge_start[n : n + 2]), slice(*r.leaf_start[n : n + 2])
        nodes = r.edge_node[edges] == np.unique(r.edge_node[edges])[:, None]
        paths = np.zeros((leaves.stop - leaves.start, nodes.shape[1]))
        for row, leaf in zip(paths, range(leaves.start, leaves.stop), strict=True):
            row[r.path_edge[r.path_start[leaf] : r.path_start[leaf + 1]]] = 1
        return edges, leaves, nodes.astype(float), paths

    def log_p(self, n):
        edges, _, nodes, _ = self.of(n)
        # Products of features and weights are of single precision, their sums of double.
        moved = (self.features[edges].astype(np.float32) * self.scaled).sum(axis=1, dtype=float)
        z = self.r.log_p0[edges] + moved + self.curvature[edges] @ (self.scale * self.moved)
        return z - nodes.T @ np.log(nodes @ np.exp(z))

    def answers(self, n):
        _, leaves, _, paths = self.of(n)
        p_L = np.exp(paths @ self.log_p(n))
        return np.bincount(self.r.leaf_answer[leaves] % (A + 1), p_L / p_L.sum(), A + 1)

    def train(self, problems, rates, leaves_of, streams, drop, mini_batch, kl_coef):
        before, norms = [self.log_p(n) for n in problems], np.zeros(len(problems))
        for start in range(0, len(problems), mini_batch):
            places = range(start, min(start + mini_batch, len(problems)))
            trained = [p for p in places if not drop[p]]
            if trained:
                total = sum(
                    leaves_of[p] @ self.r.leaf_length[self.of(problems[p])[1]] for p in trained
                )
                gradient = sum(
                    self.gradient(problems[p], before[p], leaves_of[p], streams[:, p], kl_coef)
                    for p in trained
                )
                norms[list(places)] = self.step(gradient / total, rates[start])
        return norms

    def gradient(self, n, before_E, leaves_L, streams_SB, kl_coef):
        edges, leaves, nodes, paths = self.of(n)
        now_E = self.log_p(n)
        ratio_E, push_E = np.exp(now_E - before_E), np.zeros_like(now_E)
        for stream_B in streams_SB:
            advantage_L = leaves_L * stream_B[self.r.leaf_answer[leaves] % (A + 1)]
            up = np.maximum(advantage_L, 0) @ paths
            down = np.minimum(advantage_L, 0) @ paths
            self.clipped += ((up > 0) & (ratio_E > 1.2)).sum() + (
                (down < 0) & (ratio_E < 0.8)
            ).sum()
            push_E += ratio_E * (up * (ratio_E <= 1.2) + down * (ratio_E >= 0.8))
        start_E = self.r.log_p0[edges] - nodes.T @ np.log(nodes @ np.exp(self.r.log_p0[edges]))
        push_E += kl_coef * (leaves_L @ paths) * (np.exp(start_E - now_E) - 1)
        pull_E = push_E - (nodes.T @ (nodes @ push_E)) * np.exp(now_E)
        return pull_E @ (self.features[edges] + self.turning * self.curvature[edges])

    def step(self, gradient, rate):
        gradient = gradient * min(1, 1 / (np.sqrt(self.scale @ gradient**2) + 1e-6))
        self.taken += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        root = np.sqrt(self.second / (1 - 0.999**self.taken)) + 1e-8
        pull = self.first / (1 - 0.9**self.taken) / root
        change = rate * (pull - 0.01 * (self.start + self.w))
        self.moved = self.moved + self.turning * change
        self.w = self.w + change
        return np.sqrt(self.scale @ change**2)


@pytest.mark.parametrize("kl_coef", [0.0, 0.7])
def test_compiled_training_equals_numpy(kl_coef):
    response, rng = small_response(), np.random.default_rng(5)
    tree, features = tree_of(response), response.features
    weights = draw_weights(response, features, CURVED, SAMPLING, np.random.default_rng(1))
    assert len(weights.w) == 7 * D // 8 and weights.curvature.any()
    plain, taken = Plain(response, weights), 0
    adam, drop = Adam(0.9, 0.999, 1e-8, 1.0, 0.01, 2, kl_coef), np.array([0, 1, 0, 0, 1, 1], bool)
    for batch in range(4):
        problems, rates = rng.permutation(N), np.repeat(rng.uniform(0.02, 0.08, 3), 2)
        samples, streams = rng.integers(1, 6, (N, A + 1)), rng.normal(size=(2, N, A + 1))
        key, norm = np.uint64(fold(KEY, batch)), np.empty(N)
        leaves = [drawn(tree, weights, n, samples[p], key) for p, n in enumerate(problems)]
        given = TrainedBatch(problems, rates, samples, streams, drop)
        taken = train_batch(tree, weights, adam, taken, given, key, norm)
        expected = plain.train(problems, rates, leaves, streams, drop, 2, kl_coef)
        assert norm == pytest.approx(expected, rel=1e-9) and norm[4] == 0 < norm[1]
        assert weights.w == pytest.approx(plain.w, rel=1e-9, abs=1e-14)
        out, unseen = np.empty((N, A + 1)), np.empty(N)
        batch_probs(tree, weights, np.arange(N), out, unseen)
        assert out == pytest.approx(np.array([plain.answers(n) for n in range(N)]), rel=1e-9)
        assert ((unseen > 0) & (unseen < 1)).all()
    assert taken == plain.taken == 8 and plain.clipped > 10 and plain.turning > 0.3


def test_curvature_keeps_the_laws_of_gradients():
    response = small_response()
    basis, factors = draw_curvature(response, response.features, np.random.default_rng(0))
    x_ED = factors.astype(float) @ basis
    nodes = response.edge_node + 3 * np.repeat(np.arange(N), np.diff(response.edge_start))
    p_E = np.exp(response.log_p0)
    sums = [np.bincount(nodes, p_E * column) for column in x_ED.T]
    assert np.abs(sums).max() < 1e-5
    drawn_V = np.bincount(nodes, p_E * (x_ED**2 @ response.scale))
    assert drawn_V == pytest.approx(np.bincount(nodes, p_E * response.norm2), rel=1e-5)


def drawn(tree, weights, n, samples_B, key):
    log_p, p, counts = np.empty(99), np.empty(99), np.empty(99, np.int64)
    edges_of(tree, weights, n, log_p)
    leaves = leaf_probs(tree, log_p, n, p)
    draw_leaves(tree, p, n, samples_B, np.uint64(fold(key, n)), counts)
    answers = tree.leaf_answer[tree.leaf_start[n] : tree.leaf_start[n + 1]] % (A + 1)
    assert (np.bincount(answers, counts[:leaves], A + 1) == samples_B).all()
    return counts[:leaves]
