"""Arms by name among settings that several arms share, and the numbers of controls in sweeps.

A sweep keeps no traces, so that it finds the numbers of controls from tables; `lab.study` finds
those of a comparison from its run folders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pandas as pd

from guard_core import GuardConfig
from lab.base.arms import (
    BASELINE,
    GUARD,
    MATCHED,
    PERMUTED,
    REPLAYED,
    Arm,
    arm,
    split_settings,
    with_own,
)
from lab.study import Control, Effort, control
from sim.settings.config import SimConfig


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
    control: Control,
    config: SimConfig,
    unguarded: pd.DataFrame,
    guard: pd.DataFrame,
    run: Callable[[SimConfig], pd.DataFrame],
) -> tuple[SimConfig, float, pd.DataFrame]:
    """Run a control, its number set from the unguarded and the guard's run of the same seeds.

    Args:
        config: of the unguarded run; its step factor is multiplied by the control's.

    Returns:
        Settings, see `Control.ratio`, and what `run` returned.
    """
    target = _effort(guard)
    found = {1.0: (config, unguarded)}  # for the case that no other factor comes closer

    def ratio_at(number: float) -> float:
        factor = config.step_factor if control.kind == MATCHED else 1.0
        own = replace(config, **{control.setting: factor * number})
        found[number] = own, run(own)
        return control.ratio(_effort(found[number][1]), target)

    match = control.find(_effort(unguarded), target, ratio_at)
    config, table = found[match.factor]
    return config, match.achieved_ratio, table


def _effort(table: pd.DataFrame) -> Effort:
    """See `sim.engine.run.measure`."""
    update, skipped = (float(table[n].to_numpy().mean()) for n in ("update_norm", "skipped"))
    return Effort(update, skipped / 100)
