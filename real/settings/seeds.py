"""Random numbers by purpose and position, so that runs of one seed share them.

Every draw has its own generator, made from the run's seed, a stream and a position in the run. Two
arms of one seed therefore see the same problem order, guard draws and evaluation draws, however
many numbers either of them used before; and a resumed run needs no generator's state.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch


class Stream(IntEnum):
    """Purpose of random numbers."""

    ORDER = 0
    """Position: epoch."""
    VOTES = 1
    """Position: step, 0 before training."""
    EVALUATION = 2
    """Position: step."""
    GUARD = 3
    """Position: problem, visit."""
    RULE = 4
    """Random numbers of a rule; position: problem, visit."""
    SECOND = 5
    """A rule's second votes; position: step, 0 before training."""
    REWORDING = 6
    """Rewordings of all problems before training; no position."""
    VERIFIER = 7
    """A model's verdicts on responses; position: step."""
    DEAL = 8
    """Permuted decisions; position: problem, visit."""


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
    made = torch.Generator(device=device)
    made.manual_seed(request_seed(seed, stream, *position))
    return made


def _sequence(seed: int, stream: Stream, position: tuple[int, ...]) -> np.random.SeedSequence:
    words = [seed, int(stream), *position]
    # NumPy takes an array of single words as it is, a list number by number: ten times as slow.
    short = max(words) < 2**32
    return np.random.SeedSequence(np.array(words, np.uint32) if short else words)
