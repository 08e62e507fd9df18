"""The trained responses to one problem, as the loss wants them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Group:
    """The K trained responses to one problem."""

    prompt_L: Tensor
    """(L,) token ids, at least one."""
    tokens_KT: Tensor
    """(K, T) response token ids, padded on the right; the end token is part of the response."""
    old_KT: Tensor
    """(K, T) log-probs of those tokens under the policy that sampled them, the denominator of the
    ratio. A token whose value is not finite is in neither the loss nor its denominator."""
    lengths_K: Tensor
    """(K,) response lengths in tokens, at least 1."""
    majority_K: Tensor
    """(K,) first advantage stream."""
    minority_K: Tensor
    """(K,) second advantage stream."""
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
    def real_KT(self) -> Tensor:
        """(K, T) bool, the tokens that are no padding."""
        places = torch.arange(self.tokens_KT.shape[1], device=self.lengths_K.device)
        return places < self.lengths_K[:, None]

    @property
    def counted_KT(self) -> Tensor:
        """(K, T) bool, the tokens that are no padding and have a finite log-prob."""
        return self.real_KT & self.old_KT.isfinite()


def kept(groups: Sequence[Group], drop_uniform: bool) -> list[Group]:
    """The groups that stay in the mini-batch and in its denominator."""
    return [g for g in groups if not g.dropped and not (drop_uniform and g.silent)]


def without_rows(groups: Sequence[Group], rows: Iterable[tuple[int, int]]) -> list[Group]:
    """Copies of the groups without the rows `(index of the group, row)`."""
    left = list(groups)
    for index, row in rows:
        old_KT = left[index].old_KT.clone()
        old_KT[row] = torch.nan
        left[index] = replace(left[index], old_KT=old_KT)
    return left
