"""Cost of a rule relative to plain TTRL from its timed steps, and the test of the budget."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from medians import Middle, middle
from rule_parts import GENERATION, StepCost
from stopwatch import Spent

BUDGET = 0.01
"""Of plain TTRL's step; another generation pass is left out."""


class Further(NamedTuple):
    """Passes of the model that plain TTRL does not make, mean of a step."""

    passes: float
    responses: float
    tokens: float
    """Of these responses, as a share of the votes' tokens."""


@dataclass(frozen=True)
class RuleCost:
    """One rule and plain TTRL, timed in the same process."""

    name: str
    steps: tuple[StepCost, ...]
    plain: tuple[StepCost, ...]
    """Plain TTRL's steps on the same batches, in turn with those of the rule."""

    @property
    def added(self) -> Middle:
        """Seconds of CPU by which a step is longer, another generation pass left out."""
        return middle([step.added(but=GENERATION).cpu for step in self.steps])

    @property
    def cpu_share(self) -> Middle:
        """Added CPU time as a share of plain TTRL's step."""
        return middle([own.cpu / whole.cpu for own, whole in self._pairs()])

    @property
    def wall_share(self) -> Middle:
        """Added wall-clock time as a share of plain TTRL's step; it includes waiting."""
        return middle([own.wall / whole.wall for own, whole in self._pairs()])

    @property
    def added_a_token(self) -> float:
        """Seconds of CPU per token of the votes."""
        return self.added.median / statistics.mean(step.tokens_voted for step in self.steps)

    @property
    def generation_share(self) -> float:
        """CPU of further generation passes as a share of plain TTRL's step."""
        pairs = zip(self.steps, self.plain, strict=True)
        return statistics.median(
            step.parts.get(GENERATION, Spent()).cpu / plain.whole.cpu for step, plain in pairs
        )

    @property
    def trained_ratio(self) -> float:
        """Tokens that the update reads, relative to plain TTRL, which rewards other responses."""
        trained = sum(step.tokens_trained for step in self.steps)
        return trained / sum(step.tokens_trained for step in self.plain)

    @property
    def update_ratio(self) -> float:
        """CPU time of that update relative to plain TTRL's."""
        pairs = zip(self.steps, self.plain, strict=True)
        return statistics.median(step.update.cpu / plain.update.cpu for step, plain in pairs)

    @property
    def parts(self) -> Mapping[str, float]:
        """CPU seconds of every part."""
        names = dict.fromkeys(name for step in self.steps for name in step.parts)
        return {
            name: statistics.median(step.parts.get(name, Spent()).cpu for step in self.steps)
            for name in names
        }

    def further(self, kind: str) -> Further | None:
        """Passes of a kind; None where there are none."""
        found = [own for step in self.steps for own in step.passes if own.kind == kind]
        if not found:
            return None
        n, voted = len(self.steps), sum(step.tokens_voted for step in self.steps)
        responses, tokens = sum(own.responses for own in found), sum(own.tokens for own in found)
        return Further(len(found) / n, responses / n, tokens / voted)

    @property
    def over_budget(self) -> bool:
        """More than the budget without another generation pass.

        On the CPU in the median; or on the wall clock beyond noise, since other processes of the
        machine also make waiting.
        """
        if self.further("generation") is not None:
            return False
        return self.cpu_share.median > BUDGET or self.wall_share.low > BUDGET

    @property
    def is_sure(self) -> bool:
        """The budget lies outside of the interval."""
        low, high = self.cpu_share.low, self.cpu_share.high
        return high <= BUDGET or low > BUDGET or self.wall_share.low > BUDGET

    def _pairs(self) -> list[tuple[Spent, Spent]]:
        pairs = zip(self.steps, self.plain, strict=True)
        return [(step.added(but=GENERATION), plain.whole) for step, plain in pairs]
