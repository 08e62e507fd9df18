from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from scipy.special import entr, softmax

from guard_core import ConfigError, GuardConfig, Votes
from guard_core.rules import RULES, Need, Rule, make_rule
from guard_core.rules.confidence import Scope
from lab.arm_settings import with_arm
from lab.base.arms import arm, with_rule
from lab.base.stats import auroc_of_runs
from sim import SimConfig, simulate
from sim.cli import main
from sim.engine.kernel import sharpen
from sim.engine.run import Simulation
from sim.studies.jobs import job_of
from sim.studies.sweep import Sweep
from sim.world.observe import AnswerObserver, AnswerTeacher, ObservedVisit, similarities
from sim.world.sampling import TOOL

PEERS = tuple(name for name in RULES if name != "ttrl")
KNOWS_NOTHING = {"signal": 0.0}


@pytest.mark.parametrize("name", PEERS)
def test_permuting_the_truth_changes_nothing_that_is_trained(runs, name):
    # With observations that know something of the truth this cannot hold: that is what they are.
    config = runs.small(name, **KNOWS_NOTHING)
    honest, lied = Simulation(config), Simulation(config)
    truth_RN = (lied.truth_RN + 1 + lied.truth_RN % 2) % config.n_answers
    assert (truth_RN != lied.truth_RN).all()
    lied.truth_RN = truth_RN
    parts, p_RNA = runs.finish(honest)
    other_parts, other_RNA = runs.finish(lied)
    assert p_RNA.tobytes() == other_RNA.tobytes()
    assert runs.differences(parts[1:], other_parts[1:]) != []  # right and wrong did change


@pytest.mark.parametrize("name", PEERS)
def test_a_rule_trains_by_its_seed_alone_and_replicates_do_not_see_each_other(runs, name):
    config = runs.small(name)
    simulation = Simulation(config)
    parts, both_RNA = runs.finish(simulation)
    norms = np.concatenate([part.steps["update_norm"] for part in parts[1:]])
    moved = np.abs(both_RNA - simulation.population.p0_RNA).max()
    assert np.isfinite(both_RNA).all()
    if name == "maj_at_n":
        assert moved < 1e-12 and not norms.any()
    else:
        assert moved > 1e-4 and norms.any()
    _, again_RNA = runs.play(config)
    _, alone_RNA = runs.play(replace(config, first_replicate=1, replicates=1))
    _, other_RNA = runs.play(replace(config, seed=7))
    assert both_RNA.tobytes() == again_RNA.tobytes() != other_RNA.tobytes()
    # The size of the subgroups is chosen per replicate, everything else per problem.
    assert both_RNA[1:].tobytes() == alone_RNA.tobytes()


@pytest.mark.parametrize("name", (*PEERS, "srt+guard", "scope+memory"))
def test_runs_at_the_edges(runs, name):
    for edge in (
        {"unparseable": 1.0},
        {"n_votes": 1, "n_samples": 1},
        {"n_votes": 7, "n_samples": 7, "n_answers": 2},
    ):
        simulation = Simulation(runs.small(name, epochs=2, **edge))
        _, p_RNA = runs.finish(simulation)
        assert np.isfinite(p_RNA).all()
        if "unparseable" in edge and name != "one_shot_em":
            assert np.abs(p_RNA - simulation.population.p0_RNA).max() < 1e-12


def test_a_discounted_memory_weighs_the_same_in_a_rules_own_labels(runs, monkeypatch):
    # With subsets of all responses every subgroup's label is the guard's own.
    matched, pay = [], Scope.pay

    def watched(rule, seen, label):
        paid = pay(rule, seen, label)
        matched.append((paid == (seen.answers == label[..., None])[..., : paid.shape[-1]]).all())
        return paid

    monkeypatch.setattr(Scope, "pay", watched)
    config = runs.small("scope+memory")
    guard = config.guard.set(discount=0.2)
    runs.play(replace(config, guard=guard, rule_options={"subset": 1.0}))
    assert matched and all(matched)


