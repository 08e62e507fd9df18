"""`sim.world.sampling` on tensors: V answers per problem from the same uniform numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from guard_core import Votes
from sim.torch_engine.words import offsets, unit


class Ballot:
    """Draws the votes of a batch."""

    def __init__(
        self, n_votes: int, n_samples: int, parseable: float, device: torch.device
    ) -> None:
        """Take V, K, the chance of a readable answer and where the tensors are."""
        self._n_votes, self._n_samples, self._parseable = n_votes, n_samples, parseable
        self._offset_V = offsets(torch.arange(n_votes, device=device))
        self._one = torch.ones((), dtype=torch.int32, device=device)

    def draw(self, key_RP: Tensor, p_RPA: Tensor) -> Votes:
        """Draw the votes, all at once.

        Args:
            key_RP: keys of purpose, epoch and problem (`sim.torch_engine.words`).
            p_RPA: answer probabilities; rows sum to one.

        Returns:
            Counts as int32.
        """
        u_RPV = unit(key_RP[..., None], self._offset_V)
        # An answer's number is that of the bounds up to its uniform number; A is unparseable.
        answer_RPV = torch.searchsorted(self._bounds(p_RPA), u_RPV, right=True)
        n_answers, K = p_RPA.shape[-1], self._n_samples
        none = torch.zeros(
            (*p_RPA.shape[:-1], n_answers + 1), dtype=torch.int32, device=u_RPV.device
        )
        samples = self._add(none, answer_RPV[..., :K])
        counts = self._add(samples.clone(), answer_RPV[..., K:])
        return Votes(counts[..., :n_answers], samples[..., :n_answers], self._n_votes, K)

    def _bounds(self, p_RPA: Tensor) -> Tensor:
        """Cumulated probabilities, added in the order of `sim.world.sampling`."""
        share_RPA = p_RPA if self._parseable == 1 else self._parseable * p_RPA
        bounds = [share_RPA[..., 0]]
        for a in range(1, p_RPA.shape[-1] - 1):
            bounds.append(bounds[-1] + share_RPA[..., a])
        bounds.append(torch.full_like(bounds[0], self._parseable))
        return torch.stack(bounds, dim=-1)

    def _add(self, counts: Tensor, answers: Tensor) -> Tensor:
        return counts.scatter_add_(-1, answers, self._one.expand(answers.shape))
