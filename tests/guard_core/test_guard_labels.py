"""docs/method.md, sections 2 to 6 and 16: labels, rates, weights, protection and skips."""

from dataclasses import fields, replace
from itertools import product

import numpy as np
import pytest
from guard_histories import checked, configs, vote_histories, walk
from guard_plays import NEVER, Play, as_votes, chance
from hypothesis import given
from hypothesis import strategies as st

from guard_core import Guard, GuardConfig, Route

PAPER = GuardConfig.paper()


def test_visits_without_any_answer_have_no_label_and_the_first_label_after_them_is_no_flip():
    play = Play(PAPER, 1)
    silent = [play.see(as_votes(np.zeros((1, n)))) for n in (0, 2, 2)]
    assert [(int(own.label[0]), float(own.weight[0])) for own in silent] == [(-1, 1)] * 3
    decision = play.see(as_votes([[0, 9]]))
    assert (decision.label[0], decision.flipped[0], decision.visits[0]) == (1, False, 4)


@pytest.mark.parametrize("label_from", ["current", "frozen", "memory"])
def test_a_visit_without_a_vote_keeps_the_label(label_from: str):
    play = Play(GuardConfig().set(label_from=label_from, tie_break="first"), 1)
    play.see(as_votes([[0, 40]]))
    decision = play.see(as_votes([[0, 0]]))
    assert (decision.label[0], decision.flipped[0], decision.tied[0]) == (1, False, False)
    assert (decision.visits[0], decision.match_rate[0]) == (2, 0)
    assert decision.mean_match_rate[0] == 40 / 64 / 2
    assert not decision.minority.any()


@given(n_tied=st.integers(1, 7), place=st.integers(0, 6), share=st.sampled_from([0.01, 0.5, 0.99]))
@checked(20)
def test_a_tie_goes_to_the_answer_at_the_place_drawn(n_tied: int, place: int, share: float):
    place %= n_tied
    counts = np.zeros(15, dtype=int)
    counts[1::2][:n_tied] = 4
    decision = Play(PAPER, 1).see(as_votes([counts]), tie=(place + share) / n_tied)
    assert decision.label.tolist() == [1 + 2 * place]
    assert decision.tied.tolist() == [n_tied > 1]


@pytest.mark.parametrize("below_one", [1 - 2**-24, 1 - 2**-53], ids=["float32", "float64"])
@pytest.mark.parametrize("n_tied", range(1, 65))
def test_a_draw_just_below_one_stays_in_range_in_single_precision(n_tied, below_one):
    """Also a double that becomes 1 on its way to single precision."""
    draws = chance(1)
    draws = replace(draws, tie=np.full(1, below_one, dtype=np.float32))
    guard = Guard(PAPER)
    state = guard.init(1)
    _, decision = guard.step(state, as_votes([[1] * n_tied]), draws)
    assert decision.label.tolist() == [n_tied - 1]


TIES = [[0, 20, 20], [20, 20, 20], [20, 0, 20]]
CLOSE = [[30, 34], [22, 42], [34, 30], [0, 64], [1, 63]]


