"""From a batch's decision to the advantages that it is trained on, on every rank."""

from __future__ import annotations

from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from guard_core import GuardConfig, PolicyStreams, policy_streams
from guard_core.rules import Rule, response_streams, weighed
from real.ranks.distributed import Ranks
from real.vote.decide import Decided, Supervisor

T = TypeVar("T")


def pay(rule: Rule, decided: Decided, config: GuardConfig) -> PolicyStreams:
    """Return the streams of the K trained responses, as NumPy arrays.

    Args:
        rule: of the run.
        decided: of the batch.
        config: of the guard.
    """
    obs, decision = decided.obs, decided.decision
    streams = policy_streams(*response_streams(rule, obs, decision, config), decision, config)
    return weighed(rule, obs, decision.label, streams)


def shared_streams(ranks: Ranks, streams: PolicyStreams | None) -> PolicyStreams:
    """Return the first rank's streams on every rank; all ranks must call this."""
    return unpacked(ranks.from_first(None if streams is None else packed(streams)))


def shared_brake(ranks: Ranks, supervisor: Supervisor) -> float:
    """Return the guard's factor on the learning rate from this batch on, the same on all ranks.

    All ranks must call this after the batch was decided on.
    """
    if supervisor.config.guard.brake == 1:
        return 1.0
    return float(ranks.from_first(np.array([[supervisor.brake()]]))[0, 0])


def packed(streams: PolicyStreams) -> NDArray[np.float64]:
    """Return streams as one (P, 2K + 2) array: both advantages, weight, drop."""
    columns = [streams.majority, streams.minority, streams.weight[:, None], streams.drop[:, None]]
    return np.concatenate(columns, axis=1, dtype=np.float64)


def unpacked(values_PC: NDArray[np.float64]) -> PolicyStreams:
    """Return the streams that `packed` made an array of."""
    n_samples = values_PC.shape[1] // 2 - 1
    return PolicyStreams(
        majority=values_PC[:, :n_samples],
        minority=values_PC[:, n_samples : 2 * n_samples],
        weight=values_PC[:, -2],
        drop=values_PC[:, -1] > 0,
    )


def mini_batches(groups: list[T], further: list[list[T]], size: int) -> list[list[T]]:
    """Return the groups of every optimizer step.

    Args:
        groups: (P,) groups of the batch's problems.
        further: (P,) groups that go with each problem's own; empty for none at all.
        size: problems per optimizer step.
    """
    return [
        [*groups[start : start + size], *chain(*further[start : start + size])]
        for start in range(0, len(groups), size)
    ]
