"""The observation models follow their laws, and know nothing at strength 0."""

from statistics import NormalDist

import numpy as np
import pytest

from guard_core import GuardConfig, Votes
from guard_core.rules import make_rule
from sim import SimConfig
from sim.engine.kernel import sharpen
from sim.world.observe import AnswerObserver, AnswerTeacher, ObservedVisit, similarities

N, A, V = 400, 5, 64


def batch(p_A, truth=0, **settings):
    """An observer and one visit of N problems with the same answer probabilities."""
    rule = settings.pop("rule", "t3rl")
    config = SimConfig(
        n_problems=N,
        n_answers=A,
        batch_size=N,
        n_samples=32,
        rule=rule,
        guard=GuardConfig.off(),
        **settings,
    )
    rng = np.random.default_rng(3)
    p_RPA = np.tile(np.asarray(p_A, np.float64), (1, N, 1))
    samples, rest = (rng.multinomial(32, p_RPA) for _ in range(2))
    votes = Votes(samples + rest, samples, V, 32)
    problems_RP, truth_RP = np.arange(N)[None], np.full((1, N), truth, np.int32)
    visit = ObservedVisit(1, 1, problems_RP, truth_RP, votes, p_RPA)
    return AnswerObserver(config, make_rule(rule)), visit


def auroc(scores, right):
    ranks = np.argsort(np.argsort(scores)) + 1.0
    n, m = right.sum(), (~right).sum()
    return (ranks[right].sum() - n * (n + 1) / 2) / (n * m)


def test_responses_are_the_counts_trained_ones_first():
    observer, visit = batch([0.4, 0.3, 0.2, 0.05, 0.05])
    answers_RPV = observer.answers(visit)
    found = Votes.from_answers(answers_RPV, n_samples=32, n_answers=A)
    assert np.array_equal(found.counts, visit.votes.counts)
    assert np.array_equal(found.samples, visit.votes.samples)


@pytest.mark.parametrize("signal", [0.0, 0.3, 0.7])
def test_confidence_separates_right_from_wrong_as_stated(signal):
    observer, visit = batch([0.5, 0.2, 0.2, 0.05, 0.05], signal=signal)
    answers_RPV = observer.answers(visit)
    x_RPV = observer.confidence(visit, answers_RPV, (0.0, 1.0))
    right = (answers_RPV == 0).ravel()
    law = NormalDist().cdf(signal * np.sqrt(2 / (1 - signal**2)))
    assert auroc(x_RPV.ravel(), right) == pytest.approx(law, abs=0.015)
    assert np.corrcoef(x_RPV.ravel(), right)[0, 1] == pytest.approx(signal, abs=0.02)
    assert x_RPV.std() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("signal", [0.0, 0.6])
def test_a_tool_and_a_verifier_have_their_rates(signal):
    observer, visit = batch([0.5, 0.5, 0, 0, 0], signal=signal)
    answers_RPV = observer.answers(visit)
    yes_RPV = observer.tool(visit, answers_RPV)
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
    z_A = np.array([0.3, -1.0, 2.0, 0.0])

    def softmax(z):
        e = np.exp(z - z.max())
        return e / e.sum()

    def certainty(z):
        p = softmax(z)
        return (p * np.log(p)).sum()

    out_RPA, h = np.empty((1, 1, 4)), 1e-6
    sharpen(softmax(z_A)[None, None], out_RPA)
    steps = h * np.eye(4)
    found = [(certainty(z_A + d) - certainty(z_A - d)) / (2 * h) for d in steps]
    assert out_RPA[0, 0] == pytest.approx(found, abs=1e-8)


def label_accuracy(runs, name, **settings):
    """Share of right labels at visit 0 over many problems."""
    law = {"population": "beta", "ability_mean": 0.4, "ability_concentration": 20.0}
    sizes = {"n_problems": 300, "replicates": 4, "epochs": 1, "unparseable": 0.0}
    config = runs.small(name, **law, **sizes, **settings)
    parts, _ = runs.play(config)
    return parts[0].visits["label_correct"].mean()


def test_a_blind_tool_leaves_the_labels_accuracy_and_a_good_one_raises_it(runs):
    plain = label_accuracy(runs, "ttrl")
    blind = label_accuracy(runs, "t3rl", signal=0.0)
    good = label_accuracy(runs, "t3rl", signal=0.9)
    assert blind == pytest.approx(plain, abs=0.03)
    assert good > plain + 0.05


@pytest.mark.parametrize("name", ["intuitor", "rent"])
def test_confidence_that_knows_more_gains_more(runs, name):
    gains = []
    for signal in (0.0, 0.4, 0.8):
        parts, _ = runs.play(
            runs.small(name, n_problems=60, epochs=15, unparseable=0.0, signal=signal)
        )
        gains.append((parts[-1].evals["pass_at_1"] - parts[0].evals["pass_at_1"]).mean())
    assert gains == sorted(gains) and gains[-1] > gains[0] + 0.005
