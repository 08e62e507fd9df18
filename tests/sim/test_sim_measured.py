"""The measured policy: its compiled code against NumPy, whole runs, and refused settings."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from guard_core import GuardConfig
from lab.errors import UserError
from lab.trace.response import Facts, Response, read_response, write_response
from lab.trace.trace import load
from sim import SimConfig, simulate
from sim.cli import main
from sim.world.measured.policy import Trust
from sim.world.measured.training import Adam, Batch, draw_leaves, train_batch
from sim.world.measured.tree import batch_probs, draw_curvature, draw_weights, leaf_probs, tree_of
from sim.world.measured.tree import edge_log_probs as edges_of
from sim.world.random import fold

N, A, D = 6, 3, 24
KEY = np.uint64(11)
CURVED = 0.6


def small_response(growth=CURVED, truths=(0, 1, 2, 0, 1, 0)):
    """Per problem a root with 3 tokens; two of them lead to nodes with 3 and 2 tokens."""
    rng = np.random.default_rng(3)
    nodes, paths = [0, 0, 0, 1, 1, 1, 2, 2], [[0, 3], [0, 4], [0, 5], [1, 6], [1, 7], [2]]
    p = [rng.dirichlet(np.full(n, 2.0)) for _ in range(N) for n in (3, 3, 2)]
    edges, leaves = N * len(nodes), N * len(paths)
    features = rng.normal(size=(edges, D)).astype(np.float32)
    scale = rng.uniform(1, 3, D).astype(np.float32)
    orthogonal = np.linalg.qr(rng.normal(size=(D, 5)))[0].T.astype(np.float32)
    return Response(
        facts=Facts(
            task="test",
            model={},
            problems="",
            problem_ids=[str(n) for n in range(N)],
            answers=[["a", "b", "c"]] * N,
            temperature=1.0,
            n_weights=2 * D,
            settings={},
            left_out=0.0,
            growth=growth,
        ),
        truth_N=np.array(truths),
        edge_start=np.arange(N + 1) * len(nodes),
        edge_node=np.tile(nodes, N),
        log_p0=np.log(np.concatenate(p)),
        features=features,
        scale=scale,
        start=rng.normal(size=D).astype(np.float32),
        basis=orthogonal / np.sqrt(scale),
        norm2=features.astype(float) ** 2 @ scale,
        leaf_start=np.arange(N + 1) * len(paths),
        leaf_answer=np.concatenate([rng.permutation([0, 0, 1, 2, 1, -1]) for _ in range(N)]),
        leaf_length=rng.integers(1, 9, leaves),
        leaf_unseen=np.arange(leaves) % 5 == 0,
        path_start=np.concatenate([[0], np.cumsum(np.tile([2, 2, 2, 2, 2, 1], N))]),
        path_edge=np.tile([e for path in paths for e in path], N),
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("response") / "r.npz"
    write_response(path, small_response())
    return str(path)


class Plain:
    """The law of `sim.world.measured` with dense matrices, in double precision."""

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
    def distance(self):
        return np.sqrt(self.scale @ self.w**2)

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
        moved = self.features[edges] @ (self.scale * self.w)
        z = self.r.log_p0[edges] + moved + self.curvature[edges] @ (self.scale * self.moved)
        return z - nodes.T @ np.log(nodes @ np.exp(z))

    def answers(self, n):
        _, leaves, _, paths = self.of(n)
        p_L = np.exp(paths @ self.log_p(n))
        return np.bincount(self.r.leaf_answer[leaves] % (A + 1), p_L / p_L.sum(), A + 1)

    def train(self, problems, rates, leaves_of, streams, drop, mini_batch):
        before, norms = [self.log_p(n) for n in problems], np.zeros(len(problems))
        for start in range(0, len(problems), mini_batch):
            places = range(start, min(start + mini_batch, len(problems)))
            trained = [p for p in places if not drop[p]]
            if trained:
                total = sum(
                    leaves_of[p] @ self.r.leaf_length[self.of(problems[p])[1]] for p in trained
                )
                gradient = sum(
                    self.gradient(problems[p], before[p], leaves_of[p], streams[:, p])
                    for p in trained
                )
                norms[list(places)] = self.step(gradient / total, rates[start])
        return norms

    def gradient(self, n, before_E, leaves_L, streams_SB):
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
        pull_E = push_E - (nodes.T @ (nodes @ push_E)) * np.exp(now_E)
        return pull_E @ (self.features[edges] + self.distance * self.curvature[edges])

    def step(self, gradient, rate):
        gradient = gradient * min(1, 1 / (np.sqrt(self.scale @ gradient**2) + 1e-6))
        self.taken += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        root = np.sqrt(self.second / (1 - 0.999**self.taken)) + 1e-8
        pull = self.first / (1 - 0.9**self.taken) / root
        change = rate * (pull - 0.01 * (self.start + self.w))
        self.moved = self.moved + self.distance * change
        self.w = self.w + change
        return np.sqrt(self.scale @ change**2)


def test_compiled_training_equals_numpy():
    response, rng = small_response(), np.random.default_rng(5)
    tree, features = tree_of(response), response.features
    weights = draw_weights(response, features, CURVED, np.random.default_rng(1))
    assert len(weights.w) == D // 2 and weights.curvature.any()
    plain, taken = Plain(response, weights), 0
    adam, drop = Adam(0.9, 0.999, 1e-8, 1.0, 0.01, 2), np.array([0, 1, 0, 0, 1, 1], bool)
    for batch in range(4):
        problems, rates = rng.permutation(N), np.repeat(rng.uniform(0.02, 0.08, 3), 2)
        samples, streams = rng.integers(1, 6, (N, A + 1)), rng.normal(size=(2, N, A + 1))
        key, norm = np.uint64(fold(KEY, batch)), np.empty(N)
        leaves = [drawn(tree, weights, n, samples[p], key) for p, n in enumerate(problems)]
        given = Batch(problems, rates, samples, streams, drop)
        taken = train_batch(tree, weights, adam, taken, given, key, norm)
        expected = plain.train(problems, rates, leaves, streams, drop, 2)
        assert norm == pytest.approx(expected, rel=1e-9) and norm[4] == 0 < norm[1]
        assert weights.w == pytest.approx(plain.w, rel=1e-9, abs=1e-14)
        out, unseen = np.empty((N, A + 1)), np.empty(N)
        batch_probs(tree, weights, np.arange(N), out, unseen)
        assert out == pytest.approx(np.array([plain.answers(n) for n in range(N)]), rel=1e-9)
        assert ((unseen > 0) & (unseen < 1)).all()
    assert taken == plain.taken == 8 and plain.clipped > 10


def test_curvature_keeps_the_laws_of_gradients():
    response = small_response()
    x_ED = draw_curvature(response, np.random.default_rng(0)).astype(float) @ response.basis
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


def settings(file, **others):
    sizes = {"n_problems": N, "n_answers": A, "epochs": 3, "batch_size": 4, "mini_batch": 2}
    votes = {"n_votes": 16, "n_samples": 8, "replicates": 2}
    measured = {"policy": "measured", "response": file, "lr": 0.02}
    return SimConfig(**{**sizes, **votes, **measured, **others})


def rows(trace, replicate=None):
    table = trace.visits
    return table if replicate is None else table[table.replicate == replicate].reset_index()


ARMS = {
    "ttrl": {"guard": GuardConfig.off()},
    "guard": {},
    "frozen": {"guard": replace(GuardConfig.off(), label_from="frozen")},
    "memory": {"guard": replace(GuardConfig.off(), label_from="memory")},
    "truth": {"guard": GuardConfig.off(), "labels": "truth"},
    "rule": {"rule": "empo"},
    "skips": {"skip_rate": 0.5},
}


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_runs_and_a_seed_fixes_its_bits(file, arm):
    config = settings(file, **ARMS[arm])
    first, second = simulate(config), simulate(config)
    assert rows(first).equals(rows(second)) and first.evals.equals(second.evals)
    assert len(rows(first)) == 2 * N * 4 and first.evals.pass_at_1.between(0, 1).all()
    assert first.visits.n_unparseable.sum() > 0
    assert first.steps.update_norm.max() > 0
    assert first.run.extra["trust"]["growth"] > 0 and first.run.extra["trust"]["unseen"] > 0


def test_a_replicate_does_not_depend_on_the_others(file):
    both, alone = (
        simulate(settings(file)),
        simulate(settings(file, first_replicate=1, replicates=1)),
    )
    assert rows(both, 1).equals(rows(alone, 1).assign(index=rows(both, 1)["index"]))
    assert not rows(both, 0).label_accuracy.equals(rows(both, 1).label_accuracy)


def test_the_engine_setting_and_growth(file):
    fast, slow = (simulate(settings(file, engine=e)) for e in ("compiled", "reference"))
    assert rows(fast).equals(rows(slow))
    linear = simulate(settings(file, growth=0.0))
    assert not linear.evals.pass_at_1.equals(fast.evals.pass_at_1)
    # The trust of a linear run is that of the measured growth too.
    assert linear.run.extra["trust"]["growth"] > 0


def test_a_truth_that_no_response_gives_is_one_more_answer(tmp_path):
    path = tmp_path / "r.npz"
    write_response(path, small_response(truths=(-1, 1, 2, 0, 1, 0)))
    assert read_response(path).n_answers == A + 1
    trace = simulate(settings(str(path), n_answers=A + 1))
    assert (trace.visits[trace.visits.problem == 0].label_accuracy == 0).all()


def test_the_command_takes_sizes_from_the_file_and_prints_trust(file, tmp_path, capsys):
    words = ["--policy", "measured", "--response", file, "--lr", "0.05", "--arm", "ttrl"]
    out = tmp_path / "run"
    assert main(["run", "--out", str(out), *words, "--n-votes", "32", "--quiet"]) == 0
    shown = capsys.readouterr().out
    config = load(out).run.config
    assert (config["n_problems"], config["n_answers"], config["epochs"]) == (N, A, 12)
    assert shown.count("measured policy: mass on unseen responses 0.") == 1
    assert load(out).run.extra["trust"].keys() == {"unseen", "growth"}


def test_a_settings_file_may_leave_response_and_rate_to_the_command_line(file, tmp_path, capsys):
    toml, out = tmp_path / "s.toml", tmp_path / "run"
    toml.write_text('policy = "measured"\nepochs = 2\n')
    words = ["run", "--out", str(out), "--config", str(toml), "--quiet"]
    for given, message in (
        ([], "response: must be given with policy = measured"),
        (["--response", file], "lr: must be given with policy = measured"),
    ):
        assert main([*words, *given]) == 2
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1 and not out.exists()
    assert main([*words, "--response", file, "--lr", "0.05"]) == 0
    config = load(out).run.config
    assert (config["lr"], config["epochs"], config["n_problems"]) == (0.05, 2, N)


def test_trust_says_where_it_ends():
    assert "outside" not in Trust(0.15, 2.0).line() and "outside" not in Trust(0.0, None).line()
    for far in (Trust(0.16, 0.0), Trust(0.0, 2.1)):
        assert "outside of the linear range" in far.line() and "--growth 0" in far.line()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"response": None}, "response: must be given"),
        ({"lr": None}, "lr: must be given"),
        ({"policy": "attractor"}, "response: only policy = measured reads it"),
        ({"update": "expected"}, "update = expected: policy = measured"),
        ({"unparseable": 0.1}, "unparseable = 0.1: "),
        ({"step": 0.1}, "step = 0.1: policy = measured reads lr"),
        ({"rule": "scope"}, "rule = scope: rewards single responses"),
        (
            {"rule": "one_shot_em"},
            "rule = one_shot_em: policy = measured needs a rule with rewards",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(file, changes, message):
    with pytest.raises(UserError, match=f"^{message}") as refused:
        settings(file, **changes)
    assert "\n" not in str(refused.value)


def test_files_that_do_not_fit_are_refused(file, tmp_path):
    with pytest.raises(UserError, match=f"n_problems = 5: .* has {N}"):
        simulate(settings(file, n_problems=5))
    with pytest.raises(UserError, match=f"n_answers = 4: .* has {A}"):
        simulate(settings(file, n_answers=4))
    with pytest.raises(UserError, match="no such file"):
        simulate(settings(str(tmp_path / "none.npz")))
    other = replace(small_response(), facts=replace_version(small_response().facts))
    write_response(tmp_path / "old.npz", other)
    with pytest.raises(UserError, match="format version 99, this program reads 2"):
        simulate(settings(str(tmp_path / "old.npz")))


def replace_version(facts):
    facts.version = 99
    return facts


def test_logits_that_are_not_finite_stop_the_run(file):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UserError, match=r"lr = 1e\+308: the logits of problem"):
            simulate(settings(file, lr=1e308))
