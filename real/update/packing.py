"""Chosen rows of a mini-batch laid out for one forward pass; the layouts are those of `passes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from real.update.group import Group
from real.update.passes import Layout, Place, bundles_of


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Input of one forward pass, and which of its outputs are asked for."""

    input_ids_BS: Tensor
    """(B, S) token ids; B = 1 when packed."""
    position_ids_BS: Tensor | None
    """(B, S) when packed or bundled; None when padded: positions count from the left as always."""
    index_n: Tensor | int
    """(n,) places in the flattened (B*S,) outputs that predict the n scored tokens; or a number:
    so many outputs at the end of every row do."""
    targets_n: Tensor
    """(n,) ids of those tokens."""
    segments_BS: Tensor | None = None
    """(B, S) when bundled: 0 in the prompt, 1, 2 and so on in the responses behind it, -1 in
    padding. A token sees what stands before it in the prompt and in its own segment."""


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
    """The rows as groups, one per problem or bundle, columns cut at the longest response."""

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
        """Rows of every part."""
        return [part.lengths_K.shape[0] for part in self.parts]


def micro_batch(
    groups: Sequence[Group],
    places: Sequence[Place],
    layout: Layout = "padded",
    most_padded: int = 0,
    bundle: int = 1,
) -> MicroBatch:
    """The rows at `places`, which are sorted, laid out for one pass.

    Args:
        groups: of the mini-batch.
        places: of the rows.
        layout: of the pass.
        most_padded: rows of one problem with at most so many response tokens are scored padding
            and all: picking the counted ones out would cost more than it saves.
        bundle: most responses behind one prompt; above 1 it takes the place of `layout`.
    """
    # Sorted places: rows of a problem stand together.
    parts = _parts(groups, bundles_of(places, bundle if bundle > 1 else len(places)))
    counted_RT = _stack([part.counted_KT for part in parts], _width(parts))
    if bundle > 1:
        rows = _lay_out_bundles(parts, counted_RT)
    elif layout == "padded" and len(parts) == 1 and counted_RT.numel() <= most_padded:
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


def _lay_out_bundles(parts: Sequence[Group], scored_RT: Tensor) -> PackedRows:
    """As `lay_out`, with every part in one sequence behind its prompt."""
    width = scored_RT.shape[1]
    sequences, indices = zip(*(_bundle(part, width) for part in parts), strict=True)
    size = max(sequence_3S.shape[1] for sequence_3S in sequences)
    # Padding is token 0 at position 0, in a segment of its own.
    fill = torch.tensor([[0], [0], [-1]], device=scored_RT.device)
    padded = [torch.cat([s_3S, fill.expand(-1, size - s_3S.shape[1])], dim=1) for s_3S in sequences]
    ids_BS, positions_BS, segments_BS = torch.stack(padded, dim=1)
    index_RT = torch.cat([index_KT + b * size for b, index_KT in enumerate(indices)])
    targets_RT = _stack([part.tokens_KT for part in parts], width)
    index_n, targets_n = index_RT[scored_RT], targets_RT[scored_RT]
    return PackedRows(ids_BS, positions_BS, index_n, targets_n, segments_BS)


def _bundle(part: Group, width: int) -> tuple[Tensor, Tensor]:
    """(3, S) tokens, positions and segments of a bundle; (K, width) where its scores come from."""
    prompt_L, lengths_K = part.prompt_L, part.lengths_K
    n_prompt, device = prompt_L.shape[0], prompt_L.device
    places_T = torch.arange(part.tokens_KT.shape[1], device=device)
    used_KT = places_T < lengths_K[:, None] - 1
    segments_K1 = torch.arange(1, len(lengths_K) + 1, device=device)[:, None]
    responses = (part.tokens_KT, n_prompt + places_T, segments_K1)
    prompt = (prompt_L, torch.arange(n_prompt, device=device), torch.zeros_like(prompt_L))
    sequence_3S = torch.stack(
        [
            torch.cat([first, rest.expand_as(used_KT)[used_KT]])
            for first, rest in zip(prompt, responses, strict=True)
        ]
    )
    ends_K = n_prompt + (lengths_K - 1).cumsum(0)
    index_KT = (ends_K - lengths_K)[:, None] + torch.arange(width, device=device)
    index_KT[:, 0] = n_prompt - 1  # the prompt's last token predicts the first of every response
    return sequence_3S, index_KT


def _parts(groups: Sequence[Group], together: Sequence[Sequence[Place]]) -> tuple[Group, ...]:
    """The chosen rows as groups, one for those that stand together."""
    return tuple(_take(groups[rows[0][0]], [row for _, row in rows]) for rows in together)


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