@pytest.mark.parametrize(
    ("settings", "first", "history", "wanted"),
    [
        ({"tie_break": "first"}, None, TIES, [1, 0, 0]),
        ({"tie_break": "incumbent"}, None, TIES, [1, 1, 0]),
        ({"tie_break": "incumbent"}, [0, 0, 9], [[20, 20, 0]], [0]),
        # Frozen is the majority before training, or the first one.
        ({"label_from": "frozen"}, [0, 0, 9], [[9, 0, 0], [0, 9, 0], [0, 0, 0]], [2, 2, 2]),
        ({"label_from": "frozen"}, [0, 0, 0], [[9, 0, 0], [0, 9, 0]], [0, 0]),
        ({"label_from": "frozen"}, None, [[0, 9, 0], [9, 0, 0]], [1, 1]),
        # Memory sums votes over visits and counts visit 0.
        ({"label_from": "memory"}, [9, 4], [[4, 6]] * 3, [0, 0, 1]),
        ({"label_from": "memory"}, None, [[4, 6]] * 3, [1, 1, 1]),
        # 40 halves to 20, 10, 5, against 10, 15, 17.5; on silent visits too.
        ({"label_from": "memory", "discount": 0.5}, [40, 0], [[0, 10]] * 3, [0, 1, 1]),
        ({"label_from": "memory", "discount": 0.9}, [40, 0], [[0, 10]] * 3, [0, 0, 0]),
        ({"label_from": "memory"}, [40, 0], [[0, 10]] * 3, [0, 0, 0]),
        ({"label_from": "memory", "discount": 0.5}, [40, 0], [[0, 0], [0, 0], [0, 11]], [0, 0, 1]),
        # A tie: .8 * 1 + 4 is .8 * 6, though .8 * 6 is more as a double.
        (
            {"label_from": "memory", "discount": 0.8, "tie_break": "first"},
            None,
            [[1, 6], [4, 0]],
            [1, 0],
        ),
        # Hysteresis keeps a label that is nearly as frequent.
        ({"hysteresis": 0.4}, [40, 24], CLOSE, [0, 1, 1, 1, 1]),
        ({"hysteresis": 1.0}, [40, 24], CLOSE, [0, 0, 0, 1, 1]),
        # 3 are 30 % of 10, though (1 - .7) * 10 is more than 3 as a double.
        ({"hysteresis": 0.7}, [9, 1], [[3, 10], [2, 10]], [0, 1]),
        # Sums: 70 and 58, 92 and 100, 126 and 130, 126 and 194.
        ({"hysteresis": 0.1, "label_from": "memory"}, [40, 24], CLOSE, [0, 0, 0, 1, 1]),
        ({"label_from": "memory"}, [40, 24], CLOSE, [0, 1, 1, 1, 1]),
    ],
)
def test_labels_of_a_history(settings, first, history, wanted):
    play = Play(GuardConfig().set(**settings), 1)
    if first is not None:
        play.prime(as_votes([first]))
    assert [int(play.see(as_votes([counts])).label[0]) for counts in history] == wanted


@pytest.mark.parametrize("label_from", ["current", "frozen", "memory"])
def test_visit_0_is_neither_visit_nor_flip(label_from: str):
    play = Play(GuardConfig().set(label_from=label_from), 2)
    before = play.state
    play.prime(as_votes([[9, 3], [3, 9]]))
    assert play.state.label.tolist() == [0, 1]
    for name in ("visits", "flips", "match_rates", "had_competition", "c2_fired", "steady"):
        assert not np.asarray(getattr(play.state, name)).any(), name
        assert np.array_equal(getattr(play.state, name), getattr(before, name))
    decision = play.see(as_votes([[9, 3], [3, 9]]))
    assert decision.visits.tolist() == [1, 1]
    assert decision.flipped.tolist() == [False, False]


def test_a_mean_match_rate_on_a_bound_is_not_above_it():
    """The means of these shares are .6 and .5, and a bit more as sums of doubles."""
    for tau, tenths in ((0.6, (5, 5, 6, 8, 6)), (0.5, (8, 9, 1, 1, 6))):
        play = Play(PAPER.set(tau_MR=tau, theta_MR=tau, tau_FR=0.0, p_skip=1.0), 1)
        calm = Play(PAPER.set(tau_MR=tau), 1)
        play.see(as_votes([[10, 0]], 10))
        for n in tenths:
            decision = play.see(as_votes([[0, n]], 10), skip=0.0)
            weights = calm.see(as_votes([[n, 0]], 10)).weight
        assert decision.mean_match_rate > tau
        assert decision.had_competition and not decision.high_risk and not decision.skip
        assert weights == 1


def test_a_label_of_before_may_lie_beyond_the_answers_of_visit_0():
    play = Play(PAPER, 1)
    for counts in ([[0, 0, 9]], [[0]]):
        play.prime(as_votes(counts))
        assert play.state.label == 2


def test_a_frozen_label_has_its_share_of_this_visit_even_beyond_the_answers_of_the_batch():
    play = Play(GuardConfig().set(label_from="frozen"), 2)
    play.prime(as_votes([[0, 40, 0, 0], [0, 0, 0, 40]]))
    decision = play.see(as_votes([[48, 16]] * 2))
    assert (decision.label.tolist(), decision.match_rate.tolist()) == ([1, 3], [0.25, 0])
    assert decision.minority.tolist() == [[True, False], [True, True]]


def test_the_memory_grows_with_new_answers_and_keeps_the_old():
    play = Play(GuardConfig().set(label_from="memory"), 2)
    for counts in ([[5], [4]], [[1, 3, 0, 0], [0, 0, 0, 9]], [[2], [1]]):
        decision = play.see(as_votes(counts))
    assert play.state.memory.tolist() == [[8, 3, 0, 0], [5, 0, 0, 9]]
    assert decision.label.tolist() == [0, 3]


