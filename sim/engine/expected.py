"""The expected update: the gradient at the policy's probabilities instead of K drawn samples.

`update = "expected"` takes the sampling noise out of the update and leaves it in the vote. Per
visit the label, the minority candidates, weight, beta and skip are those that the guard decided
from the votes and samples drawn; given them, the count n_a of the K samples is replaced by its
mean over a fresh group of samples, K * (1 - unparseable) * p_a, in the rewards' mean and standard
deviation and in the sum over samples. With the reward `answer = label` and every response
parseable, q the label's probability and F = sqrt(q * (1 - q) * (K - 1) / K),

    g_label = F,    g_a = -F * p_a / (1 - q) for the other answers.

So it is the gradient of an infinitely large group under the guard's decision (K stays in the
unbiased standard deviation alone), and expectation is over the K samples as independent of the
label. It is not the mean of the sampled update over all draws that lead to the same label: that
mean has E[F(share)] <= F(q) in place of F(q), and the K samples are among the votes that made the
label. With two answers x = logit p moves by 2 * step * F, the drift of `sim.theory` times its sign.
"""

from __future__ import annotations

from guard_core.arrays import Array

_BELOW_ONE = 1.0 - 1e-12
"""Keeps the sum over any set of answers below K in spite of rounding: it goes under a root."""


def expected_samples(p_RPA: Array, parseable: float, n_samples: int) -> Array:
    """Mean count of each answer among K fresh samples, to stand in for `Votes.samples`.

    Args:
        p_RPA: answer probabilities among parseable responses.
        parseable: chance that a response holds an answer.
        n_samples: K.

    Returns:
        (R, P, A) counts that need not be whole.
    """
    return (_BELOW_ONE * parseable * n_samples) * p_RPA
