"""Arms by name among settings that several arms share, and the numbers of controls in sweeps.

A sweep keeps no traces, so that it finds the numbers of controls from tables; `lab.study` finds
those of a comparison from its run folders.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

import pandas as pd

from guard_core import GuardConfig
from lab.base.arms import BASELINE, GUARD, PERMUTED, REPLAYED, Arm, arm, split_settings, with_own
from lab.base.errors import UserError
from lab.compare.effort import search
from lab.study import control
from sim.settings.config import SimConfig


class ControlRun(NamedTuple):
    """The run of a control with its number, and how well it met its target."""

    config: SimConfig
    achieved_ratio: float
    """Mean update norm, or share of skipped visits, of the control by that of the guard; NaN
    where the guard skipped nothing."""
    table: pd.DataFrame
    """See `sim.engine.run.measure`."""


def guard_among(name: str, config: SimConfig) -> GuardConfig:
    """Return the guard of an arm among settings that several arms share.

    `guard`, also under a rule, has the guard of the settings. Where these name a rule alone, they
    have none, and the arm has its own.
    """
    base, own = split_settings(name)
    shared = base in (GUARD, PERMUTED, REPLAYED) or base.endswith(f"+{GUARD}")
    alone = config.rule != BASELINE and config.guard == arm(config.rule).guard
    return with_own(config.guard, own) if shared and not alone else arm(name).guard


def named(name: str, config: SimConfig) -> Arm:
    """An arm or control by name; the arm `guard` has the guard of the settings."""
    if (found := control(name)) is not None:
        return found.arm
    return replace(arm(name), guard=guard_among(name, config))


def find(
    kind: Literal["matched", "random_skip"],
    config: SimConfig,
    guard: pd.DataFrame,
    unguarded: pd.DataFrame,
    run: Callable[[SimConfig], pd.DataFrame],
) -> ControlRun:
    """Run a control, its number set from the guard's and the unguarded run of the same seeds."""
    if kind == "random_skip":
        share = _mean(guard, "skipped") / 100
        config = replace(config, skip_rate=share)
        table = run(config)
        ratio = _mean(table, "skipped") / 100 / share if share else math.nan
        return ControlRun(config, ratio, table)
    target, start = _mean(guard, "update_norm"), _mean(unguarded, "update_norm")
    for name, moved in (("the guard's run", target), ("the unguarded run", start)):
        if not moved > 0:
            raise UserError(f"matched effort: {name} did not move; raise its step")
    configs, tables = {1.0: config}, {1.0: unguarded}

    def ratio_at(factor: float) -> float:
        configs[factor] = replace(config, step_factor=config.step_factor * factor)
        tables[factor] = run(configs[factor])
        return _mean(tables[factor], "update_norm") / target

    match = search(ratio_at, start / target)
    return ControlRun(configs[match.factor], match.achieved_ratio, tables[match.factor])


def _mean(table: pd.DataFrame, name: str) -> float:
    return float(table[name].to_numpy().mean())
