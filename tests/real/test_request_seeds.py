from __future__ import annotations

import numpy as np
import pytest
import torch

from real.engines.rollouts import request_seeds
from real.settings.seeds import Stream, generator, request_seed, torch_generator

P, V, STEPS = 8, 64, 200


def children(generator: torch.Generator) -> list[int]:
    """Seeds of all responses of a batch: vLLM draws response i with the prompt's seed plus i."""
    return [seed + child for seed in request_seeds(generator, P, V) for child in range(V)]


def test_no_two_responses_share_a_seed_in_a_batch_and_across_batches() -> None:
    for run_seed in range(3):
        seen: set[int] = set()
        for stream in (Stream.VOTES, Stream.EVALUATION):
            for step in range(STEPS):
                found = children(torch_generator(run_seed, stream, step))
                # A generator on a CPU looks at the lowest 32 bits alone.
                short = {seed % 2**32 for seed in found}
                assert len(short) == P * V
                assert not short & seen
                seen |= short


def test_seeds_follow_from_the_generator_and_move_it_on() -> None:
    generator = torch_generator(0, Stream.VOTES, 1)
    first, second = request_seeds(generator, P, V), request_seeds(generator, P, V)
    assert first == request_seeds(torch_generator(0, Stream.VOTES, 1), P, V)
    assert first != second
    assert first[:3] == request_seeds(torch_generator(0, Stream.VOTES, 1), 3, V)
    assert max(first) + V < 2**63


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**40 + 3])
def test_generators_are_numpys_of_the_same_numbers(seed: int) -> None:
    expected = np.random.default_rng([seed, 3, 5, 2]).random(4)
    assert generator(seed, Stream.GUARD, 5, 2).random(4).tolist() == expected.tolist()


def test_a_request_has_a_seed_of_its_own() -> None:
    places = [(step, p, s) for step in range(4) for p in range(8) for s in range(64)]
    seeds = {request_seed(0, Stream.VOTES, *place) for place in places}
    assert len(seeds) == len(places) and min(seeds) >= 0 and max(seeds) < 2**63
