from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from guard_histories import arrays, checked, configs, same, same_walks, vote_histories, walk
from hypothesis import given

from guard_core import Draws, Guard, GuardConfig, Votes, group_advantages, policy_streams

LIBRARIES = pytest.mark.parametrize("asarray", [np.asarray, torch.asarray])


@LIBRARIES
@pytest.mark.parametrize("wrong", [7, -2])
def test_answer_ids_outside_of_their_range_are_refused(asarray: Any, wrong: int):
    good = [[0, 2, -1, 1]]
    assert Votes.from_answers(asarray(good), n_samples=2, n_answers=3).n_votes == 4
    with pytest.raises(ValueError, match=r"must lie in -1..2; raise n_answers = 3"):
        Votes.from_answers(asarray([[0, wrong, -1, 1]]), n_samples=2, n_answers=3)
    with pytest.raises(ValueError, match=r"must be integers, not .*float64"):
        Votes.from_answers(np.array(good, float), n_samples=2, n_answers=3)


@LIBRARIES
@pytest.mark.parametrize("wrong", [float("nan"), -0.1, 1.5])
@pytest.mark.parametrize("name", ["tie", "skip", "pick"])
def test_draws_are_numbers_from_0_to_1(asarray: Any, wrong: float, name: str):
    good = asarray([0.0, 0.5, 1.0])  # single precision makes 1 of a double just below
    draws = dict.fromkeys(("tie", "skip", "pick"), good)
    Draws(**draws)
    with pytest.raises(ValueError, match=rf"draws: {name} must lie in \[0, 1\)"):
        Draws(**draws | {name: asarray([0.0, wrong, 0.5])})
    empty = asarray(np.zeros(0))
    Draws(empty, empty, empty)


@LIBRARIES
def test_a_problem_twice_in_a_batch_is_refused(asarray: Any):
    state = Guard(GuardConfig()).init(4)
    once, twice = asarray([2, 0, 3]), asarray([2, 0, 2])
    state.put(once, state.take(once))
    with pytest.raises(ValueError, match="occurs twice"):
        state.put(twice, state.take(twice))
    rows = Guard(GuardConfig()).init(4, leading=(2,))
    each = asarray([[0, 1], [1, 0]])
    rows.put(each, rows.take(each))


@checked(20)
@given(history=vote_histories(max_visits=8), config=configs())
def test_tensors_go_in_and_the_same_bits_come_out(history, config):
    same_walks(*(walk(history, config, asarray) for asarray in (np.array, torch.tensor)))


def test_rows_are_a_copy_so_that_a_step_can_be_thrown_away():
    guard = Guard(GuardConfig().set(label_from="memory"))
    votes = Votes.from_answers(np.array([[0, 1, 1]] * 2), n_samples=3, n_answers=2)
    state = guard.init(3, leading=(), n_answers=2)
    assert (state.label == -1).all() and state.memory.shape == (3, 2)
    before = arrays(state)
    rows, _ = guard.step(state.take(np.array([1, 0])), votes, Draws(*np.zeros((3, 2))))
    rows.put(np.array([0, 1]), rows.take(np.array([1, 0])))
    same(before, arrays(state))


def batch(P: int, leading: tuple[int, ...] = ()) -> tuple[Votes, Draws]:
    """Votes of six for the second of three answers, and draws."""
    counts = np.broadcast_to([1, 4, 1], (*leading, P, 3)).copy()
    return Votes(counts, counts, 6, 6), Draws(*np.full((3, *leading, P), 0.5))


def stepped(config: GuardConfig, n_problems: int = 3) -> Any:
    """A guard's state after one visit of every problem."""
    guard = Guard(config)
    return guard.step(guard.init(n_problems), *batch(n_problems))[0]


NONE = np.zeros((1, 2), int)
GUARD = Guard(GuardConfig())
ROWS, (VOTES, DRAWS) = GUARD.init(4), batch(4)
FEW, (FEWER, FEWER_DRAWS) = GUARD.init(3), batch(3)
DECISION = GUARD.step(ROWS, VOTES, DRAWS)[1]
STREAMS = np.ones((2, 1, 6))  # would be repeated
DIFFER = r": .*shape \(.*shape \("


