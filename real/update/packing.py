"""Rows of a whole mini-batch cut into forward passes under a token budget.

Two layouts, chosen by what the model's attention can do:

* padded: rows of like length stacked, their padding on the right. Under causal attention nothing
  earlier sees that padding, so no mask is made, which lets torch's attention take its fastest
  (causal, fused) kernel on any device. Sorting by length and cutting where it pays keeps the
  padding small: 4.5 % of the tokens at 32 rows of 250 to 3,150, against 45 % stacked as they come.
* packed: rows one behind the other in a single sequence whose positions start again at 0. There
  is no padding, but only the flash-attention kernels know from the positions where a row ends.
  torch's own attention would get a dense mask and compute every row against every other: measured
  on a CPU, passes of 8 rows of 287 tokens took 2.8 times as long packed as padded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from real.update.group import Group

Layout = Literal["padded", "packed"]
Place = tuple[int, int]
"""Place of a group in the mini-batch, and row in the group."""
RowCounts = list[int]
"""(K,) tokens of each row that are in the loss."""

PASS_TOKENS = 512
"""A further forward and backward pass is taken to cost as much as so many tokens of padding."""


class Row(NamedTuple):
    """One response with what it needs of the budget."""

    place: Place
    length: int
    """Tokens that go through the model: prompt and response, but for the last."""


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Input of one forward pass, and which of its outputs are asked for."""

    input_ids_BS: Tensor
    """(B, S) token ids; B = 1 when packed."""
    position_ids_BS: Tensor | None
    """(B, S) when packed; None when padded: positions count from the left as always."""
    index_n: Tensor | int
    """(n,) places in the flattened (B*S,) outputs that predict the n scored tokens; or a number:
    so many outputs at the end of every row do."""
    targets_n: Tensor
    """(n,) ids of those tokens."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some rows of a mini-batch, ready for one forward and one backward pass.

    R counts the rows, T is the longest response of them, n the scored tokens: those of
    `counted_RT`, or all R*T of them.
    """

    rows: PackedRows
    places: tuple[Place, ...]
    """(R,) where the rows come from, in that order: rows of a problem stand together."""
    counted_RT: Tensor
    """(R, T) bool, tokens of the loss."""
    parts: tuple[Group, ...]
    """The rows as groups, one per problem, columns cut at the longest response."""

    def stacked(self, name: str, missing: float = 0.0) -> Tensor:
        """(R, T) or (R,) values of that field of all rows; `missing` where a problem has None."""
        values_of_parts = [getattr(part, name) for part in self.parts]
        full = [
            torch.full_like(part.old_KT, missing) if values is None else values
            for part, values in zip(self.parts, values_of_parts, strict=True)
        ]
        return _stack(full, self.counted_RT.shape[1])

    def unfold(self, values_n: Tensor) -> Tensor:
        """(R, T) values of the scored tokens at their places, 0 elsewhere."""
        if isinstance(self.rows.index_n, int):
            return values_n.view(self.counted_RT.shape)
        zeros = values_n.new_zeros(self.counted_RT.shape)
        return zeros.masked_scatter(self.counted_RT, values_n)

    @property
    def n_rows_of_parts(self) -> list[int]:
        """Rows of every problem."""
        return [part.lengths_K.shape[0] for part in self.parts]


def row_counts(group: Group) -> RowCounts:
    """Tokens of each row that are in the loss."""
    return group.counted_KT.sum(dim=1).tolist()


