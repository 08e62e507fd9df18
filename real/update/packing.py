"""Rows of a mini-batch cut into forward passes under a token budget, and laid out for the model.

* padded: rows of like length stacked, their padding on the right. Under causal attention nothing
  earlier sees it, so no mask is made, which lets torch's attention take its fastest kernel. At 32
  rows of 250 to 3,150 tokens 4.5 % are padding, against 45 % stacked as they come.
* packed: rows one behind the other in a sequence whose positions start again at 0, without padding.
  Only flash-attention kernels know from the positions where a row ends; torch's own would get a
  dense mask: on a CPU, 8 rows of 287 tokens took 2.8 times as long packed as padded.
* bundled: a prompt and several responses to it in one sequence, in which each of their prefixes
  stands once: short answers often begin alike. A dense mask lets a token see its own prefix alone,
  which pays where prompts are longer than responses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from operator import itemgetter
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True, slots=True)
class Group:
    """The K trained responses to one problem."""

    prompt_L: Tensor
    """(L,) token ids, at least one."""
    tokens_KT: Tensor
    """(K, T) response token ids, padded on the right; the end token is part of the response."""
    old_KT: Tensor
    """(K, T) log-probs of those tokens under the policy that sampled them, from which the ratio
    starts. Tokens of values that are not finite are in neither the loss nor its denominator."""
    lengths_K: Tensor
    """(K,) response lengths in tokens, at least 1."""
    majority_K: Tensor
    """(K,) first advantage stream; `minority_K` is the second."""
    minority_K: Tensor
    weight: float = 1.0
    """Factor on the problem's policy loss."""
    dropped: bool = False
    """The problem leaves the batch: no forward, no backward, no share in the denominator."""
    correction_KT: Tensor | None = None
    """(K, T) factors on the tokens' policy loss, such as truncated importance weights between the
    engine's and the trainer's log-probs; None for 1 everywhere."""

    @property
    def silent(self) -> bool:
        """All advantages are zero, so the gradient of the policy loss is exactly zero."""
        return not bool(self.majority_K.any() or self.minority_K.any())

    @property
    def trains(self) -> bool:
        """The problem is not dropped, and an advantage is not zero."""
        return not (self.dropped or self.silent)

    @property
    def real_KT(self) -> Tensor:
        """(K, T) bool, the tokens that are no padding."""
        places = torch.arange(self.tokens_KT.shape[1], device=self.lengths_K.device)
        return places < self.lengths_K[:, None]

    @property
    def counted_KT(self) -> Tensor:
        """(K, T) bool, the tokens that are no padding and have a finite log-prob."""
        return self.real_KT & self.old_KT.isfinite()

    @property
    def row_counts(self) -> RowCounts:
        """Tokens of each row that are in the loss."""
        return self.counted_KT.sum(dim=1).tolist()


def unpaid(prompt: Sequence[int], tokens_KT: Tensor, old_KT: Tensor, lengths_K: Tensor) -> Group:
    """Return responses that are scored alone, without advantages."""
    device = tokens_KT.device
    prompt_L = torch.tensor(prompt, dtype=torch.long, device=device)
    nothing_K = torch.zeros(len(lengths_K), device=device)
    return Group(prompt_L, tokens_KT, old_KT, lengths_K, nothing_K, nothing_K)


def without_rows(groups: Sequence[Group], rows: Iterable[tuple[int, int]]) -> list[Group]:
    """Copies of the groups without the rows `(index of the group, row)`."""
    left = list(groups)
    for index, row in rows:
        old_KT = left[index].old_KT.clone()
        old_KT[row] = torch.nan
        left[index] = replace(left[index], old_KT=old_KT)
    return left


Layout = Literal["padded", "packed"]
Place = tuple[int, int]
"""Place of a group in the mini-batch, and row in the group."""
RowCounts = list[int]
"""(K,) tokens of each row that are in the loss."""

PASS_TOKENS = 512
"""A further forward and backward pass is taken to cost as much as so many tokens of padding."""

BUNDLE_BELOW = 2 / 3
"""Responses are bundled below this share of the estimated cost, if `PASS_TOKENS` are saved too."""


class PackedRow(NamedTuple):
    """One sequence of a pass: a prompt with one response, or with a bundle of them."""

    places: tuple[Place, ...]
    length: int
    """Tokens of prompt and responses but for the last of each; a `plan` counts shared ones once."""


