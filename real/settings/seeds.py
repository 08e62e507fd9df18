"""Random numbers by purpose and position.

Every draw has its own generator, made from the run's seed, a stream and a position in the run. Two
arms of one seed therefore see the same problem order, guard draws and evaluation draws; and a
resumed run needs no generator's state.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch


class Stream(IntEnum):
    """Purpose of random numbers, with the position in the run that each is drawn for.

    Epoch: the order of problems. Step, 0 before training: votes, evaluations, a rule's second
    votes, a model's verdicts. Problem and visit: the guard, a rule, the deal of permuted decisions.
    None: rewordings of all problems before training.
    """

    ORDER = 0
    VOTES = 1
    EVALUATION = 2
    GUARD = 3
    RULE = 4
    SECOND = 5
    REWORDING = 6
    VERIFIER = 7
    DEAL = 8


def generator(seed: int, stream: Stream, *position: int) -> np.random.Generator:
    """Return the NumPy generator of one position."""
    return np.random.default_rng(_sequence(seed, stream, position))


def request_seed(seed: int, stream: Stream, *position: int) -> int:
    """Return 63 bits of one position, for an engine that takes a request's seed."""
    return int(_sequence(seed, stream, position).generate_state(1, np.uint64)[0] >> 1)


def torch_generator(
    seed: int, stream: Stream, *position: int, device: str | torch.device = "cpu"
) -> torch.Generator:
    """Return the torch generator of one position."""
    return torch.Generator(device=device).manual_seed(request_seed(seed, stream, *position))


def _sequence(seed: int, stream: Stream, position: tuple[int, ...]) -> np.random.SeedSequence:
    words = [seed, int(stream), *position]
    # NumPy takes an array of single words as it is, a list number by number: ten times as slow.
    short = max(words) < 2**32
    return np.random.SeedSequence(np.array(words, np.uint32) if short else words)
