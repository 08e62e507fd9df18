"""Rows of verl's queue, by problem and session and never by position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count, islice

from lab.errors import UserError


def place_of(key: str) -> tuple[str, int, int]:
    """Return the problem's uid in this step, the number of the vote and the turn of a row."""
    uid, session, turn = key.rsplit("_", 2)
    return uid, int(session), int(turn)


def votes_of(keys: Iterable[str], problem_of: Mapping[str, int]) -> dict[int, list[str]]:
    """Return the keys of every problem's votes: the last turn of each session, in their order.

    Args:
        keys: of the batch's rows, in any order.
        problem_of: key to problem.

    Returns:
        Problem to keys, by ascending problem.

    Raises:
        UserError: a problem was sampled twice.
    """
    last = {place_of(key)[:2]: key for key in sorted(keys, key=place_of)}
    groups: dict[str, list[str]] = {}
    for (uid, _), key in last.items():
        groups.setdefault(uid, []).append(key)
    by_problem = {problem_of[votes[0]]: votes for votes in groups.values()}
    if len(by_problem) < len(groups):
        raise UserError(
            "data.gen_batch_size: a problem came twice in one batch; leave the setting out"
        )
    return dict(sorted(by_problem.items()))


def dealt(
    minis: Sequence[Sequence[int]], ranks: int, lengths: Sequence[int], size: int
) -> list[int]:
    """Return an order of rows in which every rank has its share of every mini-batch.

    verl gives each rank one slice of the rows, and cuts that into mini-batches; its own order, by
    length over the whole batch, would mix the problems of different mini-batches.

    Args:
        minis: rows of each mini-batch; those behind them all are padding, which fills them up.
        ranks: that share the rows.
        lengths: tokens of each row; those of a mini-batch are dealt in turn, the longest first.
        size: rows of a full mini-batch.

    Raises:
        UserError: the ranks cannot have as many rows each.
    """
    if size % ranks:
        raise UserError(
            f"trainer.nnodes, trainer.n_gpus_per_node: {ranks} ranks cannot share the {size} rows "
            "of a mini-batch evenly; take a divisor, or set ulysses_sequence_parallel_size so that "
            "several GPUs share a row"
        )
    padding = count(sum(map(len, minis)))
    slices: list[list[int]] = [[] for _ in range(ranks)]
    for mini in minis:
        rows = [*mini, *islice(padding, size - len(mini))]
        rows.sort(key=lambda row: -lengths[row])
        for rank, part in enumerate(slices):
            part += rows[rank::ranks]
    return [row for part in slices for row in part]