def test_rates_divide_by_the_window_and_by_the_visits_seen():
    play = Play(PAPER, 1)
    decisions = [play.see(as_votes([c])) for c in ([32, 0], [0, 64], [16, 0])]
    assert [float(d.flip_rate[0]) for d in decisions] == [0, 0.2, 0.4]
    assert [float(d.mean_match_rate[0]) for d in decisions] == [0.5, 0.75, 1.75 / 3]
    decisions = [play.see(as_votes([[64, 0]])) for _ in range(5)]
    assert [float(d.flip_rate[0]) for d in decisions] == [0.4, 0.4, 0.4, 0.2, 0]
    assert [bool(d.had_competition[0]) for d in decisions] == [True] * 5


def test_a_flip_rate_on_the_threshold_is_no_competition():
    play = Play(PAPER.set(tau_FR=0.4), 1)
    history = [play.see(as_votes([c])) for c in ([32, 0], [0, 64], [16, 0], [64, 0])]
    assert max(float(d.flip_rate[0]) for d in history) == 0.4
    assert not any(d.had_competition[0] for d in history)


WEIGHTS = [0.35, 0.42, 0.49, 0.5, 0.56, 0.6, 0.7, 0.765, 0.8, 0.85, 0.9, 1]


def test_weights_are_these_twelve_and_all_of_them_occur():
    """In all sequences of six visits over two labels at match rates .75 and .5."""
    choices = np.array([[48, 16], [16, 48], [32, 16], [16, 32]])
    histories = choices[np.array(list(product(range(4), repeat=6))).T]
    play = Play(GuardConfig.paper(), histories.shape[1])
    seen = {
        round(float(weight), 12)
        for counts in histories
        for weight in np.unique(play.see(as_votes(counts)).weight)
    }
    assert sorted(seen) == WEIGHTS


def test_c2_counts_only_the_visits_at_which_it_fired():
    """Low match rates interrupt the series of .85 and do not use it up."""
    play = Play(GuardConfig.paper(), 1)
    weights = []
    for got in [40] * 5 + [0] * 10 + [40] * 20:
        decision = play.see(as_votes([[got, 0]]))
        weights.append(round(float(decision.weight[0]), 12))
    assert [place for place, weight in enumerate(weights) if weight == 0.85] == [4, 19, 20, 21, 22]
    assert set(weights) == {0.85, 1}


CLOSE_AGAIN = [[30, 34], [32, 32], [40, 24]]
SQUARE = {"frs": False, "margin_power": 2}
"""Weights are squared margins."""


@pytest.mark.parametrize(
    ("settings", "first", "history", "weights"),
    [
        # Two flips in three visits: FR = .4 exceeds the threshold once and ends C2 for good.
        ({}, None, [[64, 0], [0, 64]] + [[64, 0]] * 21, [1.0] * 15),
        # w_min is a floor.
        ({"flip_rate": "instant", "l1": 1.0, "w_min": 0.25}, None, [[64, 0], [0, 64]], [0.25]),
        # A power of the margin: 16 and 8 of 32 parsed votes.
        *(
            ({"frs": False, "margin_power": power}, None, [[16, 8, 8, 0]], [0.25**power])
            for power in (0, 1, 2, 3)
        ),
        # Remembered votes are 32 + 8 against 56, of 96: the label changes by a sixth.
        (SQUARE | {"label_from": "memory", "discount": 0.5}, [64, 0], [[8, 56]], [1 / 36]),
        # A label that does not lead has no weight.
        (SQUARE | {"label_from": "frozen"}, [40, 24], CLOSE_AGAIN, [0, 0, 1 / 16]),
        (SQUARE | {"hysteresis": 0.5}, [40, 24], CLOSE_AGAIN, [0, 0, 1 / 16]),
    ],
)
def test_weights_of_a_history(settings, first, history, weights):
    play = Play(GuardConfig().set(**settings), 1)
    if first is not None:
        play.prime(as_votes([first]))
    found = [float(play.see(as_votes([counts])).weight[0]) for counts in history]
    assert found[-len(weights) :] == pytest.approx(weights, rel=1e-12)


SLOW = GuardConfig().set(W=10, T_steady=3)
"""Four flips in a row make a flip rate of .4 that falls by .1 a visit, .3 being calm."""

FLIPPING = [[40, 20], [20, 40]] * 2 + [[40, 20]]