@pytest.mark.parametrize("rule", ["scope", "t3rl", "self_harmony", "co_rewarding_2"])
def test_visit_0_records_the_votes_of_the_rules_own_label(rule):
    sizes = {"n_problems": 40, "epochs": 1, "replicates": 2, "vote_replicates": 2}
    trace = simulate(with_arm(SimConfig(n_votes=9, n_samples=5, **sizes), arm(rule)))
    first = trace.visits[trace.visits["epoch"] == 0]
    key = ["replicate", "problem"]
    votes = trace.votes[trace.votes["epoch"] == 0]
    got = votes.set_index([*key, "answer"])["count"]
    most = votes.groupby(key)["count"].max()
    n_other = 0
    for row in first.itertuples():
        n_label = got.get((row.replicate, row.problem, row.label), 0)
        assert row.match_rate == n_label / 9
        n_other += n_label < most[row.replicate, row.problem]
    if rule == "scope":
        assert not first["tie"].any()
    else:
        assert n_other > 0


class Echo(Rule):
    """Labels by votes, pays what the teacher gave."""

    name, title, needs = "echo", "Echo", frozenset({Need.TEACHER})

    def pay(self, obs, label):
        Echo.agreement.append((obs.second == label[..., None]).mean())
        return obs.hits(label)


class Lot(Rule):
    """Labels by the votes, those of before included, and a random number."""

    name, title, needs = "lot", "Lot", frozenset({Need.SIMILARITY})

    def n_draws(self, n_votes, n_samples):
        return 1

    def scores(self, obs):
        Lot.seen.append((obs.draws.shape, obs.similarity.shape, obs.prior.sum() > 0))
        return obs.votes.counts + obs.drawn(1)


def test_a_teacher_starts_before_training_also_where_labels_are_by_votes(monkeypatch):
    monkeypatch.setitem(RULES, "echo", Echo)
    monkeypatch.setattr(Echo, "agreement", [], raising=False)
    law = {"population": "point", "ability_mean": 0.9, "n_problems": 40, "epochs": 2, "step": 0.0}
    simulate(SimConfig(rule="echo", guard=GuardConfig.off(), **law))
    assert len(Echo.agreement) == 10 and np.mean(Echo.agreement) == pytest.approx(0.9, abs=0.02)


def test_a_rule_of_ones_own_labels_the_first_votes_as_it_does_the_others(monkeypatch):
    monkeypatch.setitem(RULES, "lot", Lot)
    monkeypatch.setattr(Lot, "seen", [], raising=False)
    guard, size = GuardConfig.off().set(label_from="memory"), {"n_problems": 70, "epochs": 1}
    simulate(SimConfig(rule="lot", guard=guard, n_votes=8, n_samples=4, batch_size=35, **size))
    first, second = ([((1, 35, 1), (1, 35, 4, 4), remembers)] * 2 for remembers in (False, True))
    assert Lot.seen == [*first, *second]


N, A, V = 400, 5, 64


def batch(p_A, truth=0, **settings):
    """An observer and one visit of N problems with the same answer probabilities."""
    rule = settings.pop("rule", "t3rl")
    sizes = {"n_problems": N, "n_answers": A, "batch_size": N, "n_samples": 32}
    config = SimConfig(**sizes, rule=rule, guard=GuardConfig.off(), **settings)
    rng = np.random.default_rng(3)
    p_RPA = np.tile(np.asarray(p_A, np.float64), (1, N, 1))
    samples, rest = (rng.multinomial(32, p_RPA) for _ in range(2))
    votes = Votes(samples + rest, samples, V, 32)
    problems_RP, truth_RP = np.arange(N)[None], np.full((1, N), truth, np.int32)
    visit = ObservedVisit(1, 1, problems_RP, truth_RP, votes, p_RPA)
    return AnswerObserver(config, make_rule(rule)), visit


