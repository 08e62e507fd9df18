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
    """Place: epoch."""
    VOTES = 1
    """Place: step, 0 before training."""
    EVALUATION = 2
    """Place: step."""
    GUARD = 3
    """Place: problem, visit."""
    RULE = 4
    """Random numbers of a rule; position: problem, visit."""
    SECOND = 5
    """A rule's second votes; position: step, 0 before training."""
    REWORDING = 6
    """Before training, for all problems."""
    VERIFIER = 7
    """A model's verdicts on responses; position: step."""


def generator(seed: int, stream: Stream, *position: int) -> np.random.Generator:
    """A NumPy generator for one place."""
    return np.random.default_rng([seed, int(stream), *position])


def torch_generator(
    seed: int, stream: Stream, *position: int, device: str | torch.device = "cpu"
) -> torch.Generator:
    """A torch generator for one place."""
    state = np.random.SeedSequence([seed, int(stream), *position]).generate_state(1, np.uint64)
    made = torch.Generator(device=device)
    made.manual_seed(int(state[0] >> 1))
    return made
