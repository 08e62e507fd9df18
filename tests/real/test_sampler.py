"""What a sampler hands to engines with and without a queue of their own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from real.engines.rollouts import Response, Rollouts, Sampling, request_params, to_rollouts
from real.vote.sample import Sampler

N = 3


class Prompts:
    tokens = tuple([number] for number in range(1, 8))

    def __len__(self) -> int:
        return len(self.tokens)


class Echo:
    """Response i to prompt [p] is p, p + i times."""

    def __init__(self, queues: bool) -> None:
        self.queues = queues
        self.calls: list[list[int]] = []

    def sample(self, prompts: Any, n: int, sampling: Sampling, generator: Any) -> Rollouts:
        self.calls.append([prompt[0] for prompt in prompts])
        rows = [
            [Response([p] * (p + i), [-1.0] * (p + i), True) for i in range(n)] for (p,) in prompts
        ]
        return to_rollouts(rows, n, 0, 4)


@pytest.mark.parametrize(
    ("queues", "calls"),
    [(True, [[1, 2, 3, 4, 5, 6, 7]]), (False, [[1, 2], [3, 4], [5, 6], [7]])],
)
def test_an_engine_with_a_queue_gets_all_prompts_at_once(
    queues: bool, calls: list[list[int]]
) -> None:
    engine, policy = Echo(queues), SimpleNamespace(device="cpu")
    sampler: Any = Sampler(engine, policy, 0)  # pyright: ignore[reportArgumentType]
    parts = list(sampler.sample_all(Prompts(), N, Sampling(20), 4, torch.Generator(), 2 * N))
    assert engine.calls == calls
    assert [list(part.problems) for part in parts] == [[0, 1], [2, 3], [4, 5], [6]]
    for part in parts:
        for place, problem in enumerate(part.problems):
            p = problem + 1
            assert part.prompts[place] == [p]
            assert part.rollouts.lengths_PN[place].tolist() == [p, p + 1, p + 2]
            assert (part.rollouts.tokens_PNT[place] == p).sum() == 3 * p + 3
        assert part.rollouts.tokens_PNT.shape[-1] == part.rollouts.lengths_PN.max()


def test_log_probs_that_nobody_asked_for_are_nan() -> None:
    params = [request_params(1, Sampling(2, logprobs=wanted), 0, ()) for wanted in (True, False)]
    assert [p["logprobs"] for p in params] == [0, None]
    rollouts = to_rollouts([[Response([5, 6], None, True), Response([5], None, True)]], 2, 0, 0)
    assert torch.equal(rollouts.logprobs_PNT.isnan(), rollouts.mask_PNT())
    assert (rollouts.logprobs_PNT[~rollouts.mask_PNT()] == 0).all()


def test_texts_that_end_a_response_are_asked_for_with_its_text() -> None:
    params = request_params(1, Sampling(2, stop=("\n\n",)), 0, ())
    texts = {"stop": ["\n\n"], "include_stop_str_in_output": True, "detokenize": True}
    assert params == request_params(1, Sampling(2), 0, ()) | texts