def betas(config: GuardConfig, history: list[list[int]]) -> list[float]:
    play = Play(config, 1)
    return [round(float(play.see(as_votes([counts])).beta[0]), 12) for counts in history]


def test_one_contested_visit_restarts_the_count():
    flips = {2, 3, 8, 9, 13, 14}
    history = [[40, 20] if sum(f <= v for f in flips) % 2 == 0 else [20, 40] for v in range(1, 21)]
    got = betas(SLOW, history)
    # Calm at 12 and 13, contested again at 14, calm at 18, 19 and, the third in a row, 20.
    assert got[8:] == [0.12, 0.12, 0.12, 0.09, 0.09, 0.12, 0.12, 0.12, 0.12, 0.09, 0.06, 0]
    assert set(got[:8]) == {0}


@pytest.mark.parametrize("T_steady", [1, 2, 3, 4])
def test_off_after_t_steady_calm_visits_and_on_again(T_steady: int):
    config = SLOW.set(T_steady=T_steady, beta_max=1.0)
    got = betas(config, FLIPPING + [[40, 20]] * 12 + FLIPPING[1:])
    # Visits 5-11: FR = .4; 12: .3 is calm, as all are after it, and protected while T_steady lasts.
    calm = [0.3, 0.2, 0.1, 0.0, 0.0, 0.0]
    kept = calm[: T_steady - 1] + [0.0] * (6 - (T_steady - 1))
    assert got == [*[0] * 4, *[0.4] * 7, *kept, 0, 0, 0, 0.4]


def test_saturating_schedule_reaches_its_maximum_at_the_threshold():
    config = SLOW.set(beta_schedule="saturating")
    got = betas(config, FLIPPING + [[40, 20]] * 8)
    # .4, .3 and then .2 over a threshold of .3; the last calm visit is the third: off.
    assert got[4:] == [0.3] * 7 + [0.3, 0.2]


@pytest.mark.parametrize(
    ("profile", "counts", "samples", "n_samples", "candidates"),
    [
        ("paper", [20, 16, 15, 13, 0], [8, 9, 7, 8, 0], 32, [1, 3]),
        # The release asks the same number of all votes.
        ("release", [20, 9, 8, 7], [20, 0, 0, 0], 32, [1, 2]),
        ("paper", [20, 9, 8, 7], [20, 0, 0, 0], 32, []),
        *(("paper", [9, 1, 0], [n - 1, 1, 0], n, [1]) for n in (1, 2, 3, 4, 7)),
    ],
)
def test_candidates_hold_a_quarter_of_the_samples_and_at_least_one(
    profile, counts, samples, n_samples, candidates
):
    votes = as_votes([counts], samples=[samples], n_samples=n_samples)
    decision = Play(GuardConfig.profile(profile), 1).see(votes)
    assert np.flatnonzero(decision.minority[0]).tolist() == candidates


def test_empty_minority_keeps_beta_or_sets_it_to_zero():
    history = [[64, 0], [0, 64], [64, 0]]
    np.testing.assert_allclose(betas(GuardConfig.paper(), history)[-1], 0.12)
    assert betas(GuardConfig().set(empty_minority="plain"), history)[-1] == 0
    split = [[40, 20], [20, 40], [40, 20]]
    np.testing.assert_allclose(betas(GuardConfig().set(empty_minority="plain"), split)[-1], 0.12)


EAGER = GuardConfig().set(W=1, tau_FR=0.0, theta_MR=0.0)
"""One flip makes a problem a high risk for ever."""


def risky_play(risky: list[bool], config: GuardConfig) -> Play:
    """A batch in which exactly the named problems are at high risk from now on."""
    play = Play(config, len(risky))
    play.see(as_votes([[64, 0]] * len(risky)))
    play.see(as_votes([[0, 64] if at_risk else [64, 0] for at_risk in risky]))
    return play


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[bool], list[float], list[float]]:
    size = draw(st.integers(1, 25))
    risky = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    few = st.sampled_from([0.0, 0.25, 0.5, 0.6875, 0.75, NEVER])
    skip, pick = (draw(st.lists(few, min_size=size, max_size=size)) for _ in range(2))
    return risky, skip, pick


