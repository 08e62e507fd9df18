"""Fair comparisons: matched effort, and every arm at its own best setting.

Matched effort: one factor on the learning rate of the unguarded control gives it the guard's mean
update norm per scheduled optimizer step. The norm is not proportional to the factor, since training
takes another path at another step size: it is searched.

The best of several settings looks better than it is on the replicates that chose it, so each half
of the replicates is judged at the setting that was best on the other half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from lab.base.arms import BASELINE, is_ceiling, is_guarded, rivals, title, trains
from lab.base.columns import Floats, finite_mean, floats, groups, require, select, unique, where
from lab.base.errors import UserError
from lab.base.stats import contrast_table, with_interval

RatioAt = Callable[[float], float]
"""Runs a control at a number and returns its effort divided by the target's."""
CLOSE = 0.002
"""Relative error of the matched effort that is not worth another run."""
MAX_TRIES = 4
"""Runs that the search for a factor may take."""
METRIC = "pass_final"
"""Metric by which the best step is chosen."""
BEST_RIVAL = "best rival"
"""Name of the best arm without a guard, itself chosen on the other half of the replicates."""


def search(
    measure: RatioAt, initial_ratio: float, *, close: float = CLOSE, max_tries: int = MAX_TRIES
) -> float:
    """Return the factor whose run comes closest to the target's mean update norm.

    Takes secant steps on log(ratio) over log(factor), and stops at the first ratio within `close`
    of 1 or after `max_tries` runs.

    Args:
        measure: by mean update norms; a UserError where one of the runs did not move.
        initial_ratio: the same ratio at factor 1, which has been run already.
    """
    position, slope, points = 0.0, 1.0, []
    best, gap, factor, ratio = 1.0, math.inf, 1.0, initial_ratio
    while True:
        if not 0 < ratio < math.inf:
            stood = "the guard's or the unguarded run did not move"
            raise UserError(f"matched effort: {stood}; raise the step size")
        value = math.log(ratio)
        points.append((position, value))
        if abs(ratio - 1) < gap:
            best, gap = factor, abs(ratio - 1)
        if gap < close or len(points) > max_tries:
            return best
        if len(points) > 1:
            before, old = points[-2]
            slope = (value - old) / (position - before)
        # Far from a straight line the secant may point anywhere, so a step of slope 1 is safer.
        position -= value / (slope if 0.25 < slope < 4 else 1.0)
        factor = math.exp(position)
        ratio = measure(factor)


def mean_update(steps: pd.DataFrame) -> float:
    """Mean norm of the update per scheduled optimizer step, over all replicates.

    A batch counts by its problems, in place of its steps: the same where mini-batches are full.
    """
    require(steps, ("replicate", "update_norm", "n_problems"), "matched effort")
    norms, sizes = floats(steps, "update_norm"), floats(steps, "n_problems")
    if not sizes.sum() > 0 or not np.isfinite(norms).all():
        raise UserError("matched effort: update norms are missing; give a run that has trained")
    return float((norms * sizes).sum() / sizes.sum())


def achieved_ratio(matched: float, guard: float) -> float:
    """Mean update norm of the matched run by the guard's; a UserError where that did not move."""
    if not guard > 0:
        raise UserError("matched effort: the guard's run did not move; raise its learning rate")
    return matched / guard


def beyond_effort(rows: pd.DataFrame, metric: str) -> Floats:
    """Return every row's metric minus the baseline's at the same update norm and seed.

    The baseline is interpolated linearly in the logarithm of its mean update norm.

    Args:
        rows: one per run: arm, step, replicate, update_norm and the metric.

    Returns:
        (rows,) in the metric's unit; NaN where the norm lies outside of the baseline's, or a run
        did not move: nothing is extrapolated.
    """
    require(rows, ("arm", "replicate", "update_norm", metric), "equal effort")
    norms, values = floats(rows, "update_norm"), floats(rows, metric)
    with np.errstate(divide="ignore"):
        logs = np.log(norms)
    expected = np.full(len(rows), np.nan)
    is_baseline = np.array(rows["arm"] == BASELINE) & np.isfinite(values) & (norms > 0)
    for number in unique(select(rows, is_baseline), "replicate"):
        in_replicate = np.array(rows["replicate"] == number)
        curve = np.flatnonzero(in_replicate & is_baseline)
        curve = curve[np.argsort(norms[curve], kind="stable")]
        x, y = logs[curve], values[curve]
        expected[in_replicate] = np.interp(logs[in_replicate], x, y, left=np.nan, right=np.nan)
    return values - expected


def own_best(rows: pd.DataFrame, over: Sequence[str]) -> pd.DataFrame:
    """The rows of every arm at its best settings, where the mean of `METRIC` is highest.

    Args:
        rows: one row per setting, arm and replicate.
        over: columns of the settings to choose from.

    Returns:
        Rows of the input by arm and then replicate, one each, with the settings that were chosen
        for it. Replicates that lack one of the arm's settings are left out. A single replicate has
        no other half and takes its own best.
    """
    parts = [_judged(part, over, METRIC) for _, part in groups(rows, ["arm"])]
    return pd.concat(parts, ignore_index=True) if parts else rows


