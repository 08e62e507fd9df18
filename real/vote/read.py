"""Responses of a batch: decoded once for all that read them, and turned into groups of the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from guard_core import PolicyStreams
from real.engines.rollouts import Rollouts
from real.model.policy import Policy
from real.update.group import Group


@dataclass(frozen=True)
class Responses:
    """N responses to each of P prompts."""

    problems: Sequence[int]
    """(P,) index of the problem that each prompt belongs to."""
    prompts: Sequence[list[int]]
    """(P,) token ids."""
    rollouts: Rollouts
    """(P, N) sampled responses."""
    policy: Policy
    """The policy whose tokenizer decodes them."""

    @cached_property
    def texts(self) -> list[list[str]]:
        """(P, N) response texts, decoded at the first call."""
        lengths_PN = self.rollouts.lengths_PN
        texts = self.policy.texts(self.rollouts.tokens_PNT.flatten(0, 1), lengths_PN.flatten())
        n = lengths_PN.shape[1]
        return [texts[start : start + n] for start in range(0, len(texts), n)]

    @property
    def n_tokens(self) -> int:
        """Tokens of all responses together."""
        return int(self.rollouts.lengths_PN.sum())

    def groups(self, streams: PolicyStreams) -> list[Group]:
        """Return (P,) groups of the loss, one per prompt.

        Args:
            streams: NumPy arrays; advantages (P, K) of the first K responses, which are trained on.
        """
        n_samples, device = streams.majority.shape[1], self.rollouts.tokens_PNT.device
        return [
            Group(
                prompt_L=torch.tensor(prompt, dtype=torch.long, device=device),
                tokens_KT=self.rollouts.tokens_PNT[row, :n_samples],
                old_KT=self.rollouts.logprobs_PNT[row, :n_samples],
                lengths_K=self.rollouts.lengths_PN[row, :n_samples],
                majority_K=torch.as_tensor(streams.majority[row], device=device).float(),
                minority_K=torch.as_tensor(streams.minority[row], device=device).float(),
                weight=float(streams.weight[row]),
                dropped=bool(streams.drop[row]),
            )
            for row, prompt in enumerate(self.prompts)
        ]