def plan(
    groups: Sequence[Group],
    counts: Sequence[RowCounts],
    micro_tokens: int,
    layout: Layout = "padded",
    world: int = 1,
    only: Collection[int] | None = None,
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

    Returns:
        A multiple of `world` passes, each with its rows in the order of the mini-batch.
    """
    rows = sorted(_rows(groups, counts, only), key=lambda row: (-row.length, row.place))
    # Back and forth over the ranks, so that no rank gets the longer row every time.
    turns = [*range(world), *reversed(range(world))]
    shares: list[list[Row]] = [[] for _ in range(world)]
    for number, row in enumerate(rows):
        shares[turns[number % len(turns)]].append(row)
    cut = _cut_padded if layout == "padded" else _cut_packed
    cuts = [cut(share, micro_tokens) for share in shares]
    rounds = max(len(passes) for passes in cuts)
    return [
        sorted(row.place for row in passes[turn]) if turn < len(passes) else []
        for turn in range(rounds)
        for passes in cuts
    ]


def micro_batch(
    groups: Sequence[Group],
    places: Sequence[Place],
    layout: Layout = "padded",
    most_padded: int = 0,
) -> MicroBatch:
    """The rows at `places`, which are sorted, laid out for one pass.

    Args:
        groups: of the mini-batch.
        places: of the rows.
        layout: of the pass.
        most_padded: rows of one problem with at most so many response tokens are scored padding
            and all: picking the counted ones out would cost more than it saves.
    """
    parts = _parts(groups, places)
    counted_RT = _stack([part.counted_KT for part in parts], _width(parts))
    if layout == "padded" and len(parts) == 1 and counted_RT.numel() <= most_padded:
        tokens_KT = parts[0].tokens_KT
        rows = PackedRows(_sequences(parts[0]), None, tokens_KT.shape[1], tokens_KT.flatten())
    else:
        rows = lay_out(parts, counted_RT, layout)
    return MicroBatch(rows, tuple(places), counted_RT, parts)


def lay_out(parts: Sequence[Group], scored_RT: Tensor, layout: Layout) -> PackedRows:
    """Input ids of some rows and where the scores of `scored_RT` are to be found."""
    device, width = scored_RT.device, scored_RT.shape[1]
    prompts = [part.prompt_L.shape[0] for part in parts]
    counts = [part.lengths_K.shape[0] for part in parts]
    size = max(n + part.tokens_KT.shape[1] - 1 for n, part in zip(prompts, parts, strict=True))
    ids_RS = _stack([_sequences(part) for part in parts], size)
    starts_R = torch.arange(len(ids_RS), device=device) * size
    positions = None
    prompts_R = torch.tensor(
        [n for n, count in zip(prompts, counts, strict=True) for _ in range(count)], device=device
    )
    if layout == "packed":
        lengths_R = prompts_R + torch.cat([part.lengths_K for part in parts]) - 1
        places_RS = torch.arange(size, device=device).expand_as(ids_RS)
        used_RS = places_RS < lengths_R[:, None]
        ids_RS, positions = ids_RS[used_RS][None], places_RS[used_RS][None]
        starts_R = lengths_R.cumsum(0) - lengths_R
    # The output at a token predicts the next one.
    index_RT = (starts_R + prompts_R - 1)[:, None] + torch.arange(width, device=device)
    targets_RT = _stack([part.tokens_KT for part in parts], width)
    return PackedRows(ids_RS, positions, index_RT[scored_RT], targets_RT[scored_RT])


def _rows(
    groups: Sequence[Group], counts: Sequence[RowCounts], only: Collection[int] | None
) -> list[Row]:
    return [
        Row((index, row), group.prompt_L.shape[0] + length - 1)
        for index, group in enumerate(groups)
        if only is None or index in only
        for row, length in enumerate(group.lengths_K.tolist())
        if counts[index][row]
    ]


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


def _parts(groups: Sequence[Group], places: Sequence[Place]) -> tuple[Group, ...]:
    """One group of the chosen rows per problem."""
    chosen: dict[int, list[int]] = {}
    for index, row in places:
        chosen.setdefault(index, []).append(row)
    return tuple(_take(groups[index], rows) for index, rows in chosen.items())


def _take(group: Group, rows: list[int]) -> Group:
    """Those rows of a group, with the columns that only padding uses cut off."""
    whole = rows == list(range(group.lengths_K.shape[0]))
    index = slice(None) if whole else torch.tensor(rows, device=group.lengths_K.device)
    lengths = group.lengths_K[index]
    width = int(lengths.max())
    correction_KT = group.correction_KT
    return Group(
        prompt_L=group.prompt_L,
        tokens_KT=group.tokens_KT[index, :width],
        old_KT=group.old_KT[index, :width],
        lengths_K=lengths,
        majority_K=group.majority_K[index],
        minority_K=group.minority_K[index],
        weight=group.weight,
        dropped=group.dropped,
        correction_KT=correction_KT if correction_KT is None else correction_KT[index, :width],
    )


def _sequences(part: Group) -> Tensor:
    """(K, L+T-1) prompts and responses; the last token predicts nothing that is asked for."""
    n_rows = part.lengths_K.shape[0]
    return torch.cat([part.prompt_L.expand(n_rows, -1), part.tokens_KT[:, :-1]], dim=1)


def _width(parts: Sequence[Group]) -> int:
    return max(part.tokens_KT.shape[1] for part in parts)


def _stack(parts: Sequence[Tensor], width: int) -> Tensor:
    """Rows of all parts, those of two axes padded with zeros on the right up to `width`."""
    if parts[0].ndim == 2:
        parts = [
            part
            if part.shape[1] == width
            else torch.nn.functional.pad(part, (0, width - part.shape[1]))
            for part in parts
        ]
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
