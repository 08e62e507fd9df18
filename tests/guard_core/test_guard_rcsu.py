"""docs/method.md, section 6: candidates for a skip, their number, and their state meanwhile."""

from dataclasses import fields, replace

import numpy as np
import pytest
from guard_histories import checked, configs, vote_histories, walk
from guard_plays import NEVER, Play, as_votes
from hypothesis import given
from hypothesis import strategies as st

from guard_core import GuardConfig

EAGER = GuardConfig(W=1, tau_FR=0.0, theta_MR=0.0)
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


def decide(crowd, config):
    """The decision, and who was a candidate."""
    risky, skip, pick = crowd
    decision = risky_play(risky, config).see(as_votes([[64, 0]] * len(risky)), skip=skip, pick=pick)
    assert decision.high_risk.tolist() == risky
    return decision, np.array(risky) & (np.array(skip) < config.p_skip)


@checked(25)
@given(crowd=crowds(), share=st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]))
def test_the_smallest_picks_fill_the_cap_also_with_equal_picks(crowd, share):
    decision, candidates = decide(crowd, replace(EAGER, skip_share=share))
    skip, pick = np.asarray(decision.skip), np.array(crowd[2])
    assert skip.sum() == min(int(share * len(skip)), candidates.sum())
    assert not (skip & ~candidates).any()
    waiting = candidates & ~skip
    if skip.any() and waiting.any():
        assert pick[skip].max() <= pick[waiting].min()


@checked(15)
@given(crowd=crowds())
def test_first_come_first_served_skips_at_least_one(crowd):
    config = replace(EAGER, skip_order="first", skip_cap="at_least_one")
    decision, candidates = decide(crowd, config)
    cap = max(1, len(candidates) // 4)
    assert np.flatnonzero(decision.skip).tolist() == np.flatnonzero(candidates)[:cap].tolist()


@pytest.mark.parametrize(("p_skip", "skips"), [(0.0, 0), (0.5, 0), (0.500001, 2), (1.0, 2)])
def test_a_skip_draw_must_lie_below_p_skip(p_skip: float, skips: int):
    crowd = [True] * 8, [0.5] * 8, [0.0] * 8
    decision, _ = decide(crowd, replace(EAGER, p_skip=p_skip))
    assert decision.skip.sum() == skips
    all_draws = [True] * 8, [NEVER] * 8, [0.0] * 8
    assert decide(all_draws, replace(EAGER, p_skip=1.0))[0].skip.sum() == 2


def test_high_risk_needs_competition_history_and_consensus():
    config = GuardConfig(W=5, tau_FR=0.3, theta_MR=0.5)
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
    _, on = walk(history, replace(config, **{part: True}))
    _, off = walk(history, replace(config, **{part: False}))
    for name in {field.name for field in fields(on)} - owned:
        np.testing.assert_array_equal(getattr(on, name), getattr(off, name), err_msg=name)