def test_responses_are_the_counts_trained_ones_first():
    observer, visit = batch([0.4, 0.3, 0.2, 0.05, 0.05])
    answers_RPV = observer.answers(visit)
    found = Votes.from_answers(answers_RPV, n_samples=32, n_answers=A)
    assert np.array_equal(found.counts, visit.votes.counts)
    assert np.array_equal(found.samples, visit.votes.samples)


@pytest.mark.parametrize("signal", [0.0, 0.3, 0.7])
def test_confidence_follows_whether_a_response_is_right_as_much_as_stated(signal):
    observer, visit = batch([0.5, 0.2, 0.2, 0.05, 0.05], signal=signal)
    answers_RPV = observer.answers(visit)
    x_RPV = observer.confidence(visit, answers_RPV, (0.0, 1.0))
    right = (answers_RPV == 0).ravel()
    law = NormalDist().cdf(signal * np.sqrt(2 / (1 - signal**2)))
    one_run = np.zeros(right.size, int), np.ones((1, 1), int)
    assert auroc_of_runs(x_RPV.ravel(), right, *one_run) == pytest.approx(law, abs=0.015)
    assert np.corrcoef(x_RPV.ravel(), right)[0, 1] == pytest.approx(signal, abs=0.02)
    assert x_RPV.std() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("signal", [0.0, 0.6])
def test_a_tool_and_a_verifier_have_their_rates(signal):
    observer, visit = batch([0.5, 0.5, 0, 0, 0], signal=signal)
    answers_RPV = observer.answers(visit)
    yes_RPV = observer.confirmed(TOOL, visit, answers_RPV)
    verdicts_RPV = observer.verdicts(visit, answers_RPV.astype(np.int64))
    for said in (yes_RPV, verdicts_RPV == 1):
        assert said[answers_RPV == 0].mean() == pytest.approx((1 + signal) / 2, abs=0.02)
        assert said[answers_RPV == 1].mean() == pytest.approx((1 - signal) / 2, abs=0.02)
    asked_RPQ = np.full((1, N, 2), -2)
    assert (observer.verdicts(visit, asked_RPQ) == -1).all()


def test_a_rewording_makes_other_errors():
    p_A = np.array([0.3, 0.5, 0.1, 0.06, 0.04])
    same, visit = batch(p_A, rule="self_harmony", signal=0.0)
    assert same.second(visit)[0].mean(axis=0) / V == pytest.approx(p_A, abs=0.01)
    other, visit = batch(p_A, rule="self_harmony", signal=1 - 1e-9)
    counts_RPA = other.second(visit)
    share_A = counts_RPA[0].mean(axis=0) / V
    assert share_A[0] == pytest.approx(0.3, abs=0.01)
    assert share_A[1:] == pytest.approx(np.full(4, 0.7 / 4), abs=0.03)
    again = other.second(
        ObservedVisit(2, 2, *(getattr(visit, n) for n in ObservedVisit.__slots__[2:]))
    )
    worst = [c[0, :, 1:].argmax(axis=-1) for c in (counts_RPA, again)]
    assert (worst[0] == worst[1]).mean() > 0.99


def test_a_teacher_follows_slowly_and_counts_the_batches_between():
    config = SimConfig(n_problems=2, batch_size=1, epochs=3, n_answers=2)
    teacher = AnswerTeacher(config)
    start, later = np.array([[[0.9, 0.1]]]), np.array([[[0.1, 0.9]]])
    problems_RP = np.zeros((1, 1), np.int64)
    assert teacher.follow(0, problems_RP, start) == pytest.approx(start)
    along = np.arange(6) / 5
    rates = 1e-5 + (0.01 - 1e-5) * (1 + np.cos(np.pi * along)) / 2
    kept = np.prod(1 - rates[:4])
    assert teacher.follow(4, problems_RP, later) == pytest.approx(kept * start + (1 - kept) * later)