def plan(
    groups: Sequence[Group],
    counts: Sequence[RowCounts],
    most: int,
    layout: Layout = "padded",
    width: int | None = None,
    world: int = 1,
) -> tuple[list[list[Place]], int, int]:
    """Return the passes of a mini-batch, a multiple of `world`, with rows in their order.

    Also the most responses behind one prompt, and the tokens of all passes without padding.
    Rank r of `world` runs `passes[r::world]`; an empty list is a pass in which it has nothing to
    do. Rows are dealt so that ranks get like lengths, and cut into passes of at `most` so many
    tokens, padding included, which one row may exceed. Rows without a token among the `counts`
    (`row_counts`) are left out. With the `width` of hidden states responses share a prompt where
    that is cheapest, in padded sequences.
    """
    bundle = 1 if width is None else _bundle_size(groups, counts, most, width, world)
    rows = _rows(groups, counts, bundle)
    for number, row in enumerate(rows if bundle > 1 else ()):
        # Prefixes that the responses of a bundle share count once.
        group = groups[row.places[0][0]]
        _, new_DT, _ = _prefixes(take(group, [k for _, k in row.places]))
        rows[number] = row._replace(length=group.prompt_L.shape[0] + int(new_DT.sum()))
    rows.sort(key=lambda row: (-row.length, row.places))
    # Back and forth over the ranks, so that no rank gets the longer row every time.
    turns = [*range(world), *reversed(range(world))]
    shares: list[list[PackedRow]] = [[] for _ in range(world)]
    for number, row in enumerate(rows):
        shares[turns[number % len(turns)]].append(row)
    cut = _cut_packed if layout == "packed" and bundle == 1 else _cut_padded
    cuts = [cut(share, most) for share in shares]
    passes = [
        sorted(place for row in rows_of_pass for place in row.places)
        for turn in zip_longest(*cuts, fillvalue=())
        for rows_of_pass in turn
    ]
    return passes, bundle, sum(row.length for row in rows)


def bundles_of(places: Sequence[Place], bundle: int) -> list[list[Place]]:
    """Sorted places cut into those that stand together: a problem's, at most `bundle` of them."""
    problems = [list(rows) for _, rows in groupby(places, key=itemgetter(0))]
    return [rows[i : i + bundle] for rows in problems for i in range(0, len(rows), bundle)]


