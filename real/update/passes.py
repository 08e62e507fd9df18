"""Rows of a whole mini-batch cut into forward passes under a token budget.

Three layouts, chosen by what the model's attention can do and by what they cost:

* padded: rows of like length stacked, their padding on the right. Under causal attention nothing
  earlier sees that padding, so no mask is made, which lets torch's attention take its fastest
  (causal, fused) kernel on any device. Sorting by length and cutting where it pays keeps the
  padding small: 4.5 % of the tokens at 32 rows of 250 to 3,150, against 45 % stacked as they come.
* packed: rows one behind the other in a single sequence whose positions start again at 0. There
  is no padding, but only the flash-attention kernels know from the positions where a row ends.
  torch's own attention would get a dense mask and compute every row against every other: measured
  on a CPU, passes of 8 rows of 287 tokens took 2.8 times as long packed as padded.
* bundled: a prompt and several responses to it in one sequence, so that the prompt is computed
  once for all of them. A dense mask keeps the responses apart, which costs attention between all
  pairs of tokens of the sequence: it pays where prompts are longer than responses.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import numpy as np

from real.update.group import Group

Layout = Literal["padded", "packed"]
Place = tuple[int, int]
"""Place of a group in the mini-batch, and row in the group."""
RowCounts = list[int]
"""(K,) tokens of each row that are in the loss."""

PASS_TOKENS = 512
"""A further forward and backward pass is taken to cost as much as so many tokens of padding."""

BUNDLE_BELOW = 2 / 3
"""Responses are bundled where that takes less than this share of the estimated cost, and saves
more than `PASS_TOKENS` tokens: a few short sequences are soon computed."""


class Row(NamedTuple):
    """One sequence of a pass: a prompt with one response, or with a bundle of them."""

    places: tuple[Place, ...]
    length: int
    """Tokens that go through the model: prompt and responses, but for the last of each."""


class Plan(NamedTuple):
    """The passes of a mini-batch."""

    passes: list[list[Place]]
    """As `plan` returns them."""
    bundle: int
    """Most responses behind one prompt; 1 where every response has a prompt of its own."""
    n_tokens: int
    """Tokens of all passes, prompts included and padding left out."""


def row_counts(group: Group) -> RowCounts:
    """Tokens of each row that are in the loss."""
    return group.counted_KT.sum(dim=1).tolist()


def cheapest_plan(
    groups: Sequence[Group],
    counts: Sequence[RowCounts],
    micro_tokens: int,
    layout: Layout = "padded",
    width: int | None = None,
    world: int = 1,
    only: Collection[int] | None = None,
) -> Plan:
    """Return the passes with the bundles that are estimated to be cheapest.

    Args:
        groups: of the mini-batch.
        counts: `row_counts` of each.
        micro_tokens: most tokens of a pass.
        layout: of passes without bundles.
        width: of the model's hidden states; None where its attention allows no bundles.
        world: ranks that share the work.
        only: as for `plan`.
    """
    bundle = 1
    if width is not None:
        bundle = _bundle_size(groups, counts, micro_tokens, width, world, only)
    passes = plan(groups, counts, micro_tokens, layout, world, only, bundle)
    return Plan(passes, bundle, sum(row.length for row in _rows(groups, counts, only, bundle)))


def plan(
    groups: Sequence[Group],
    counts: Sequence[RowCounts],
    micro_tokens: int,
    layout: Layout = "padded",
    world: int = 1,
    only: Collection[int] | None = None,
    bundle: int = 1,
) -> list[list[Place]]:
    """Rows that go through the model together.

    Args:
        groups: of the mini-batch.
        counts: `row_counts` of each; rows without a counted token are left out.
        micro_tokens: most tokens of a pass, padding included; one row may exceed it.
        layout: of the passes.
        world: ranks that share the work. Rank r runs `plan(...)[r::world]`. Rows are dealt so that
            ranks get like lengths; an empty list is a pass in which a rank has nothing to do.
        only: places of the groups that go through the model; all if None.
        bundle: most responses behind one prompt. Above 1 the sequences are padded.

    Returns:
        A multiple of `world` passes, each with its rows in the order of the mini-batch.
    """
    rows = sorted(_rows(groups, counts, only, bundle), key=lambda row: (-row.length, row.places))
    # Back and forth over the ranks, so that no rank gets the longer row every time.
    turns = [*range(world), *reversed(range(world))]
    shares: list[list[Row]] = [[] for _ in range(world)]
    for number, row in enumerate(rows):
        shares[turns[number % len(turns)]].append(row)
    cut = _cut_packed if layout == "packed" and bundle == 1 else _cut_padded
    cuts = [cut(share, micro_tokens) for share in shares]
    rounds = max(len(passes) for passes in cuts)
    return [
        sorted(place for row in passes[turn] for place in row.places) if turn < len(passes) else []
        for turn in range(rounds)
        for passes in cuts
    ]


def bundles_of(places: Sequence[Place], bundle: int) -> list[list[Place]]:
    """Sorted places cut into those that stand together: a problem's, at most `bundle` of them."""
    found: list[list[Place]] = []
    for place in places:
        if found and found[-1][0][0] == place[0] and len(found[-1]) < bundle:
            found[-1].append(place)
        else:
            found.append([place])
    return found


