"""Responses that a rule has sampled in addition to the votes: one protocol for all such rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from guard_core import PolicyStreams
from guard_core.rules import Rule
from real.engines.rollouts import Sampling
from real.problems.problem import PromptSet
from real.ranks.distributed import Ranks
from real.settings.config import TrainConfig
from real.update.group import Group
from real.vote.decide import Decided, Fields
from real.vote.read import Responses
from real.vote.sample import Sampler

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a run that further generation needs."""

    config: TrainConfig
    rule: Rule
    prompts: PromptSet
    sampler: Sampler
    sampling: Sampling
    """Of the votes."""
    read: Callable[[Responses], Ints]
    """Responses to (P, V) answer ids, see `Supervisor.read`."""
    ranks: Ranks


class Further:
    """A rule's own generation. This class samples nothing; it is that of most rules.

    For every batch of problems the trainer calls `before`, `ask`, `groups` and, once the batch was
    trained on, `after_step`, in this order and on all ranks.
    """

    n_sampled = 0
    """Tokens that were sampled for the current batch."""

    def begin(self) -> dict[str, Any]:
        """Prepare, once before the first votes; returns facts for the manifest."""
        return {}

    def files(self) -> dict[str, Any]:
        """Return plain values that readers of the run folder want to see, by file name."""
        return {}

    def first(self) -> Fields:
        """Return observations of all problems before training, that labels depend on."""
        return {}

    def before(self, problems_P: Ints, step: int) -> Fields:
        """Sample what labels depend on.

        Args:
            problems_P: (P,) indices of the batch's problems.
            step: number of the batch; the engine holds the weights of the batch before.

        Returns:
            Observations by their names in `guard_core.rules.Observations`.
        """
        return {}

    def ask(self, decided: Decided | None, responses: Responses) -> Decided | None:
        """Sample what rewards depend on, once labels are known.

        Args:
            decided: of the batch; None on ranks that read no answers.
            responses: the votes.

        Returns:
            The decision with what was observed.
        """
        return decided

    def groups(self, decided: Decided | None, streams: PolicyStreams) -> list[list[Group]]:
        """Return (P,) groups of further responses to train on, by problem; empty for none at all.

        Args:
            decided: as returned by `ask`.
            streams: of the voted responses.
        """
        return []

    def after_step(self, step: int) -> None:
        """Follow the weights, which batch `step` has changed."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint."""
        return {}

    def values(self) -> Any:
        """Return the plain values of a checkpoint; None where there is nothing to keep."""
        return None

    def restore(self, tensors: dict[str, Tensor], values: Any) -> None:
        """Take over what `tensors` and `values` returned.

        Raises:
            UserError: they do not fit the run.
        """
