"""An engine with scripted answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from shapes import MEAN_TOKENS, Setup

from real.engines.rollouts import Engine, Prompts, Rollouts, Sampling, Stages
from real.tiny.vocabulary import IDS, VOCABULARY_SIZE

_BOX = (IDS["\\boxed{"], IDS["3"], IDS["}"])
_OTHER = IDS["7"]


class Scripted:
    """An engine whose responses end with scripted answers: 3 in three of five, else 7.

    Without an engine inside, tokens and lengths are drawn as well, and nothing is computed.
    """

    def __init__(self, setup: Setup, vocabulary: int, inside: Engine | None = None) -> None:
        """Wrap an engine, or take the place of one."""
        self.inside, self.version = inside, 0
        self.queues = inside is None or inside.queues
        self._vocabulary, self._mean = vocabulary, setup.pick(MEAN_TOKENS, 16)

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        """Sample, and write the answers over the last tokens, whose log-probs count as unknown."""
        if self.inside is not None:
            rollouts = self.inside.sample(prompts, n, sampling, generator)
        else:
            rollouts = self._drawn(len(prompts), n, sampling.max_tokens)
        tokens_PNT, lengths_PN = rollouts.tokens_PNT, rollouts.lengths_PN
        box_3 = torch.tensor(_BOX, device=tokens_PNT.device).expand(*lengths_PN.shape, 3).clone()
        others_N = torch.arange(n, device=tokens_PNT.device) % 5 >= 3
        box_3[:, others_N, 1] = _OTHER
        places_3 = (lengths_PN - 3).clamp(min=0)[..., None] + torch.arange(
            3, device=tokens_PNT.device
        )
        logprobs_PNT = rollouts.logprobs_PNT.scatter(
            2, places_3, torch.full_like(places_3, torch.nan, dtype=torch.float32)
        )
        return replace(
            rollouts, tokens_PNT=tokens_PNT.scatter(2, places_3, box_3), logprobs_PNT=logprobs_PNT
        )

    def release(self) -> None:
        """Free the engine's memory."""
        if self.inside is not None:
            self.inside.release()

    def update_weights(self, model: Any, version: int) -> Stages:
        """Hand the weights over."""
        self.version = version
        return {} if self.inside is None else self.inside.update_weights(model, version)

    def close(self) -> None:
        """Close the engine."""
        if self.inside is not None:
            self.inside.close()

    def _drawn(self, n_prompts: int, n: int, longest: int) -> Rollouts:
        draws = torch.Generator().manual_seed(self.version)
        lengths_PN = torch.empty(n_prompts, n).exponential_(1 / self._mean, generator=draws)
        lengths_PN = lengths_PN.long().clamp(4, longest)
        shape = (*lengths_PN.shape, int(lengths_PN.max()))
        tokens_PNT = torch.randint(VOCABULARY_SIZE, self._vocabulary, shape, generator=draws)
        logprobs_PNT = torch.full(shape, -torch.tensor(self._vocabulary).log().item())
        return Rollouts(tokens_PNT, logprobs_PNT, lengths_PN, lengths_PN < longest, self.version)
