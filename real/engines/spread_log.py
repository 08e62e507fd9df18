"""Entropy and self-certainty of single tokens, as an engine tells them, to means of responses.

An engine that decodes many responses at once may tell of a token twice, or of one that it then
drops, so what is told is kept with its place and summed up once the responses are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from real.engines.rollouts import EngineError
from real.engines.token_spread import spread_of_logits

Ints = NDArray[np.int64]
_REMEDY = "take another version of vLLM, or engine = 'transformers'"


class SpreadLog:
    """What was told since `watch`: two numbers a token, never a tensor over tokens and words."""

    def __init__(self) -> None:
        """Nobody is watched."""
        self.row_of: dict[int, int] = {}
        """Which of the R watched responses a name belongs to."""
        self._told: list[tuple[Ints, Ints, Tensor]] = []

    @property
    def watching(self) -> bool:
        """Whether anything is to be told."""
        return bool(self.row_of)

    def watch(self, names: Iterable[int]) -> None:
        """Start over with R responses, named by different numbers."""
        self.row_of = {name: row for row, name in enumerate(names)}
        self._told = []

    def look(
        self, rows_B: Ints, places_B: Ints, logits_BA: Tensor, temperature: float = 1.0
    ) -> None:
        """Take in the distributions that one token of each of B responses is drawn from.

        Args:
            rows_B: (B,) which responses; -1 for one that is not watched.
            places_B: (B,) the token's place in its response. The last telling of a place counts;
                places below 0 or after the response's end do not.
            logits_BA: (B, A) logits, on any device; left as they are.
            temperature: divides them.

        Raises:
            EngineError: there are more or fewer logits than responses.
        """
        if len(logits_BA) != len(rows_B):
            raise EngineError(
                f"engine: shows logits of {len(logits_BA)} tokens where {len(rows_B)} responses "
                f"draw one each, so no entropies can be told; {_REMEDY}"
            )
        self._told.append((rows_B, places_B, spread_of_logits(logits_BA, temperature)))

    def means(self, lengths_R: Sequence[int] | Ints) -> tuple[Tensor, Tensor]:
        """Mean entropy and mean self-certainty of the watched responses, which is the end of it.

        Args:
            lengths_R: (R,) their tokens, each at least 1, the end token included.

        Returns:
            (R,) float64 and (R,) float64, in nats.

        Raises:
            EngineError: of some token nothing was told.
        """
        lengths = np.asarray(lengths_R)
        told, self._told, self.row_of = self._told, [], {}
        none = np.zeros(0, dtype=np.int64)
        rows = np.concatenate([none, *(rows for rows, _, _ in told)])
        places = np.concatenate([none, *(places for _, places, _ in told)])
        # Responses that are not watched, -1, get the length behind those of the watched.
        counted = (places >= 0) & (places < np.append(lengths, 0)[rows])
        starts = np.cumsum(lengths) - lengths
        last = np.full(lengths.sum(), -1)
        which = np.flatnonzero(counted)
        np.maximum.at(last, starts[rows[which]] + places[which], which)
        if (n_missing := int((last < 0).sum())) > 0:
            raise EngineError(
                f"engine: told the entropies of {len(last) - n_missing} tokens of {len(last)}; "
                f"{_REMEDY}"
            )
        values_2 = torch.cat([values for _, _, values in told], dim=1).cpu().double().numpy()
        means_2R = np.add.reduceat(values_2[:, last], starts, axis=1) / lengths
        entropy_R, certainty_R = torch.from_numpy(means_2R)
        return entropy_R, certainty_R