def _bundle_size(
    groups: Sequence[Group],
    counts: Sequence[RowCounts],
    micro_tokens: int,
    width: int,
    world: int,
    only: Collection[int] | None,
) -> int:
    """The cheapest number of responses behind one prompt; 1 where bundles save too little."""
    singles = _rows(groups, counts, only)
    alone = _cost(singles, width)
    best, least = 1, min(BUNDLE_BELOW * alone, alone - PASS_TOKENS)
    size = max((len(places) for places in counts), default=1)
    while size > 1:
        rows = _rows(groups, counts, only, size)
        fits = all(row.length <= micro_tokens for row in rows) and len(rows) >= world
        if fits and (cost := _cost(rows, width)) < least:
            best, least = size, cost
        size = -(-size // 2)
    return best


def _cost(rows: Sequence[Row], width: int) -> float:
    """Tokens, with those added whose cost attention between all pairs of a sequence equals.

    A layer of width H multiplies about 12 H^2 weights with a token, and scores a pair of tokens
    with 2 H products.
    """
    return sum(row.length * (1 + row.length / (6 * width)) for row in rows)


def _rows(
    groups: Sequence[Group],
    counts: Sequence[RowCounts],
    only: Collection[int] | None,
    bundle: int = 1,
) -> list[Row]:
    rows: list[Row] = []
    for index, group in enumerate(groups):
        if only is not None and index not in only:
            continue
        lengths = group.lengths_K.tolist()
        places = [(index, row) for row in range(len(lengths)) if counts[index][row]]
        for bundled in bundles_of(places, bundle):
            n_tokens = sum(lengths[row] - 1 for _, row in bundled)
            rows.append(Row(tuple(bundled), group.prompt_L.shape[0] + n_tokens))
    return rows


def _cut_padded(rows: list[Row], micro_tokens: int) -> list[list[Row]]:
    """Cut rows, longest first, where padding and passes together are cheapest.

    Dynamic programming over the cuts: `cost[j]` is the least for the first j rows.
    """
    if not rows:
        return []
    lengths = np.array([row.length for row in rows])
    if lengths[0] == lengths[-1]:
        size = max(1, micro_tokens // int(lengths[0]))
        return [rows[i : i + size] for i in range(0, len(rows), size)]
    cost = np.zeros(len(rows) + 1)
    cut = np.zeros(len(rows) + 1, dtype=int)
    for end in range(1, len(rows) + 1):
        tokens = (end - np.arange(end)) * lengths[:end]
        tokens_allowed = np.where(tokens <= micro_tokens, tokens, np.inf)
        tokens_allowed[-1] = tokens[-1]
        total = cost[:end] + tokens_allowed + PASS_TOKENS
        cut[end] = int(total.argmin())
        cost[end] = total[cut[end]]
    pieces, end = [], len(rows)
    while end:
        pieces.append(rows[cut[end] : end])
        end = cut[end]
    return pieces[::-1]


def _cut_packed(rows: list[Row], micro_tokens: int) -> list[list[Row]]:
    """Fill passes with rows, longest first, each into the first pass with room for it."""
    pieces: list[list[Row]] = []
    room: list[int] = []
    for row in rows:
        fits = next((i for i, left in enumerate(room) if row.length <= left), None)
        if fits is None:
            pieces.append([row])
            room.append(micro_tokens - row.length)
        else:
            pieces[fits].append(row)
            room[fits] -= row.length
    return pieces
