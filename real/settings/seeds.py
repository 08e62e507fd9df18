"""Random numbers by purpose and place, so that runs of one seed share them whatever else differs.

Every draw has its own generator, made from the run's seed, a stream and a place in the run. Two
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
    """Random numbers of a rule; place: problem, visit."""
    SECOND = 5
    """A rule's second votes; place: step, 0 before training."""
    REWORDING = 6
    """Before training, for all problems."""
    VERIFIER = 7
    """A model's verdicts on responses; place: step."""


def generator(seed: int, stream: Stream, *place: int) -> np.random.Generator:
    """A NumPy generator for one place."""
    return np.random.default_rng([seed, int(stream), *place])


def torch_generator(
    seed: int, stream: Stream, *place: int, device: str | torch.device = "cpu"
) -> torch.Generator:
    """A torch generator for one place."""
    state = np.random.SeedSequence([seed, int(stream), *place]).generate_state(1, np.uint64)
    made = torch.Generator(device=device)
    made.manual_seed(int(state[0] >> 1))
    return made