def _bundle_size(
    groups: Sequence[Group], counts: Sequence[RowCounts], most: int, width: int, world: int
) -> int:
    """The cheapest number of responses behind one prompt, as if none began like another."""
    alone = _cost(_rows(groups, counts), width)
    best, least = 1, min(BUNDLE_BELOW * alone, alone - PASS_TOKENS)
    size = max((len(places) for places in counts), default=1)
    while size > 1:
        rows = _rows(groups, counts, size)
        fits = all(row.length <= most for row in rows) and len(rows) >= world
        if fits and (cost := _cost(rows, width)) < least:
            best, least = size, cost
        size = -(-size // 2)
    return best


def _cost(rows: Sequence[PackedRow], width: int) -> float:
    """Tokens, with those added whose cost attention between all pairs of a sequence equals."""
    # A layer of width H multiplies some 12 H^2 weights with a token; a pair takes 2 H products.
    return sum(row.length * (1 + row.length / (6 * width)) for row in rows)


def _rows(groups: Sequence[Group], counts: Sequence[RowCounts], bundle: int = 1) -> list[PackedRow]:
    rows: list[PackedRow] = []
    for index, group in enumerate(groups):
        lengths = group.lengths_K.tolist()
        places = [(index, row) for row in range(len(lengths)) if counts[index][row]]
        for bundled in bundles_of(places, bundle):
            n_tokens = sum(lengths[row] - 1 for _, row in bundled)
            rows.append(PackedRow(tuple(bundled), group.prompt_L.shape[0] + n_tokens))
    return rows


def _prefixes(part: Group) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct inputs of responses, sorted, so that the tree of their prefixes is depth first.

    Returns:
        (D, T) their tokens, -1 behind them; (D, T) bool, tokens whose prefix is in no row above;
        (K,) the row of each response.
    """
    places_T = torch.arange(part.tokens_KT.shape[1], device=part.tokens_KT.device)
    inputs_KT = part.tokens_KT.where(places_T < part.lengths_K[:, None] - 1, -1)
    tokens_DT, which_K = inputs_KT.unique(dim=0, return_inverse=True)
    new_DT = tokens_DT >= 0
    new_DT[1:] &= (tokens_DT[1:] != tokens_DT[:-1]).cumsum(1) > 0
    return tokens_DT, new_DT, which_K


def _cut_padded(rows: list[PackedRow], most: int) -> list[list[PackedRow]]:
    """Cut rows, longest first, where padding and passes cost least, by dynamic programming."""
    if not rows:
        return []
    lengths = np.array([row.length for row in rows])
    if lengths[0] == lengths[-1]:
        size = max(1, most // int(lengths[0]))
        return [rows[i : i + size] for i in range(0, len(rows), size)]
    cost = np.zeros(len(rows) + 1)
    cut = np.zeros(len(rows) + 1, dtype=int)
    for end in range(1, len(rows) + 1):
        tokens = (end - np.arange(end)) * lengths[:end]
        tokens_allowed = np.where(tokens <= most, tokens, np.inf)
        tokens_allowed[-1] = tokens[-1]
        total = cost[:end] + tokens_allowed + PASS_TOKENS
        cut[end] = int(total.argmin())
        cost[end] = total[cut[end]]
    pieces, end = [], len(rows)
    while end:
        pieces.append(rows[cut[end] : end])
        end = cut[end]
    return pieces[::-1]


def _cut_packed(rows: list[PackedRow], most: int) -> list[list[PackedRow]]:
    """Fill passes with rows, longest first, each into the first pass with room for it."""
    pieces: list[list[PackedRow]] = []
    room: list[int] = []
    for row in rows:
        fits = next((i for i, left in enumerate(room) if row.length <= left), None)
        if fits is None:
            pieces.append([row])
            room.append(most - row.length)
        else:
            pieces[fits].append(row)
            room[fits] -= row.length
    return pieces


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Input of one forward pass, and which of its outputs are asked for."""

    input_ids_BS: Tensor
    """(B, S) token ids; B = 1 when packed."""
    position_ids_BS: Tensor | None
    """(B, S) when packed or bundled; None when padded: positions count from the left as always."""
    index_n: Tensor | int
    """(n,) places in the flattened (B*S,) outputs that predict the n scored tokens; or how many at
    the end of every row do."""
    targets_n: Tensor
    """(n,) ids of those tokens."""
    ends_BS: Tensor | None = None
    """(B, S) when bundled: where each token's continuations end, which alone see it. They stand
    behind it without a gap."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """R rows of a mini-batch, ready for one forward and one backward pass.

    T is their longest response, n the scored tokens: those of `counted_RT`, or all R*T of them; in
    bundles one behind the same prefix once for all rows.
    """

    rows: PackedRows
    counted_RT: Tensor
    """(R, T) bool, tokens of the loss."""
    parts: tuple[Group, ...]
    """The rows as groups, one per problem or bundle, columns cut at the longest response."""
    score_of_counted: Tensor | None = None
    """In bundles which of the n scores each token of `counted_RT` has."""

    def stacked(self, name: str) -> Tensor:
        """(R, T) or (R,) values of that field of all rows; 1 where a problem has None."""
        pairs = [(getattr(part, name), part.old_KT) for part in self.parts]
        full = [torch.ones_like(old) if values is None else values for values, old in pairs]
        return _stack(full, self.counted_RT.shape[1])

    def unfold(self, values_n: Tensor) -> Tensor:
        """(R, T) values of the scored tokens at their places, 0 elsewhere."""
        if isinstance(self.rows.index_n, int):
            return values_n.view(self.counted_RT.shape)
        if self.score_of_counted is not None:
            values_n = values_n[self.score_of_counted]
        return values_n.new_zeros(self.counted_RT.shape).masked_scatter(self.counted_RT, values_n)


def micro_batch(
    groups: Sequence[Group],
    places: Sequence[Place],
    layout: Layout = "padded",
    most_padded: int = 0,
    bundle: int = 1,
) -> MicroBatch:
    """The rows at `places`, which are sorted, laid out for one pass.

    Rows of one problem with at most `most_padded` response tokens are scored padding and all:
    picking the counted ones out would cost more. Above 1 `bundle` takes the place of `layout`.
    """
    together = bundles_of(places, bundle if bundle > 1 else len(places))
    parts = tuple(take(groups[rows[0][0]], [row for _, row in rows]) for rows in together)
    width = max(part.tokens_KT.shape[1] for part in parts)
    counted_RT = _stack([part.counted_KT for part in parts], width)
    if bundle > 1:
        rows, score_of_counted = _lay_out_bundles(parts, counted_RT)
        return MicroBatch(rows, counted_RT, parts, score_of_counted)
    if layout == "padded" and len(parts) == 1 and counted_RT.numel() <= most_padded:
        tokens_KT = parts[0].tokens_KT
        rows = PackedRows(_sequences(parts[0]), None, tokens_KT.shape[1], tokens_KT.flatten())
    else:
        rows = _lay_out(parts, counted_RT, layout)
    return MicroBatch(rows, counted_RT, parts)


def _lay_out(parts: Sequence[Group], scored_RT: Tensor, layout: Layout) -> PackedRows:
    """Input ids of some rows and where the scores of `scored_RT` are to be found."""
    device, width = scored_RT.device, scored_RT.shape[1]
    size = max(part.prompt_L.shape[0] + part.tokens_KT.shape[1] - 1 for part in parts)
    ids_RS = _stack([_sequences(part) for part in parts], size)
    starts_R = torch.arange(len(ids_RS), device=device) * size
    positions = None
    prompts = [n for part in parts for n in [part.prompt_L.shape[0]] * part.lengths_K.shape[0]]
    prompts_R = torch.tensor(prompts, device=device)
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


def _lay_out_bundles(parts: Sequence[Group], scored_RT: Tensor) -> tuple[PackedRows, Tensor]:
    """As `_lay_out`, with every part in one sequence; and which of the scores each token has."""
    width = scored_RT.shape[1]
    sequences, indices = zip(*(_bundle(part, width) for part in parts), strict=True)
    size = max(sequence_3S.shape[1] for sequence_3S in sequences)
    if scored_RT.is_cuda:  # whose kernels would copy a mask of another width, for each layer
        size = -(-size // 16) * 16
    # Padding is token 0 at position 0, seen by padding alone.
    fill = torch.tensor([[0], [0], [size]], device=scored_RT.device)
    padded = [torch.cat([s_3S, fill.expand(-1, size - s_3S.shape[1])], dim=1) for s_3S in sequences]
    ids_BS, positions_BS, ends_BS = torch.stack(padded, dim=1)
    index_RT = torch.cat([index_KT + b * size for b, index_KT in enumerate(indices)])
    targets_RT = _stack([part.tokens_KT for part in parts], width)
    pairs = torch.stack([index_RT[scored_RT], targets_RT[scored_RT]])
    (index_n, targets_n), score_of = pairs.unique(dim=1, return_inverse=True)
    return PackedRows(ids_BS, positions_BS, index_n, targets_n, ends_BS), score_of


def _bundle(part: Group, width: int) -> tuple[Tensor, Tensor]:
    """(3, S) tokens, positions and ends of a bundle; (K, width) where its scores come from."""
    tokens_DT, new_DT, which_K = _prefixes(part)
    prompt_L, L, device = part.prompt_L, part.prompt_L.shape[0], part.prompt_L.device
    count_DT = new_DT.flatten().cumsum(0).view(new_DT.shape)
    size = L + int(count_DT[-1, -1])
    # A token that is not new stands where the last row above that differs from its own has it.
    place_DT = L - 1 + count_DT.where(new_DT, 0).cummax(0).values
    used_DT = tokens_DT >= 0
    ends_DT = L + count_DT[:, -1:].expand_as(used_DT)
    ends_S = torch.full((size,), size, device=device)
    ends_S.scatter_reduce_(0, place_DT[used_DT], ends_DT[used_DT], "amax", include_self=False)
    positions_S = torch.cat([torch.arange(L, device=device), L + new_DT.nonzero()[:, 1]])
    sequence_3S = torch.stack([torch.cat([prompt_L, tokens_DT[new_DT]]), positions_S, ends_S])
    # The prompt's last token predicts the first of every response.
    beyond = width - place_DT.shape[1] - 1
    return sequence_3S, pad(place_DT[which_K], (1, beyond), value=L - 1)


def take(group: Group, rows: list[int]) -> Group:
    """Those rows of a group, with the columns that only padding uses cut off."""
    whole = rows == list(range(group.lengths_K.shape[0]))
    index = slice(None) if whole else torch.tensor(rows, device=group.lengths_K.device)
    width = int(group.lengths_K[index].max())
    correction_KT = group.correction_KT
    return replace(
        group,
        tokens_KT=group.tokens_KT[index, :width],
        old_KT=group.old_KT[index, :width],
        lengths_K=group.lengths_K[index],
        majority_K=group.majority_K[index],
        minority_K=group.minority_K[index],
        correction_KT=correction_KT if correction_KT is None else correction_KT[index, :width],
    )


def _sequences(part: Group) -> Tensor:
    """(K, L+T-1) prompts and responses; the last token predicts nothing that is asked for."""
    n_rows = part.lengths_K.shape[0]
    return torch.cat([part.prompt_L.expand(n_rows, -1), part.tokens_KT[:, :-1]], dim=1)


def _stack(parts: Sequence[Tensor], width: int) -> Tensor:
    """Rows of all parts, those of two axes padded with zeros on the right up to `width`."""
    if parts[0].ndim == 2:
        parts = [pad(p, (0, width - p.shape[1])) if p.shape[1] < width else p for p in parts]
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
