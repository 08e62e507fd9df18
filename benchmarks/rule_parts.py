"""Time that a rule adds to one step of the trainer, measured inside the step.

Two whole steps differ by more than a rule costs, whatever the rule. So the functions of a step
that work for the rule alone are timed where the step calls them, and the parts of one step add up
to it. Where a rule replaces work of plain TTRL, that work is also done once,
and only the difference is the rule's; what the repetition cost is no part of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch

from stopwatch import Spent, Stopwatch

import real.trainer
import real.vote.decide
import real.vote.observe
from guard_core import Guard, group_advantages, policy_streams
from guard_core.rules import Need
from real.engines.token_stats import RunningStats
from real.engines.transformers_engine import Samples, TransformersEngine
from real.record.batches import Batch
from real.run import Run
from real.update.optimizer import PolicyOptimizer
from real.vote.decide import Decided, Supervisor
from real.vote.judge import Judge
from real.vote.observe import Observer
from real.vote.second import SecondVotes, Teacher

GENERATION = "generation"
"""The part that is another generation pass, with what its responses' answers cost to read."""
_STEP, _UPDATE, _INSTEAD = "step", "update", "instead of "
_TOGETHER = frozenset({Need.ENTROPY, Need.CERTAINTY})
"""Observed in one pass."""
_OWN: tuple[tuple[Any, str, str], ...] = (
    (Samples, "observe", "stats"),
    (RunningStats, "means", "stats"),
    (SecondVotes, "before", GENERATION),
    (SecondVotes, "groups", "further groups"),
    (Judge, "ask", GENERATION),
    (Judge, "groups", "further groups"),
    (Supervisor, "_observations", "draws"),
    (Supervisor, "_scores", "score"),
    (real.vote.decide, "weighed", "weigh"),
    (Teacher, "after_step", "after step"),
    (PolicyOptimizer, "step", _UPDATE),
)
"""The object that holds a function, its name, and the part that it belongs to."""


class Pass(NamedTuple):
    """A pass of the model that plain TTRL does not make."""

    kind: str
    """`generation` or `forward`."""
    responses: int
    tokens: int
    """Of the responses; those of prompts are not counted."""


@dataclass(frozen=True)
class StepCost:
    """One step under a rule."""

    parts: Mapping[str, Spent]
    """Time that the rule adds, by part."""
    rest: Spent
    """The step without that; with an update on those responses that the rule rewards."""
    update: Spent
    """Part of the rest."""
    passes: tuple[Pass, ...]
    tokens_voted: int
    tokens_trained: int

    @property
    def whole(self) -> Spent:
        """The step."""
        return self.rest.plus(self.added())

    def added(self, but: str = "") -> Spent:
        """The sum of the parts, one of them left out."""
        found = Spent()
        for name, spent in self.parts.items():
            found = found if name == but else found.plus(spent)
        return found


def timed_step(run: Run, batch: Batch) -> StepCost:
    """One real step of `real.trainer.train_batch`, and what of it is the rule's."""
    watch, passes = Stopwatch(), []
    with _watched(watch, passes), watch.part(_STEP):
        _, row = real.trainer.train_batch(run, batch, None)
    spent = dict(watch.parts)
    rest, update = spent.pop(_STEP), spent.pop(_UPDATE, Spent())
    parts: dict[str, Spent] = {}
    for name, own in spent.items():
        if name.startswith(_INSTEAD):
            rest = rest.plus(own)
        else:
            parts[name] = own.minus(spent.get(_INSTEAD + name, Spent()))
    votes, *further = passes
    return StepCost(
        parts, rest.plus(update), update, tuple(further), votes.tokens, int(row["tokens"])
    )


@contextmanager
def _watched(watch: Stopwatch, passes: list[Pass]) -> Iterator[None]:
    with ExitStack() as stack:
        for place, name, part in _OWN:
            own = _timed(getattr(place, name), watch, part)
            stack.enter_context(patch.object(place, name, own))
        for place, name, make in (
            (Observer, "observe", _each_need),
            (real.trainer, "pay", _pay),
            (Guard, "step", _label),
        ):
            stack.enter_context(patch.object(place, name, make(getattr(place, name), watch)))
        for place, name, count in (
            (TransformersEngine, "sample", _generated),
            (real.vote.observe, "group_stats", _scored),
        ):
            stack.enter_context(patch.object(place, name, count(getattr(place, name), passes)))
        yield


def _timed(function: Callable[..., Any], watch: Stopwatch, part: str) -> Callable[..., Any]:
    def timed(*arguments: Any, **options: Any) -> Any:
        with watch.part(part):
            return function(*arguments, **options)

    return timed


def _each_need(observe: Callable[..., Any], watch: Stopwatch) -> Callable[..., Any]:
    """Every observation by itself."""

    def timed(observer: Observer, responses: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        needs = observer.needs
        for own in (*(frozenset({need}) for need in sorted(needs - _TOGETHER)), needs & _TOGETHER):
            if own:
                with watch.part(" + ".join(sorted(own))):
                    found |= observe(observer, responses, own)
        return found

    return timed


def _pay(pay: Callable[..., Any], watch: Stopwatch) -> Callable[..., Any]:
    """Plain TTRL would pay as well."""

    def timed(rule: Any, decided: Decided, config: Any) -> Any:
        with watch.part("pay"):
            paid = pay(rule, decided, config)
        with watch.part(_INSTEAD + "pay"):
            obs, decision = decided.obs, decided.decision
            answers_PK = obs.of("answers")[:, : obs.votes.n_samples]
            policy_streams(*group_advantages(answers_PK, decision, config), decision, config)
        return paid

    return timed


def _label(step: Callable[..., Any], watch: Stopwatch) -> Callable[..., Any]:
    """The guard also picks the label of plain TTRL."""

    def timed(guard: Guard, rows: Any, votes: Any, draws: Any, scores: Any = None) -> Any:
        if scores is None:
            return step(guard, rows, votes, draws)
        with watch.part("label"):
            found = step(guard, rows, votes, draws, scores)
        with watch.part(_INSTEAD + "label"):
            step(guard, rows, votes, draws)
        return found

    return timed


def _generated(sample: Callable[..., Any], passes: list[Pass]) -> Callable[..., Any]:
    def counted(*arguments: Any, **options: Any) -> Any:
        rollouts = sample(*arguments, **options)
        lengths_PN = rollouts.lengths_PN
        passes.append(Pass("generation", lengths_PN.numel(), int(lengths_PN.sum())))
        return rollouts

    return counted


def _scored(group_stats: Callable[..., Any], passes: list[Pass]) -> Callable[..., Any]:
    def counted(scorer: Any, groups: Any, *rest: Any) -> Any:
        lengths = [group.lengths_K for group in groups]
        tokens = sum(int(lengths_K.sum()) for lengths_K in lengths)
        passes.append(Pass("forward", sum(map(len, lengths)), tokens))
        return group_stats(scorer, groups, *rest)

    return counted