@checked(30)
@given(
    crowd=crowds(),
    share=st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]),
    p_skip=st.sampled_from([0.0, 0.5, 0.7, 1.0]),
)
@pytest.mark.parametrize(("cap", "order"), [("floor", "random"), ("at_least_one", "first")])
def test_the_smallest_picks_fill_the_cap_and_equal_ones_in_batch_order(
    cap, order, crowd, share, p_skip
):
    """A skip draw must lie below `p_skip`. First come, first served is as if picks were equal."""
    risky, skip, pick = crowd
    config = EAGER.set(skip_share=share, p_skip=p_skip, skip_cap=cap, skip_order=order)
    decision = risky_play(risky, config).see(as_votes([[64, 0]] * len(risky)), skip=skip, pick=pick)
    assert decision.high_risk.tolist() == risky
    most = max(int(share * len(risky)), int(cap == "at_least_one"))
    candidates = [at for at, own in enumerate(risky) if own and skip[at] < p_skip]
    wanted = sorted(candidates, key=lambda at: pick[at] if order == "random" else 0)[:most]
    assert np.flatnonzero(decision.skip).tolist() == sorted(wanted)


def test_high_risk_needs_competition_history_and_consensus():
    config = GuardConfig().set(W=5, tau_FR=0.3, theta_MR=0.5)
    play = Play(config, 3)
    steady, flips, low = [40, 0], [[0, 40], [40, 0]], [[0, 32], [32, 0]]
    seen = []
    for visit in range(7):
        votes = as_votes([steady, flips[visit % 2], low[visit % 2]])
        seen.append(play.see(votes).high_risk.tolist())
    # From the fifth visit on; a mean match rate of exactly .5 does not exceed .5.
    assert seen == [[False, False, False]] * 4 + [[False, True, False]] * 3


@pytest.mark.parametrize("part", ["frs", "mps", "rcsu"])
@checked(10)
@given(history=vote_histories(max_visits=18), config=configs())
def test_monitoring_goes_on_whatever_the_guard_does(part, history, config):
    """Skipped problems too: nothing that is observed depends on what is done about it."""
    owned = {"frs": {"c2_fired"}, "mps": {"mps_active", "steady"}, "rcsu": set()}[part]
    _, on = walk(history, config.set(**{part: True}))
    _, off = walk(history, config.set(**{part: False}))
    for name in {field.name for field in fields(on)} - owned:
        np.testing.assert_array_equal(getattr(on, name), getattr(off, name), err_msg=name)


OFF = GuardConfig.off()


def test_it_multiplies_the_weight_of_frs():
    history = [as_votes([[48, 16]]), as_votes([[16, 48]]), as_votes([[48, 16]])] * 4
    plain, both = Play(GuardConfig(), 1), Play(GuardConfig().set(margin_power=1), 1)
    weights = np.array([(plain.see(v).weight, both.see(v).weight) for v in history])
    assert (weights[:, 0] < 1).any()
    assert np.array_equal(weights[:, 1], 0.5 * weights[:, 0])


def test_problems_below_the_share_are_skipped_beside_those_of_rcsu():
    play = Play(OFF.set(min_share=0.5), 4)
    decision = play.see(as_votes([[32, 32], [40, 24], [31, 30], [0, 0]], n_votes=70))
    # 31 of 61 parsed votes are more than one half; nobody voted on the last.
    assert decision.skip.tolist() == [False, False, False, True]
    decision = play.see(as_votes([[31, 30, 3], [40, 24, 0], [64, 0, 0], [9, 2, 1]]))
    assert decision.skip.tolist() == [True, False, False, False]
    assert decision.route.tolist() == [Route.SKIPPED, 0, 0, 0]
    assert not decision.high_risk.any()


def test_a_remembered_share_of_exactly_the_threshold_is_not_below_it():
    play = Play(OFF.set(label_from="memory", discount=0.8, min_share=0.75), 1)
    assert not any(play.see(as_votes([[48, 16]])).skip[0] for _ in range(12))


def test_a_weak_problem_takes_no_place_under_the_cap():
    eager = GuardConfig().set(tau_FR=0.0, theta_MR=0.0, W=2, p_skip=1.0, skip_order="first")
    for config, skipped in ((eager, [1, 0, 0, 0]), (eager.set(min_share=0.6), [1, 1, 0, 0])):
        play = Play(config, 4)
        for first in (40, 20, 40):
            play.see(as_votes([[first, 64 - first, 0]] * 4))
        decision = play.see(as_votes([[32, 30, 2], *[[60, 4, 0]] * 3]))
        assert decision.high_risk.all()
        assert decision.skip.tolist() == skipped
