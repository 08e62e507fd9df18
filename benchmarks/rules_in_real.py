"""Time that each rule adds to a step of the trainer, on the tiny task or a larger model of it.

Every rule trains a model of its own, step by step in turn with other rules and with plain TTRL, on
the same problems. All numbers are medians over steps; the first step of each is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from unittest.mock import patch

from grown_model import grown_policy
from rule_cost import RuleCost
from rule_parts import StepCost, timed_step
from stopwatch import now

import real.run
from guard_core.rules import RULES, Need, make_rule
from lab.arms import arm
from real import TrainConfig
from real.model.policy import Policy
from real.model.prepare import torch_threads
from real.record.batches import batches
from real.run import Run, prepare
from real.settings.seeds import Stream, torch_generator
from real.trainer import prime
from real.vote.sample import VoteSampler

PLAIN = "ttrl"
NO_STATS = " (no stats)"
"""Suffix of a rule's name: its engine reports no entropies, so that the trainer computes them."""
_AT_ONCE = 7
"""Rules whose models are in memory together."""


@dataclass(frozen=True)
class Size:
    """Of the steps that are timed; by default those of the tiny task."""

    layers: int = 2
    width: int = 64
    tokens: int = 22
    """Of a response."""
    n_problems: int = 16
    batch_size: int = 8
    n_votes: int = 64
    n_samples: int = 32


def names_of_all() -> list[str]:
    """All rules, and one that needs entropies on an engine that does not report them."""
    asking = next(name for name, rule in RULES.items() if Need.ENTROPY in rule.needs)
    return [*RULES, asking + NO_STATS]


def rule_costs(names: Sequence[str], size: Size, rounds: int) -> Iterator[RuleCost]:
    """Train a few steps under every rule, in turn with plain TTRL.

    Args:
        names: of rules, with `NO_STATS` or without.
        size: of model and batch.
        rounds: steps that count, each.

    Raises:
        ConfigError: there is no rule of that name.
        UserError: the size cannot be.
    """
    names = [name for name in names if name != PLAIN]
    for start in range(0, len(names) or 1, _AT_ONCE):
        group = [PLAIN, *names[start : start + _AT_ONCE]]
        found = _in_turn(group, size, rounds)
        for name in group if start == 0 else group[1:]:
            yield RuleCost(name, tuple(found[name]), tuple(found[PLAIN]))


def sampling_pairs(size: Size, rounds: int) -> list[tuple[float, float]]:
    """CPU seconds of sampling a batch's votes without and with stats, both with the same draws."""
    pairs: list[tuple[float, float]] = []
    with ready(PLAIN, size, 1) as run:
        prompts = run.prompts.tokens[: size.batch_size]
        for turn in range(rounds + 1):
            found: dict[bool, float] = {}
            for stats in (False, True) if turn % 2 else (True, False):
                draws = torch_generator(0, Stream.VOTES, turn)
                start = now()
                run.engine.sample(prompts, size.n_votes, replace(run.sampling, stats=stats), draws)
                found[stats] = now().minus(start).cpu
            pairs.append((found[False], found[True]))
    return pairs[1:]


@contextmanager
def ready(name: str, size: Size, n_steps: int) -> Iterator[Run]:
    """A run that has had its votes before training.

    Args:
        name: of the rule, with `NO_STATS` or without.
        size: of model and batch.
        n_steps: least steps of the run.
    """
    config = _config(name.removesuffix(NO_STATS), size, n_steps).settled()

    def grown(folder: Path, *_: object) -> Policy:
        return grown_policy(folder, size.layers, size.width, size.tokens)

    with ExitStack() as stack:
        stack.enter_context(torch_threads(1))
        with patch.object(real.run, "load_policy", grown):
            run = prepare(config)
        stack.enter_context(closing(run.engine))
        stack.enter_context(closing(run.supervisor))
        if name.endswith(NO_STATS):
            sampling = replace(run.sampling, stats=False)
            votes = VoteSampler(config, run.sampler, run.prompts, sampling)
            run = replace(run, sampling=sampling, votes=votes)
        run.engine.update_weights(run.policy.model, version=0)
        run.further.begin()
        prime(run)
        yield run


def _in_turn(names: Sequence[str], size: Size, rounds: int) -> Mapping[str, list[StepCost]]:
    with ExitStack() as stack:
        runs = {n: stack.enter_context(ready(n, size, rounds + 1)) for n in names}
        found: dict[str, list[StepCost]] = {name: [] for name in names}
        steps = islice(batches(runs[PLAIN].config, size.n_problems), rounds + 1)
        for turn, batch in enumerate(steps):
            # Nobody always follows the same rule, which leaves its data in the caches.
            for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
                found[name].append(timed_step(runs[name], batch))
    return {name: costs[1:] for name, costs in found.items()}


def _config(rule: str, size: Size, n_steps: int) -> TrainConfig:
    per_epoch = -(-size.n_problems // size.batch_size)
    return TrainConfig(
        guard=arm(rule).guard,
        rule=rule,
        tiny_verifies=Need.VERDICTS in make_rule(rule).needs,
        n_problems=size.n_problems,
        batch_size=size.batch_size,
        n_votes=size.n_votes,
        n_samples=size.n_samples,
        max_response_tokens=size.tokens,
        epochs=-(-n_steps // per_epoch),
        threads=1,
        device="cpu",
    )
