"""The update of one visit, from the guard's decision as guard_core makes it on plain numbers."""

import numpy as np

from guard_core import Draws, Guard, Votes, answer_advantages, policy_streams
from sim.engine.kernel import sums_gradient


def gradient(votes, decision, p_RPA, config):
    """(R, P, A) the decision as a gradient in the logits, see `sim.engine.kernel`."""
    pair = answer_advantages(votes.samples, votes.n_samples, decision, config)
    streams = policy_streams(*pair, decision, config)
    both_RPA = (streams.majority + streams.minority)[..., :-1]
    to = (p_RPA, streams.weight, streams.drop)
    out_RPA = np.empty_like(p_RPA)
    sums_gradient(votes.samples * both_RPA, votes.n_samples, *to, out_RPA)
    return out_RPA


def decided(counts_A, samples_A, n_votes, n_samples, config):
    """Votes of one problem and the guard's first decision on them."""
    counts, samples = (np.array([[row]], np.int64) for row in (counts_A, samples_A))
    votes = Votes(counts, samples, n_votes, n_samples)
    guard, half = Guard(config), np.full((1, 1), 0.5)
    rows = guard.init(1, leading=(1,), n_answers=len(counts_A))
    return votes, guard.step(rows, votes, Draws(half, half, half))[1]
