"""Comparisons of small traces in memory."""

import pytest

from lab.compare.collection import gather


@pytest.fixture
def compare(make_trace):
    """A comparison from {arm: (problem histories per replicate, final pass@1s, update norm)}."""

    def compare(arms, visits=9, **changes):
        traces = []
        for arm, (problems, finals, *norm) in arms.items():
            scores = [[0.5, 0.75, *[final] * (visits - 2)] for final in finals]
            traces.append(make_trace(arm, problems, scores, *norm, **changes))
        ((comparison,), skipped) = gather(traces)
        assert not skipped
        return comparison

    return compare