@pytest.mark.parametrize(
    ("message", "act", "given"),
    [
        (r"\(1, 3\).*\(1, 2\)", Votes, (np.ones((1, 3), int), np.ones((1, 2), int), 8, 8)),
        (r"\(\.\.\., P, A\)", Votes, (np.ones(3, int), np.ones(3, int), 8, 8)),
        *(
            (f"n_samples = {K}.*n_votes = {V}", Votes, (NONE, NONE, V, K))
            for V, K in ((8, 9), (8, 0), (0, 0), (8, -1), (8, 2.5), (8.5, 2))
        ),
        ("counts of a problem must be at least 0 and add up", Votes, (NONE - 1, NONE, 8, 8)),
        ("counts of a problem must be at least 0 and add up", Votes, (NONE + 5, NONE, 8, 8)),
        *((f"n_problems = {n}", GUARD.init, (n,)) for n in (0, -1)),
        (f"votes.counts{DIFFER}", GUARD.step, (FEW, VOTES, DRAWS)),
        (f"votes.counts{DIFFER}", GUARD.step, (ROWS, FEWER, DRAWS)),
        (f"draws.tie{DIFFER}", GUARD.step, (ROWS, VOTES, FEWER_DRAWS)),
        (f"draws.pick{DIFFER}", GUARD.step, (ROWS, VOTES, replace(DRAWS, pick=FEWER_DRAWS.pick))),
        (f"scores{DIFFER}", GUARD.step, (ROWS, VOTES, DRAWS, np.ones((3, 3)))),
        (f"votes.counts{DIFFER}", GUARD.step, (GUARD.init(4, leading=(2,)), VOTES, DRAWS)),
        (r"votes.counts: .*\(4,\).*\(3,\)", GUARD.prime, (FEW, VOTES, DRAWS)),
        ("scores: must be at least 0", GUARD.step, (ROWS, VOTES, DRAWS, np.full((4, 3), np.nan))),
        ("scores: must .*finite", GUARD.step, (ROWS, VOTES, DRAWS, np.full((4, 3), np.inf))),
        (r"majority: .*\(1, 6\).*\(4,\)", policy_streams, (*STREAMS, DECISION, GUARD.config)),
        (r"\(5, 6\).*\(4,\)", group_advantages, (np.zeros((5, 6), int), DECISION, GUARD.config)),
        ("must lie in -1..2", group_advantages, (np.full((4, 6), -2), DECISION, GUARD.config)),
    ],
)
def test_impossible_numbers_and_shapes_that_differ_are_one_line(message, act, given):
    with pytest.raises(ValueError, match=message) as seen:
        act(*given)
    assert "\n" not in str(seen.value)


MEMORY = GuardConfig().set(label_from="memory")


@pytest.mark.parametrize(
    ("made_by", "read_by", "named"),
    [
        (GuardConfig(), GuardConfig().set(W=3), "W = 3, the state keeps 5 visits"),
        (GuardConfig().set(W=2), GuardConfig(), "W = 5, the state keeps 2 visits"),
        (MEMORY, GuardConfig(), "no vote memory"),
        (GuardConfig(), MEMORY, "a vote memory"),
        (GuardConfig(), GuardConfig().set(mps=False), "no MPS"),
        (GuardConfig.only("frs"), GuardConfig(), "visits without it"),
        (GuardConfig().set(W=1, tau_MR=0.5), GuardConfig().set(W=1, frs=False), "no FRS"),
    ],
)
def test_a_state_of_other_settings_is_refused(made_by, read_by, named):
    rows = stepped(made_by)
    Guard(made_by).step(rows, *batch(3))
    for act in (Guard(read_by).step, Guard(read_by).prime):
        with pytest.raises(ValueError, match=f"made by other settings; this guard has .*{named}"):
            act(rows, *batch(3))


