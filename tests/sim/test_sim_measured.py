import warnings
from dataclasses import replace

import numpy as np
import pytest
from measured_response import CURVED, KEY, SAMPLING, A, D, N, rows, settings, small_response

from guard_core import GuardConfig
from lab.base.arms import arm
from lab.base.errors import UserError
from lab.trace.response import read_response, write_response
from lab.trace.trace import load
from sim import SimConfig, simulate
from sim.cli import main
from sim.settings.resolve import settings_of
from sim.world.measured import Apart, Trust
from sim.world.populations import read_first_accuracies
from sim.world.sampling import fold
from sim.world.training import WEIGHT_DECAY, Adam, TrainedBatch, draw_leaves, train_batch
from sim.world.tree import (
    batch_probs,
    bfloat16,
    distance,
    draw_curvature,
    draw_weights,
    edge_log_probs,
    leaf_probs,
    on_all_weights,
    tree_of,
    without_unseen,
)

ARMS = {
    "ttrl": {"guard": GuardConfig.off()},
    "guard": {},
    "frozen": {"guard": GuardConfig.off().set(label_from="frozen")},
    "memory": {"guard": GuardConfig.off().set(label_from="memory")},
    "truth": {"guard": GuardConfig.off(), "labels": "truth"},
    "rule": {"rule": "empo"},
    "skips": {"skip_rate": 0.5},
}


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_runs_and_a_seed_fixes_its_bits(response_file, arm):
    config = settings(response_file, **ARMS[arm])
    first, second = simulate(config), simulate(config)
    assert rows(first).equals(rows(second)) and first.evals.equals(second.evals)
    assert len(rows(first)) == 2 * N * 4 and first.evals.pass_at_1.between(0, 1).all()
    assert first.visits.n_unparseable.sum() > 0
    assert first.steps.update_norm.max() > 0
    assert first.run.extra["trust"]["growth"] > 0 and first.run.extra["trust"]["unseen"] > 0


def test_an_arm_of_the_paper_s_cells_is_no_cell_s_for_a_measured_model(response_file):
    given = {"policy": "measured", "response": response_file, "lr": 1.0, "arm": "guard_release"}
    assert settings_of(given).guard == arm("guard_release").guard
    assert settings_of({"arm": "guard_release"}).guard == arm("guard_release,frs=False").guard
    assert (settings(response_file).cell, SimConfig().cell) == (None, "llama-math500")


def test_a_replicate_does_not_depend_on_the_others(response_file):
    both = simulate(settings(response_file))
    alone = simulate(settings(response_file, first_replicate=1, replicates=1))
    assert rows(both, 1).equals(rows(alone, 1).assign(index=rows(both, 1)["index"]))
    assert not rows(both, 0).label_accuracy.equals(rows(both, 1).label_accuracy)


def test_weights_in_bfloat16_stay_until_a_change_is_half_of_the_gap(response_file):
    small = {"lr": 1e-6, "guard": GuardConfig.off()}
    for dtype, n_values in (("float32", 4), ("bfloat16", 1)):
        evals = simulate(settings(response_file, dtype=dtype, **small)).evals
        assert (evals.groupby("replicate").pass_at_1.nunique() == n_values).all()


def test_the_distance_of_weights_in_bfloat16_is_that_of_what_is_read():
    weights = weights_of()._replace(bfloat16=True)
    for change in (0.3, 0.6, 0.9):  # of a half, one and one units in the last place
        unit = 2.0 ** (np.floor(np.log2(np.abs(weights.start))) - 7)
        at = weights._replace(
            start=bfloat16(weights.start).astype(np.float32), w=(change * unit).astype(float)
        )
        read_D = np.round(change) * unit
        assert on_all_weights(at, at.w) == pytest.approx(at.scale * read_D)
        at = at._replace(moved=on_all_weights(at, at.w))
        assert distance(at) == pytest.approx(np.sqrt(at.scale @ read_D**2))


def test_accuracies_before_training_are_means_over_the_replicates(response_file, tmp_path):
    visits = simulate(settings(response_file), tmp_path / "run").visits.query("visit == 0")
    known = visits.groupby("problem")["label_accuracy"].mean()
    assert read_first_accuracies(str(tmp_path / "run")) == pytest.approx(known.to_numpy())
    with pytest.raises(UserError, match="ability_mean: policy = measured"):
        settings(response_file, ability_mean=0.5)