def best_among(
    rows: pd.DataFrame, arms: Sequence[str], over: Sequence[str], metric: str = METRIC
) -> pd.DataFrame:
    """The rows of the best of several arms at its best settings, as of `own_best`, by a metric.

    Returns:
        Rows of the input by replicate, one each, with the arm and the settings that were chosen
        for it; none where none of the arms was run.
    """
    candidates = select(rows, np.asarray(rows["arm"].isin(list(arms)), bool))
    return _judged(candidates, ["arm", *over], metric)


def edges(best: pd.DataFrame, grid: Sequence[float]) -> list[tuple[str, float, str]]:
    """The steps of `own_best` at an end of the grid: arm, step, `smallest` or `largest`."""
    ends = {min(grid): "smallest", max(grid): "largest"}
    return [
        (str(arm), value, ends[value])
        for (arm,), part in groups(best, ["arm"])
        for value in sorted(unique(part, "step"))
        if value in ends and len(ends) > 1
    ]


def _judged(rows: pd.DataFrame, over: Sequence[str], metric: str) -> pd.DataFrame:
    """One row per replicate that has every setting, at the best setting of the other half."""
    setting = rows.groupby(list(over), dropna=False).ngroup()
    n_settings = setting.groupby(rows["replicate"]).transform("nunique")
    rows = select(rows, n_settings == setting.nunique())
    # Neighbours go to different halves, so that any trend in the replicates is shared out.
    half = rows.groupby("replicate").ngroup().to_numpy() % 2
    parts = []
    for judged in np.unique(half):
        others = select(rows, half != judged) if half.any() else rows
        means = {key: finite_mean(part, metric) for key, part in groups(others, over)}
        # The first of equals, NaN last.
        best = max(means, key=lambda key: (not np.isnan(means[key]), means[key]))
        parts.append(where(select(rows, half == judged), **dict(zip(over, best, strict=True))))
    together = pd.concat(parts, ignore_index=True) if parts else rows
    return together.sort_values("replicate", kind="stable", ignore_index=True)


def best_rival(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the best arm without a guard at its best step, see `best_among`."""
    return best_among(rows, rivals(unique(rows, "arm")), ["step"])


def own_best_words(rows: pd.DataFrame) -> list[str]:
    """Return sentences on guarded arms against the best rival, all at their own best steps.

    Others name the arms that no step improves, and warn of a best step at an end of the grid.

    Args:
        rows: of one policy, over several steps, one per step, arm and replicate: step, arm,
            replicate, pass_start and pass_final (percent).
    """
    best = own_best(rows, ["step"])
    scores = {str(arm): finite_mean(part, METRIC) for (arm,), part in groups(best, ["arm"])}
    means = rows.groupby(["arm", "step"], dropna=False)[[METRIC, "pass_start"]].mean()
    improving = means[~(means[METRIC] <= means["pass_start"])].index.unique("arm")
    useless = [arm for arm in scores if arm not in improving]
    rival = best_rival(rows)
    # Arms and steps that were chosen on either half.
    pairs = dict.fromkeys(zip(rival["arm"], floats(rival, "step"), strict=True))
    chosen = ", ".join(f"{title(arm)} at {step:g}" for arm, step in pairs)
    both = guarded_and_rival(best, rival).set_index(["arm", "replicate"])
    gaps = where(contrast_table(both.reindex(columns=[METRIC])), against=BEST_RIVAL)
    lines = [
        f"{title(str(row['arm']))} at its best minus the best rival at its best ({chosen}): pass@1 "
        f"{with_interval(row['mean'], row['low'], row['high'])} points, {row['verdict']}"
        for row in gaps.to_dict("records")
    ]
    if useless:
        start = best.groupby("replicate")["pass_start"].mean().mean()  # an arm may have fewer
        lines.append(
            f"no step of the grid is better than no training at all, "
            f"{start:.1f}, for: {', '.join(f'{title(a)} {scores[a]:.1f}' for a in useless)}"
        )
    by_side: dict[tuple[float, str], list[str]] = {}
    for arm, value, side in edges(best, unique(rows, "step")):
        # Arms that no step improves are the better the less they train.
        useful = trains(arm) and not (side == "smallest" and arm in useless)
        if useful and not is_ceiling(arm):
            by_side.setdefault((value, side), []).append(title(arm))
    return lines + [
        f"warning: the best step of {', '.join(arms)} is the {side} of the grid, {value:g}: "
        f"a {'smaller' if side == 'smallest' else 'larger'} one may be better still"
        for (value, side), arms in by_side.items()
    ]


def guarded_and_rival(best: pd.DataFrame, rival: pd.DataFrame) -> pd.DataFrame:
    """Rows of guarded arms after those of the best rival, so that differences are arm - rival."""
    guarded = select(best, np.array([is_guarded(arm) for arm in best["arm"]], bool))
    return pd.concat([rival.assign(arm=BEST_RIVAL), guarded], ignore_index=True)
