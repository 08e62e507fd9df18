from rank_runs import TOLERANCE, assert_close, assert_frame_equal, assert_same_steps

from lab.base.arms import arm
from lab.base.settings import to_values

# Four problems by three: a rank has none in the second batch. Short passes leave ranks idle.
SETTINGS = {
    "n_problems": 4, "batch_size": 3, "n_votes": 8, "n_samples": 5, "epochs": 2, "eval_every": 0,
    "eval_samples": 1, "max_tokens_per_microbatch": 64, "checkpoint_every": 4, "temperature": 1.5,
}  # fmt: skip
LAST = 4  # batches


def of_arm(name, **changes):
    """Settings of an arm that may be guarded; with a guard that acts at the first visit."""
    chosen = arm(name)
    acting = {"W": 1, "tau_FR": 0.0, "theta_MR": 0.0, "p_skip": 1.0, "skip_share": 0.5}
    guard = to_values(chosen.guard) | acting
    return {**SETTINGS, "rule": chosen.rule, "guard": guard, **changes}


TEACHER = of_arm("co_rewarding_2", checkpoint_every=1, checkpoint_keep=9)


def assert_same(two, one):
    """Votes, labels, sums over rewards, and weights; all but the clock and mere rounding."""
    assert two.codes == [0, 0] and one.codes == [0], (two.lines, one.lines)
    mine, expected = two.trace, one.trace
    for table in ("visits", "votes", "answers", "evals"):
        assert_frame_equal(getattr(mine, table), getattr(expected, table))
    assert len(expected.steps) == LAST
    assert_same_steps(mine, expected)
    first, last = one.tensors(0), one.tensors(LAST)
    assert_close(two.tensors(LAST), last)
    assert max(float((last[n] - first[n]).abs().max()) for n in last) > 100 * TOLERANCE


def test_two_ranks_are_one(ranks):
    config = of_arm("scrl+guard")
    one, two = (ranks(f"scrl-{world}", config, world, parts=("silent",)) for world in (1, 2))
    assert_same(two, one)
    assert any(one.trace.steps["n_skipped"].tolist())


def test_a_teacher_goes_on_with_more_ranks(ranks):
    taught = ranks("taught", TEACHER, 1)
    fault = {"rank": 0, "what": "kill", "call": 3}
    assert ranks("stopped", TEACHER, 1, fault=fault).codes == [-9]
    two = ranks("stopped", TEACHER, do="resume")
    assert_same(two, taught)
    assert_close(two.tensors(LAST, "rule"), taught.tensors(LAST, "rule"))
