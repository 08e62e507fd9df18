"""Several arms from the same seeds: same problems, same order, same random draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from lab import Trace
from lab.arms import BASELINE, GUARD, MATCHED, Arm
from lab.effort import achieved_ratio, matched_factor
from lab.errors import UserError
from sim.config import SimConfig
from sim.run import of_arm, simulate

REFINEMENTS = 2
"""Times that the factor of the matched arm is corrected by the ratio it achieved."""
CLOSE = 0.002
"""Relative error of the matched effort that is not worth another run."""


def compare(
    config: SimConfig, arms: Sequence[Arm], out: Path | str, progress: bool = False
) -> dict[str, Trace]:
    """Run every arm from the same seeds into `out/<arm>`.

    Args:
        config: settings shared by all arms; an arm brings its guard, labels and step factor.
        arms: in the order of the runs; `matched` comes last whatever its place.
        out: a new or empty folder.
        progress: show progress bars.

    Returns:
        Traces by the arm's name, in the given order.

    Raises:
        UserError: an arm is there twice, `matched` lacks the arms it is matched to, the folder is
            in use, or a run failed.
    """
    out = Path(out)
    _check(arms, out)
    traces: dict[str, Trace] = {}
    for arm in sorted(arms, key=lambda a: a.name == MATCHED):
        facts = {}
        if arm.name == MATCHED:
            guard, baseline = traces[GUARD].steps, traces[BASELINE].steps
            factor, ratio = find_factor(of_arm(config, arm), guard, baseline)
            arm = replace(arm, step_factor=factor)
            facts = {"achieved_ratio": ratio}
        traces[arm.name] = simulate(
            of_arm(config, arm), out / arm.name, progress, arm=arm, extra=facts
        )
    return {arm.name: traces[arm.name] for arm in arms}


def find_factor(
    config: SimConfig, guard_steps: pd.DataFrame, baseline_steps: pd.DataFrame
) -> tuple[float, float]:
    """Factor on the step that gives the unguarded run the guard's mean update norm.

    The first guess assumes that the norm is proportional to the step; a smaller step takes another
    path, so the guess is corrected by the ratio that a run with it achieved.

    Args:
        config: of the matched arm, same seed.
        guard_steps: steps of the guard's run.
        baseline_steps: steps of plain TTRL.

    Returns:
        The factor, and the ratio of the mean update norms (matched by guard) it achieved.
    """
    factor = matched_factor(guard_steps, baseline_steps)
    best = (factor, float("inf"))
    for _ in range(REFINEMENTS + 1):
        run = simulate(replace(config, step_factor=factor))
        ratio = achieved_ratio(run.steps, guard_steps)
        best = min(best, (factor, ratio), key=lambda found: abs(found[1] - 1))
        if abs(ratio - 1) < CLOSE:
            break
        factor /= ratio
    return best


def _check(arms: Sequence[Arm], out: Path) -> None:
    names = [arm.name for arm in arms]
    if not names:
        raise UserError("arms: give at least one")
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"arms: {name} is there twice")
    if MATCHED in names and not {GUARD, BASELINE} <= set(names):
        raise UserError(f"arms: {MATCHED} needs {BASELINE} and {GUARD} beside it")
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UserError(f"{out}: exists and is not empty; choose another folder")
