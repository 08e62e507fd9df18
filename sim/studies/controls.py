"""Arms and controls by name. A control matches the update norm or skip rate without the guard.

`matched`      the unguarded run with the factor on the step that gives the guard's mean norm of
               the update per scheduled step, see `lab.compare.effort`.
`random_skip`  the unguarded run in which visits are skipped at random, at the share that the guard
               skipped.

Both exist for every guarded arm: `matched_frs` is matched to `frs`, `matched_srt+guard` to the rule
SRT under the guard. The unguarded run is plain TTRL or the rule by itself, for `memory_guard` it is
vote memory without the guard.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from guard_core import GuardConfig
from lab.base.arms import (
    BASELINE,
    CONTROLS,
    GUARD,
    PERMUTED,
    REPLAYED,
    UNGUARDED,
    Arm,
    arm,
    replayed_target,
    split_settings,
    title,
    unguarded,
    with_own,
)
from lab.base.errors import UserError
from lab.compare.effort import search
from sim.settings.config import SimConfig


@dataclass(frozen=True, slots=True)
class Control:
    """An arm whose one free number comes from another arm's run."""

    name: str
    kind: Literal["matched", "random_skip"]
    target: str
    """The guarded arm that it is matched to."""

    @property
    def unguarded(self) -> str:
        """The arm that it runs, before its number is set."""
        plain = unguarded(self.target)
        assert plain is not None
        return plain

    @property
    def arm(self) -> Arm:
        """As an arm for run folders and reports."""
        if self.kind == "matched":
            return arm(self.name)
        plain = arm(self.unguarded)
        of = "" if self.target == GUARD else f" of {title(self.target)}"
        return replace(plain, name=self.name, title=f"{plain.title} at random skips{of}")


@dataclass(frozen=True, slots=True)
class ControlRun:
    """The run of a control with its number, and how well it met its target."""

    config: SimConfig
    """Of the control: the unguarded run with its number set."""
    achieved_ratio: float
    """Mean update norm, or share of skipped visits, of the control by that of the guard; NaN
    where the guard skipped nothing."""
    table: pd.DataFrame
    """The control's run, see `sim.engine.run.measure`."""


def control(name: str) -> Control | None:
    """The control of that name; None where it names no control.

    Raises:
        UserError: it is matched to an arm that is no guard.
    """
    for kind in CONTROLS:
        if name == kind:
            return Control(name, kind, GUARD)
        if name.startswith(f"{kind}_"):
            target = name.removeprefix(f"{kind}_")
            if unguarded(target) is None:
                known = ", ".join(UNGUARDED)
                raise UserError(
                    f"arm {name!r}: {target} is no guard, use one of {known}, or RULE+ one of them"
                )
            return Control(name, kind, target)
    return None


def guard_among(name: str, config: SimConfig) -> GuardConfig:
    """Returns the guard of an arm among settings that several arms share.

    `guard`, also under a rule, has the guard of the settings. Where these name a rule alone, they
    have none, and the arm has its own.
    """
    base, own = split_settings(name)
    shared = base in (GUARD, PERMUTED, REPLAYED) or base.endswith(f"+{GUARD}")
    alone = config.rule != BASELINE and config.guard == arm(config.rule).guard
    return with_own(config.guard, own) if shared and not alone else arm(name).guard


def named(name: str, config: SimConfig) -> Arm:
    """An arm or control by name; the arm `guard` has the guard of the settings.

    Raises:
        UserError: no arm has that name.
    """
    found = control(name)
    if found is not None:
        return found.arm
    return replace(arm(name), guard=guard_among(name, config))


def check_arms(names: tuple[str, ...]) -> None:
    """Refuse arms that are unknown, given twice, or lack the arms that they are matched to.

    Raises:
        UserError: the first of these.
    """
    if not names:
        raise UserError("arms: give at least one")
    for name in names:
        found = control(name)
        if names.count(name) > 1:
            raise UserError(f"arms: {name} is there twice")
        if found is None:
            arm(name)
            if (target := replayed_target(name)) is not None and target not in names:
                raise UserError(f"arms: {name} needs {target} as well")
        elif not {found.target, found.unguarded} <= set(names):
            raise UserError(f"arms: {name} needs {found.unguarded} and {found.target} as well")


def find(
    kind: Literal["matched", "random_skip"],
    config: SimConfig,
    guard: pd.DataFrame,
    unguarded: pd.DataFrame,
    run: Callable[[SimConfig], pd.DataFrame],
) -> ControlRun:
    """Run a control, its number set from runs with the same seeds.

    Args:
        guard: the guard's run, see `sim.engine.run.measure`.

    Raises:
        UserError: one of the runs did not move, or the control's run failed.
    """
    if kind == "random_skip":
        return _random_skip(config, guard, run)
    return _matched(config, guard, unguarded, run)


def _random_skip(
    config: SimConfig, guard: pd.DataFrame, run: Callable[[SimConfig], pd.DataFrame]
) -> ControlRun:
    share = _mean(guard, "skipped") / 100
    config = replace(config, skip_rate=share)
    table = run(config)
    ratio = _mean(table, "skipped") / 100 / share if share else math.nan
    return ControlRun(config, ratio, table)


def _matched(
    config: SimConfig,
    guard: pd.DataFrame,
    unguarded: pd.DataFrame,
    run: Callable[[SimConfig], pd.DataFrame],
) -> ControlRun:
    target, start = _mean(guard, "update_norm"), _mean(unguarded, "update_norm")
    for name, moved in (("the guard's run", target), ("the unguarded run", start)):
        if not moved > 0:
            raise UserError(f"matched effort: {name} did not move; raise its step")
    tables = {1.0: unguarded}

    def scaled(factor: float) -> SimConfig:
        return replace(config, step_factor=config.step_factor * factor)

    def ratio_at(factor: float) -> float:
        tables[factor] = run(scaled(factor))
        return _mean(tables[factor], "update_norm") / target

    match = search(ratio_at, start / target)
    return ControlRun(scaled(match.factor), match.achieved_ratio, tables[match.factor])


def _mean(table: pd.DataFrame, name: str) -> float:
    return float(table[name].to_numpy().mean())
