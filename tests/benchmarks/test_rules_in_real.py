"""The parts of a step that belong to its rule are found, add up, and are held to the budget."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

import bench_rules
import pytest
import torch
from rule_cost import RuleCost
from rule_parts import GENERATION, timed_step
from rules_in_real import NO_STATS, Size, ready, rule_costs
from stopwatch import now

import real.trainer
from guard_core.arrays import Array
from guard_core.rules import RULES, Observations, Pays, Rule
from real.record.batches import batches
from real.run import Run

SMALL = Size(n_problems=2, batch_size=2, n_votes=8, n_samples=4)
VOTES = SMALL.batch_size * SMALL.n_votes
SECONDS = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleepy(Rule):
    """Plain TTRL that waits."""

    name: ClassVar[str] = "sleepy"
    title: ClassVar[str] = "Sleepy"
    pays: ClassVar[Pays] = "answer"

    def pay(self, seen: Observations, label: Array) -> Array:
        time.sleep(SECONDS)
        return Rule.pay(self, seen, label)


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy(Sleepy):
    """Plain TTRL that works for nothing."""

    name: ClassVar[str] = "busy"

    def pay(self, seen: Observations, label: Array) -> Array:
        end = time.process_time() + SECONDS
        while time.process_time() < end:
            pass
        return Rule.pay(self, seen, label)


@pytest.fixture(scope="module")
def costs():
    """By rule's name; plain TTRL among them."""
    names = ["sleepy", "busy", "rent", "rent" + NO_STATS, "co_rewarding_2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RULES, "sleepy", Sleepy)
        patch.setitem(RULES, "busy", Busy)
        yield {cost.name: cost for cost in rule_costs(names, SMALL, 6)}


def test_a_rule_that_waits_is_over_budget(costs: dict[str, RuleCost]):
    sleepy = costs["sleepy"]
    assert sleepy.wall_share.low > 0.01 and sleepy.over_budget and sleepy.is_sure
    # The time of plain TTRL's payment is taken off, in which other processes may run.
    assert median(step.parts["pay"].wall for step in sleepy.steps) > 0.9 * SECONDS
    assert sleepy.added.median < SECONDS  # waiting takes no CPU
    assert bench_rules.remark(sleepy) == "OVER BUDGET"


def test_a_rule_that_works_is_over_budget(costs: dict[str, RuleCost]):
    busy = costs["busy"]
    assert busy.over_budget and busy.cpu_share.low > 0.01
    assert busy.added.median > SECONDS and busy.parts["pay"] > SECONDS
    assert busy.trained_ratio == 1  # it rewards as plain TTRL does
    assert all(step.whole.cpu - step.rest.cpu > 0.9 * SECONDS for step in busy.steps)


def test_plain_ttrl_adds_nothing(costs: dict[str, RuleCost]):
    plain = costs["ttrl"]
    assert plain.added.median < 2e-3 and not plain.over_budget
    assert plain.trained_ratio == 1 and plain.update_ratio == 1
    # It takes the way of every rule, at the cost of comparing answers with the label.
    assert plain.parts["pay"] < 1e-3
    assert bench_rules.remark(plain) in ("", "in budget, not surely")


def test_another_generation_pass_is_named_and_not_counted(costs: dict[str, RuleCost]):
    teacher = costs["co_rewarding_2"]
    more = teacher.further("generation")
    assert more is not None and (more.passes, more.responses) == (1, VOTES)
    assert more.tokens == pytest.approx(1, abs=0.3)
    assert teacher.parts[GENERATION] > 0 and teacher.generation_share > teacher.cpu_share.median
    assert not teacher.over_budget and "generates again: 16 resp" in bench_rules.remark(teacher)
    assert costs["busy"].further("generation") is None


def test_entropies_are_told_while_sampling_or_by_a_forward_pass(costs: dict[str, RuleCost]):
    logged, passed = costs["rent"], costs["rent" + NO_STATS]
    assert logged.parts["stats"] > 0 and logged.further("forward") is None
    assert "stats" not in passed.parts and passed.parts["entropy"] > logged.parts["entropy"]
    more = passed.further("forward")
    assert (
        more is not None
        and 1 <= more.responses <= VOTES
        and "forward pass" in bench_rules.remark(passed)
    )


def test_the_parts_of_a_step_add_up_to_it():
    with ready("scope", SMALL, 2) as run:
        for batch in batches(run.config, SMALL.n_problems):
            start = now()
            step = timed_step(run, batch)
            whole = now().minus(start)
            parts = sum(spent.cpu for spent in step.parts.values())
            assert step.whole.cpu == pytest.approx(step.rest.cpu + parts)
            assert 0.5 * whole.cpu < step.whole.cpu <= whole.cpu
            assert 0 < step.update.cpu < step.rest.cpu
            assert {"step_logprob", "score", "label", "pay", "draws"} <= set(step.parts)


def test_timing_changes_nothing():
    before = real.trainer.pay
    found = []
    for timed in (False, True):
        with ready("rent", SMALL, 1) as run:
            batch = next(batches(run.config, SMALL.n_problems))
            start = _weights(run)
            timed_step(run, batch) if timed else real.trainer.train_batch(run, batch, None)
            found.append(_weights(run))
            assert not torch.equal(start, found[-1])
    assert torch.equal(*found)
    assert real.trainer.pay is before


def _weights(run: Run) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.policy.model.parameters()])
