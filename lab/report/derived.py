"""Tables of one comparison that the page draws or writes out, each made from its traces."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from lab.columns import floats, where
from lab.compare.families import guard_settings
from lab.errors import UserError
from lab.measures.dynamics import run_windows, window_share, window_width
from lab.measures.fate import MIN_VISITS, migration, of_fate
from lab.measures.lost import NEEDED, PAPER_FATES, scissor
from lab.measures.overhead import step_seconds
from lab.measures.sensitivity import SETTINGS, sensitivity
from lab.report.digest import ReportedComparison

NO_TRUTH = "Not measured: the true answers of these problems are not known."
TOO_SHORT = (
    f"Not measured yet: needs at least {MIN_VISITS} visits of every problem, see the notes on the "
    "runs."
)


def no_fates(world: ReportedComparison) -> str | None:
    """Reason why no replicate of a comparison has fates; None where one has."""
    if np.isfinite(floats(world.metrics, "TotalDeg")).any():
        return None
    known = np.isfinite(floats(world.dynamics, "label_accuracy")).any()
    return TOO_SHORT if known else NO_TRUTH


def fates(world: ReportedComparison) -> pd.DataFrame:
    """`lab.fates` of all arms: one row per arm, replicate and problem."""
    return _per_arm(world, lambda arm: world.comparison.fates(arm))


def migrations(world: ReportedComparison) -> pd.DataFrame:
    """`lab.measures.fate.migration` of all arms."""
    return _per_arm(world, lambda arm: migration(world.comparison.fates(arm)))


def thirds(world: ReportedComparison) -> pd.DataFrame:
    """`lab.measures.lost.scissor` of all arms, over replicates with degraded problems."""
    return _per_arm(world, lambda arm: scissor(_degraded(world, arm), world.comparison.fates(arm)))


def widths(world: ReportedComparison) -> pd.DataFrame:
    """`lab.measures.dynamics.window_width` of all arms."""
    return _per_arm(
        world, lambda arm: window_width(_degraded(world, arm), world.comparison.fates(arm))
    )


def windows(world: ReportedComparison) -> pd.DataFrame:
    """`lab.measures.dynamics.run_windows` of all arms with the column `replicate`."""
    arms = world.comparison.arms
    parts = [run_windows(world.of_arm(arm)).reset_index().assign(arm=arm) for arm in arms]
    return pd.concat(parts, ignore_index=True)


def window_shares(world: ReportedComparison, ends: pd.DataFrame) -> pd.DataFrame:
    """`lab.measures.dynamics.window_share` of all arms.

    Args:
        world: the comparison.
        ends: its `windows`.
    """
    parts = []
    for arm in world.comparison.arms:
        of_replicates = where(ends, arm=arm).set_index("replicate")
        parts.append(window_share(world.of_arm(arm), of_replicates).assign(arm=arm))
    return pd.concat(parts, ignore_index=True)


def seconds(world: ReportedComparison) -> pd.DataFrame:
    """`lab.measures.overhead.step_seconds` of all arms.

    Raises:
        UserError: TTRL is not among the arms, or its steps were not timed.
    """
    return step_seconds({arm: trace.steps for arm, trace in world.comparison.traces.items()})


def sensitivities(world: ReportedComparison) -> pd.DataFrame:
    """`lab.measures.sensitivity.sensitivity` over guard settings in which runs of an arm differ.

    Raises:
        UserError: no arm was run with several values of a setting.
    """
    columns = [name.removeprefix("guard.") for name in SETTINGS]
    parts = []
    for arm in world.comparison.arms:
        run = world.comparison.runs[arm][0]
        noted = guard_settings(run)
        base = world.comparison.variants.get(arm)
        if base is not None and all(name in noted for name in columns):
            own = where(world.metrics.reset_index(), arm=arm).assign(arm=base)
            parts.append(own.assign(**{f"guard.{name}": noted[name] for name in columns}))
    if not parts:
        raise UserError("sensitivity: no arm was run with several guard settings; give such runs")
    rows = pd.concat(parts, ignore_index=True)
    measured = [name for name in ("pass_final", "L/D") if np.isfinite(floats(rows, name)).any()]
    return sensitivity(rows, measured)


def _degraded(world: ReportedComparison, arm: str) -> pd.DataFrame:
    """Visits of degraded problems, with the columns that the scissor and the window need.

    A million visits take long to sort; most belong to problems that these do not look at.
    """
    visits = world.comparison.traces[arm].visits
    own = np.flatnonzero(of_fate(visits, world.comparison.fates(arm), PAPER_FATES))
    return visits.reindex(columns=[*NEEDED, "correct_competitive"]).take(own)


def _per_arm(world: ReportedComparison, table: Callable[[str], pd.DataFrame]) -> pd.DataFrame:
    """Of the arms that have fates, with the column `arm` first."""
    measured = np.isfinite(floats(world.metrics, "TotalDeg"))
    known = set(world.metrics.index.get_level_values("arm")[measured])
    parts = []
    for arm in world.comparison.arms:
        if arm in known:
            own = table(arm)
            own.insert(0, "arm", arm)
            parts.append(own)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"arm": []})