@LIBRARIES
@pytest.mark.parametrize("wrong", [[-1, 7], [0, 8], [100]])
def test_problems_that_the_state_does_not_hold_are_refused(asarray: Any, wrong: list[int]):
    state = Guard(GuardConfig()).init(8)
    rows = state.take(np.arange(len(wrong)))
    for act in (state.take, lambda problems: state.put(problems, rows)):
        with pytest.raises(ValueError, match=r"must lie in 0\.\.7"):
            act(asarray(wrong))
    with pytest.raises(ValueError, match="must be integers, not bool"):
        state.take(asarray(np.ones(8, bool)))
    with pytest.raises(ValueError, match=r"\(3, 2\).*\(8,\)"):
        state.take(asarray(np.zeros((3, 2), int)))


def test_rows_of_another_batch_or_of_other_settings_are_not_put_back():
    state = stepped(GuardConfig())
    before = arrays(state)
    with pytest.raises(ValueError, match=r"rows of shape \(3,\) for problems of shape \(2,\)"):
        state.put(np.array([0, 1]), state)
    with pytest.raises(ValueError, match="rows with 3 visits of flips, and the state keeps 5"):
        state.put(np.arange(3), stepped(GuardConfig().set(W=3)))
    with pytest.raises(ValueError, match="other settings"):
        state.put(np.arange(3), stepped(MEMORY))
    np.testing.assert_equal(arrays(state), before)


def test_a_state_that_cannot_be_written_is_copied():
    state = stepped(GuardConfig())
    for array in state.columns().values():
        array.flags.writeable = False
    before = arrays(state)
    rows = replace(state.take(np.array([1])), visits=np.array([9], np.int32))
    assert state.put(np.array([1]), rows).visits.tolist() == [1, 9, 1]
    np.testing.assert_equal(arrays(state), before)


def test_rates_and_memory_of_whole_numbers_take_in_fractions():
    guard = Guard(GuardConfig().set(label_from="memory", discount=0.5))
    empty = guard.init(1)
    whole = replace(empty, match_rates=empty.match_rates.astype(int), memory=np.array([[0, 1, 0]]))
    made = guard.step(whole, *batch(1))[0]
    assert made.memory.tolist() == [[1, 4.5, 1]] and made.match_rates[0, -1] == 4 / 6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_expected_counts_may_exceed_the_votes_by_rounding(dtype: Any):
    shares = np.random.default_rng(0).dirichlet(np.ones(7), 200).astype(dtype)
    counts = Votes(64 * shares, 32 * shares, 64, 32).counts
    assert (counts.sum(axis=-1) > 64).any()
    with pytest.raises(ValueError, match="add up to 64 at most"):
        Votes(65 * shares, 32 * shares, 64, 32)


def test_narrow_integers_do_not_overflow():
    answers = np.zeros((1, 300), np.int8)
    votes = Votes.from_answers(answers, n_samples=200, n_answers=200)
    assert votes.counts[0, 0] == 300 and votes.samples[0, 0] == 200


def test_tensors_with_gradients_and_of_half_precision_are_converted():
    values = np.array([0.0, 0.5, 0.75])  # exact in bfloat16
    for made in (
        torch.tensor(values, dtype=torch.bfloat16),
        torch.tensor(values, dtype=torch.float16, requires_grad=True),
        torch.tensor(values, requires_grad=True),
    ):
        assert np.array_equal(Draws(made, made, made).pick, values)
    guard, (votes, draws) = Guard(GuardConfig()), batch(3)
    plain = guard.step(guard.init(3), votes, draws, votes.counts)
    scores = torch.tensor(votes.counts, dtype=torch.bfloat16, requires_grad=True)
    half = guard.step(guard.init(3), votes, draws, scores)
    for ours, theirs in zip(plain, half, strict=True):
        np.testing.assert_equal(arrays(ours), arrays(theirs))


@pytest.mark.parametrize("wrong", [torch.zeros(3, device="meta"), [[1], [1, 2]], "abc", object()])
def test_what_is_no_array_of_numbers_is_refused_in_one_line(wrong: Any):
    with pytest.raises(TypeError, match="tie: ") as seen:
        Draws(wrong, wrong, wrong)
    assert "\n" not in str(seen.value)