def test_evaluations_are_those_of_averaged_weights_and_training_goes_on(response_file):
    plain, start, last, between = (
        simulate(settings(response_file, ema_decay=decay)) for decay in (0.0, 1 - 1e-12, 1e-12, 0.7)
    )
    for run in (start, last, between):
        assert run.visits.equals(plain.visits) and run.steps.equals(plain.steps)
    first = plain.evals.pass_at_1[plain.evals.epoch == 0].to_numpy()
    assert start.evals.pass_at_1.to_numpy() == pytest.approx(np.tile(first, 4))
    assert last.evals.pass_at_1.to_numpy() == pytest.approx(plain.evals.pass_at_1.to_numpy())
    moved = between.evals.epoch > 0
    assert (between.evals.pass_at_1[moved] != plain.evals.pass_at_1[moved]).all()


def test_the_brake_ends_training_or_slows_it(response_file):
    stop, half, plain = (
        simulate(settings(response_file, guard=GuardConfig.off().set(**brake))).steps
        for brake in (
            {"brake": 0.0, "brake_on": "match_rate", "brake_above": 0.0},
            {"brake": 0.5, "brake_on": "match_rate", "brake_above": 0.0},
            {"brake": 0.5, "brake_above": 1.0},
        )
    )
    assert (stop.lr == 0).all() and (stop.update_norm == 0).all()
    batch = stop.groupby("replicate").cumcount()
    assert half.lr.to_numpy() == pytest.approx(plain.lr * 0.5 ** (batch + 1))
    untouched = simulate(settings(response_file, guard=GuardConfig.off())).steps
    assert plain.equals(untouched)
    with pytest.raises(UserError, match=r"^guard.brake: only policy = measured has it"):
        SimConfig(guard=GuardConfig.off().set(brake=0.0))


def test_a_truth_that_no_response_gives_is_one_more_answer(tmp_path):
    path = tmp_path / "r.npz"
    write_response(path, small_response(truths=(-1, 1, 2, 0, 1, 0)))
    assert read_response(path).n_answers == A + 1
    trace = simulate(settings(str(path), n_answers=A + 1))
    assert (trace.visits[trace.visits.problem == 0].label_accuracy == 0).all()


def test_the_command_takes_sizes_from_the_file_and_prints_trust(response_file, tmp_path, capsys):
    words = ["--policy", "measured", "--response", response_file, "--lr", "0.05", "--arm", "ttrl"]
    out = tmp_path / "run"
    assert main(["run", "--out", str(out), *words, "--n-votes", "32", "--quiet"]) == 0
    shown = capsys.readouterr().out
    config = load(out).run.config
    assert (config["n_problems"], config["n_answers"], config["epochs"]) == (N, A, 12)
    assert shown.count("measured policy: mass on unseen responses 0.") == 1
    assert load(out).run.extra["trust"].keys() == {"unseen", "growth"}


def test_trust_says_where_it_ends():
    assert "outside" not in Trust(0.15, 1.0).line() and "outside" not in Trust(0.0, None).line()
    for far in (Trust(0.16, 0.0), Trust(0.0, 1.1)):
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
        ({"rule": "one_shot_em"}, "rule = one_shot_em: policy = measured needs a rule with"),
        ({"parts_off": ("leak", "leak")}, "parts_off = leak, leak: name each part at most once"),
        ({"parts_off": ("own", "others")}, "parts_off = own, others: without own and others no"),
        ({"parts_off": ("own",)}, "parts_off = own: own and others need mini_b"),
        ({"parts_off": ("own",), "ema_decay": 0.5}, "parts_off = own: own and others have no av"),
        ({"parts_off": ("own",), "dtype": "bfloat16"}, "parts_off = own: own and others have no"),
        ({"parts_off": ("all",)}, "parts_off"),
    ],
)
def test_settings_that_do_not_fit_are_refused(response_file, changes, message):
    with pytest.raises(UserError, match=f"^{message}") as refused:
        settings(response_file, **changes)
    assert "\n" not in str(refused.value)


