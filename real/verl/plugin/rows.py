"""Rows of verl's queue, by problem and session and never by position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lab.errors import UserError


class Row(NamedTuple):
    """A response by its key in the queue, `{uid}_{session}_{turn}`."""

    uid: str
    """Of the problem in this batch, new in every step."""
    session: int
    """Number of the vote."""
    turn: int
    key: str

    @classmethod
    def of(cls, key: str) -> Row:
        """Return the row with that key."""
        uid, session, turn = key.rsplit("_", 2)
        return cls(uid, int(session), int(turn), key)


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
    last = {(row.uid, row.session): row for row in sorted(map(Row.of, keys))}
    groups: dict[str, list[str]] = {}
    for row in last.values():
        groups.setdefault(row.uid, []).append(row.key)
    by_problem = {problem_of[votes[0]]: votes for votes in groups.values()}
    if len(by_problem) < len(groups):
        raise UserError(
            "data.gen_batch_size: a problem came twice in one batch; leave the setting out"
        )
    return dict(sorted(by_problem.items()))


def dealt(
    minis: Sequence[Sequence[int]], ranks: int, lengths: Sequence[int], size: int, first_pad: int
) -> list[int]:
    """Return an order of rows in which every rank has its share of every mini-batch.

    verl gives each rank one slice of the rows, and cuts that into mini-batches; its own order, by
    length over the whole batch, would mix the problems of different mini-batches.

    Args:
        minis: rows of each mini-batch.
        ranks: that share the rows.
        lengths: tokens of each row; the longest of a mini-batch are dealt in turn.
        size: rows of a full mini-batch, a multiple of `ranks`.
        first_pad: rows from here on are padding, which fills the mini-batches up.

    Raises:
        UserError: the ranks cannot have as many rows each.
    """
    if size % ranks:
        raise UserError(
            f"trainer.nnodes, trainer.n_gpus_per_node: {ranks} ranks cannot share the {size} rows "
            "of a mini-batch evenly; take a divisor, or set ulysses_sequence_parallel_size so that "
            "several GPUs share a row"
        )
    slices: list[list[int]] = [[] for _ in range(ranks)]
    for mini in minis:
        n_pads = size - len(mini)
        rows = sorted(mini, key=lambda row: -lengths[row])
        rows += range(first_pad, first_pad + n_pads)
        first_pad += n_pads
        for turn, row in enumerate(rows):
            there_and_back = turn % (2 * ranks)
            slices[min(there_and_back, 2 * ranks - 1 - there_and_back)].append(row)
    return [row for part in slices for row in part]
