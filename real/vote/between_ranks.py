"""What the first rank alone knows of a rule's batch, told to the others: questions and pay.

The first rank reads answers and knows labels. But its questions to a verifier are sampled by all
engines together, and whatever is trained besides the voted responses is trained by all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from guard_core import PolicyStreams
from real.vote.paying import Bools, Floats, Ints, Paid, Verify

if TYPE_CHECKING:
    from real.ranks.distributed import Ranks


def told(ranks: Ranks, values_PC: NDArray[np.number] | None) -> Floats | None:
    """The first rank's (P, C) numbers, or its None, on every rank; all must call this.

    Args:
        ranks: the processes of the run.
        values_PC: to be told; what other ranks give is not looked at.
    """
    own_PC = values_PC if ranks.first else None
    size = (-1, -1) if own_PC is None else own_PC.shape
    n_rows, n_columns = ranks.broadcast(torch.tensor(size)).tolist()
    if n_rows < 0:
        return None
    if own_PC is None:
        own_PC = np.zeros((n_rows, n_columns))
    return ranks.broadcast(torch.from_numpy(own_PC.astype(np.float64))).numpy()


def packed(streams: PolicyStreams) -> Floats:
    """(P, 2K + 2) the streams as one array: both advantages, weight, drop."""
    columns = [streams.majority, streams.minority, streams.weight[:, None], streams.drop[:, None]]
    return np.concatenate(columns, axis=1, dtype=np.float64)


def unpacked(values_PC: Floats) -> PolicyStreams:
    """The streams that `packed` made an array of."""
    n_samples = values_PC.shape[1] // 2 - 1
    return PolicyStreams(
        majority=values_PC[:, :n_samples],
        minority=values_PC[:, n_samples : 2 * n_samples],
        weight=values_PC[:, -2],
        drop=values_PC[:, -1] > 0,
    )


def tell_further(ranks: Ranks, paid: Paid) -> None:
    """Tell the other ranks, which call `told_further`, what is paid besides the voted responses."""
    told(ranks, None if paid.second is None else packed(paid.second))
    told(ranks, paid.verifier_PQ)


def told_further(ranks: Ranks, streams: PolicyStreams) -> Paid:
    """All that the first rank pays; the streams of the voted responses are known already."""
    second_PC = told(ranks, None)
    return Paid(streams, None if second_PC is None else unpacked(second_PC), told(ranks, None))


def asked_by_all(ranks: Ranks, ask: Callable[[Ints], tuple[Ints, Bools]]) -> Verify:
    """`Observed.verify` for all ranks: each asks what the first one wants to know.

    Args:
        ranks: the processes of the run; all must call what is returned.
        ask: samples the verdicts, which every rank gets; see `Verification.ask`.
    """

    def verify(questions_PQ: Ints | None) -> tuple[Ints, Bools]:
        found_PQ = told(ranks, questions_PQ)
        if found_PQ is None:
            raise ValueError("the first rank must know what is asked")
        return ask(found_PQ.astype(np.int64))

    return verify