def test_files_that_do_not_fit_are_refused(response_file, tmp_path):
    with pytest.raises(UserError, match=f"n_problems = 5: .* has {N}"):
        simulate(settings(response_file, n_problems=5))
    with pytest.raises(UserError, match=f"n_answers = 4: .* has {A}"):
        simulate(settings(response_file, n_answers=4))
    with pytest.raises(UserError, match=r"No such file.*; check it, or use guard-train"):
        SimConfig(policy="measured", response=str(tmp_path / "none.npz"), lr=1e-4)
    old = small_response()
    old.facts.version = 99
    write_response(tmp_path / "old.npz", old)
    with pytest.raises(UserError, match="format version 99, not 3"):
        simulate(settings(str(tmp_path / "old.npz")))
    np.save(tmp_path / "array.npy", np.zeros(3))  # NumPy's own, and no archive
    write_response(tmp_path / "flat.npz", replace(small_response(), log_p0=np.float64(0)))
    wrong = {"array.npy": "not a response file, or", "flat.npz": "damaged \\("}
    wrong["."] = r"cannot be read \(Is a directory\)"  # as a file without permission
    for name, said in wrong.items():
        with pytest.raises(UserError, match=said):
            read_response(tmp_path / name)


def test_logits_that_are_not_finite_stop_the_run(response_file):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UserError, match=r"lr = 1e\+308: the logits of problem"):
            simulate(settings(response_file, lr=1e308))


ADAM, RATE = Adam(max_norm=1.0, mini_batch=1), 0.05
WHOLE = tree_of(small_response())


def weights_of():
    response = small_response()
    return draw_weights(response, response.features, CURVED, np.random.default_rng(1))


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
    whole, apart, taken = weights_of(), Apart.of(weights_of(), N, own), (0, 0)
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
        w = w - RATE * WEIGHT_DECAY * (start + w)
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


@pytest.mark.parametrize(("own", "visits"), [(True, 3), (False, 1)])
def test_a_problem_that_alone_is_visited_has_its_own_effect_or_that_on_others_alone(own, visits):
    whole, apart, norms = trained(own, visits)
    for n in range(N):
        if (n == 2) != own:
            assert apart.w_ND[n] == pytest.approx(decayed(visits))
            continue
        assert apart.w_ND[n] == pytest.approx(whole.w, rel=1e-12, abs=1e-15)
        expected = answers_of(whole, n)
        assert answers_of(apart.read_by(n), n) == pytest.approx(expected, rel=1e-9)
    assert not own or norms[0] == pytest.approx(norms[1], rel=1e-12)


@pytest.mark.parametrize("part", ["own", "others"])
def test_runs_with_a_part_off_differ_and_a_seed_fixes_their_bits(response_file, part):
    config = settings(response_file, mini_batch=1, parts_off=(part,))
    first, second, whole = (simulate(c) for c in (config, config, replace(config, parts_off=())))
    assert rows(first).equals(rows(second))
    assert first.evals.pass_at_1.iloc[0] == whole.evals.pass_at_1.iloc[0]
    assert not first.evals.equals(whole.evals)
    assert first.run.extra["trust"]["unseen"] > 0


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
    rng, weights = np.random.default_rng(5), weights_of()
    assert len(weights.w) == 7 * D // 8 and weights.curvature.any()
    plain, taken = Plain(small_response(), weights), 0
    adam, drop = Adam(ADAM.max_norm, 2, kl_coef), np.array([0, 1, 0, 0, 1, 1], bool)
    for batch in range(4):
        problems, rates = rng.permutation(N), np.repeat(rng.uniform(0.02, 0.08, 3), 2)
        samples, streams = rng.integers(1, 6, (N, A + 1)), rng.normal(size=(2, N, A + 1))
        key, norm = np.uint64(fold(KEY, batch)), np.empty(N)
        leaves = [drawn(weights, n, samples[p], key) for p, n in enumerate(problems)]
        given = TrainedBatch(problems, rates, samples, streams, drop)
        taken = train_batch(WHOLE, weights, adam, taken, given, key, norm)
        expected = plain.train(problems, rates, leaves, streams, drop, 2, kl_coef)
        assert norm == pytest.approx(expected, rel=1e-9) and norm[4] == 0 < norm[1]
        assert weights.w == pytest.approx(plain.w, rel=1e-9, abs=1e-14)
        out, unseen = np.empty((N, A + 1)), np.empty(N)
        batch_probs(WHOLE, weights, np.arange(N), out, unseen)
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


def drawn(weights, n, samples_B, key):
    p_L = leaves_of(WHOLE, weights, n)
    counts_L = np.empty(len(p_L), np.int64)
    draw_leaves(WHOLE, p_L, n, samples_B, np.uint64(fold(key, n)), counts_L)
    answers = WHOLE.leaf_answer[WHOLE.leaf_start[n] : WHOLE.leaf_start[n + 1]] % (A + 1)
    assert (np.bincount(answers, counts_L, A + 1) == samples_B).all()
    return counts_L