def test_similar_answers_resemble_each_other_by_the_strength():
    observer, visit = batch([0.4, 0.3, 0.2, 0.05, 0.05], rule="evol_rl")
    answers_RPK, u_RPK = observer.answers(visit)[..., :32], observer.ordinary(visit)
    same = answers_RPK[..., :, None] == answers_RPK[..., None, :]
    off_diagonal = ~np.eye(32, dtype=bool)
    for strength in (0.0, 0.5):
        s_RPKK = similarities(answers_RPK, u_RPK, strength)
        lead = s_RPKK[same & off_diagonal].mean() - s_RPKK[~same].mean()
        assert lead == pytest.approx(0.3 * strength, abs=0.01)
        assert s_RPKK.min() >= 0.3 and s_RPKK.max() <= 1
        assert np.array_equal(s_RPKK, np.swapaxes(s_RPKK, -1, -2))


def test_sharpening_is_the_gradient_of_minus_the_entropy():
    z_A, out_RPA, h = np.array([0.3, -1.0, 2.0, 0.0]), np.empty((1, 1, 4)), 1e-6
    sharpen(softmax(z_A)[None, None], out_RPA)
    more_A, less_A = (entr(softmax(z_A + s * h * np.eye(4), axis=1)).sum(axis=1) for s in (1, -1))
    assert out_RPA[0, 0] == pytest.approx((less_A - more_A) / (2 * h), abs=1e-8)


def test_under_a_rule_guards_and_their_controls_are_its_own():
    names = ("guard", "memory", "matched", "random_skip_release", "ttrl", "truth", "rent")
    shown = [with_rule(name, "srt") for name in names]
    assert shown[:3] == ["srt+guard", "srt+memory", "matched_srt+guard"]
    assert shown[3:] == ["random_skip_srt+release", "ttrl", "truth", "rent"]
    assert [with_rule(name, "ttrl") for name in names] == list(names)


def test_settings_of_a_rule_belong_to_its_arms_alone():
    base = SimConfig(rule="srt", rule_options={"keep": 0.5})
    assert with_arm(base, arm("srt+memory")).rule_options == {"keep": 0.5}
    assert with_arm(base, arm("scope")).rule_options == {}
    assert with_arm(base, arm("ttrl")).rule == "ttrl"


def test_a_sweep_shares_runs_that_the_signal_cannot_reach():
    groups = ({"signal": (0.0, 0.3), "step": (0.1,)},)
    sweep = Sweep(base=SimConfig(n_problems=9, epochs=2), arms=("ttrl",), groups=groups)
    keys = {
        name: {job_of(sweep.base, values, name).key for _, values in sweep.cells()}
        for name in ("ttrl", "srt", "co_rewarding_2", "t3rl", "scope", "coverrl+guard")
    }
    assert {name: len(found) for name, found in keys.items()} == {
        "ttrl": 1, "srt": 1, "co_rewarding_2": 1, "t3rl": 2, "scope": 2, "coverrl+guard": 2,
    }  # fmt: skip
    assert len(set().union(*keys.values())) == 9


def test_the_preset_prints_its_tables(tmp_path, capsys):
    out, size = tmp_path / "s", ["--replicates", "4", "--n-problems", "8", "--epochs", "10"]
    arms = ["--arms", "ttrl", "rent", "srt+guard"]
    assert main(["sweep", "--preset", "rules", "--out", str(out), *arms, *size, "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("| RENT |") == 4 and "| SRT + TTRL-Guard |" in shown
    assert "population qwen-math500, signal 0.3" in shown


def test_scores_of_no_use_are_refused_before_the_compiled_guard_reads_them(runs, monkeypatch):
    monkeypatch.setattr(Scope, "scores", lambda self, obs: obs.votes.counts[..., :2])
    with pytest.raises(ConfigError, match=r"rule scope: scores returned an array of shape"):
        runs.play(runs.small("scope"))
