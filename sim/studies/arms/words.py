"""The text that the command line prints after a run, a comparison or a sweep."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
import pandas as pd

from lab.arms import BASELINE, GUARD, title
from lab.columns import equals, finite_mean, floats, groups, select, unique, where
from lab.compare.own_best import Edge, edges
from lab.measures.fate import FATES
from lab.stats.paired import estimate
from lab.stats.words import with_interval
from sim.studies.arms.contrast import BEST, BEST_RIVAL, METRIC, at_own_best, best_rival
from sim.studies.arms.controls import CEILING

_FATES = ("Stable", "Degraded", "Learned", "MargDeg", "MargStab", "Wrong", "Unclass")
_COLUMNS = {
    **dict(zip(FATES, _FATES, strict=True)),
    "TotalDeg": "TotalDeg",
    "L/D": "L/D",
    "pass_start": "start",
    "pass_final": "pass@1",
    "pass_best": "best",
    "maj_final": "maj",
    "skipped": "skipped",
    "update_norm": "update",
}
"""Measure to its heading."""
_DIGITS = {"L/D": 3, "update_norm": 4, "step_factor": 3}
_SHOWN = ("TotalDeg", METRIC)
"""Metrics whose differences are printed; the file has all."""
_MOST_LINES = 200


def print_summary(rows: pd.DataFrame, settings: Sequence[str] = ()) -> None:
    """Print means over the replicates, one line per setting and arm.

    Args:
        rows: in the form of `run_sweep`.
        settings: columns that make a setting.
    """
    rows = _once(rows, settings)
    cells = list(groups(rows, [*settings, "arm"]))
    width = [max(len(name), 8) for name in settings]
    heads = [f"{name:<{w}}" for name, w in zip(settings, width, strict=True)]
    columns = "".join(f"{name:>9}" for name in [*_COLUMNS.values(), "step*"])
    wide = max(14, *(len(arm) + 1 for arm in unique(rows, "arm")))
    print("  ".join([*heads, f"{'arm':<{wide}}{columns}"]))
    for line, (key, part) in enumerate(cells):
        if line == _MOST_LINES:
            print(f"... {len(cells) - line} more lines; all are in the file")
            break
        *values, arm = key
        heads = [f"{_value(v):<{w}}" for v, w in zip(values, width, strict=True)]
        print("  ".join([*heads, f"{arm:<{wide}}{_numbers(part)}"]))
    print(f"percent of problems, mean over {len(unique(rows, 'replicate'))} replicate(s)")


def print_contrasts(table: pd.DataFrame, settings: Sequence[str]) -> None:
    """Print differences to TTRL and to the guard, with their bootstrap intervals.

    Args:
        table: from `sim.studies.arms.contrast.contrasts`.
        settings: columns that make a setting.
    """
    pairs = table["arm"].isin([BASELINE, GUARD]) | table["against"].isin([BASELINE, GUARD])
    shown = select(table, np.asarray(pairs & table["metric"].isin(_SHOWN)))
    for (at, *values), part in groups(shown, ["at", *settings]):
        setting = [f"{n} {_value(v)}" for n, v in zip(settings, values, strict=True) if v == v]
        print("\n" + ", ".join([f"Differences at {at}", *setting]))
        for line in _lines(part):
            print(line)
    print("points, mean [95 % bootstrap interval over paired replicates]; no correction for many")


def print_own_best(rows: pd.DataFrame, table: pd.DataFrame) -> None:
    """Print every arm at its own best step and the guarded arms against the best rival.

    Args:
        rows: of one policy, over several steps.
        table: from `sim.studies.arms.contrast.contrasts`, of that policy.
    """
    best = at_own_best(rows)
    print(f"\nEvery arm at its {BEST}, chosen on the other half of the replicates")
    print(f"{'arm':<14}{'pass@1':>9}{'95 % interval':>17}{'TotalDeg':>10}  steps chosen")
    for (arm,), part in groups(best, ["arm"]):
        steps = ", ".join(f"{step:g}" for step in sorted(unique(part, "step")))
        value = estimate(floats(part, METRIC))
        interval = f"[{value.low:.1f}, {value.high:.1f}]"
        degraded = finite_mean(part, "TotalDeg")
        print(f"{arm:<14}{value.mean:>9.1f}{interval:>17}{degraded:>10.1f}  {steps}")
    for line in own_best_words(rows, table):
        print(line)


def print_failures(rows: pd.DataFrame) -> None:
    """Print the reasons of failed cells, each once."""
    failed = where(rows, status="failed")
    for (reason,), part in groups(failed, ["reason"]):
        cells, arms = len(unique(part, "cell")), ", ".join(unique(part, "arm"))
        print(f"failed in {cells} cell(s), arms {arms}: {reason}")


def _once(rows: pd.DataFrame, settings: Sequence[str]) -> pd.DataFrame:
    """Runs that several cells share once, with `any` for settings that they do not depend on."""
    if "key" not in rows or not settings:
        return rows
    values = {key: part for (key,), part in groups(rows, ["key"])}
    shown = rows.drop_duplicates(["key", "replicate"]).reset_index(drop=True)
    for name in settings:
        shared = {key for key, part in values.items() if len(unique(part, name)) > 1}
        pairs = zip(shown["key"], shown[name], strict=True)
        shown[name] = pd.Series(["any" if key in shared else v for key, v in pairs], dtype=object)
    return shown


def _lines(part: pd.DataFrame) -> Iterator[str]:
    for (arm, against), pair in groups(part, ["arm", "against"]):
        texts = [_difference(pair, metric) for metric in _SHOWN]
        yield f"  {arm + ' - ' + against:<30}{'   '.join(texts)}"


def _difference(pair: pd.DataFrame, metric: str) -> str:
    row = where(pair, metric=metric)
    value, low, high = (float(floats(row, name)[0]) for name in ("mean", "low", "high"))
    mark = "*" if "beyond" in str(row["verdict"].iloc[0]) else " "
    return f"{metric} {with_interval(value, low, high):>24}{mark}"


def _numbers(part: pd.DataFrame) -> str:
    if equals(part, "status", "failed").all():
        return "   failed"
    names = [*_COLUMNS, "step_factor"]
    return "".join(f"{finite_mean(part, name):>9.{_DIGITS.get(name, 1)}f}" for name in names)


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def own_best_words(rows: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """Return sentences on arms at their own best steps.

    They compare guarded arms with the best rival, name the arms that no step improves, and warn
    where a best step lies at an end of the grid.

    Args:
        rows: of `run_sweep`, of one policy, over several steps.
        table: from `sim.studies.arms.contrast.contrasts`, of that policy.
    """
    best = at_own_best(rows)
    useless = _useless(best)
    lines = [*_against_rival(rows, table), *_no_gain(best, useless)]
    return lines + edge_words(edges(best, "step", unique(rows, "step")), useless)


def edge_words(at_ends: Iterable[Edge], useless: Collection[str] = ()) -> list[str]:
    """Return warnings where a best step lies at an end of the grid.

    Args:
        at_ends: from `lab.compare.own_best.edges`.
        useless: arms that no step improves: the less they train the better, so the smallest step
            of any grid is their best.
    """
    by_side: dict[tuple[float, str], list[str]] = {}
    for edge in at_ends:
        if edge.arm == CEILING or (edge.side == "smallest" and edge.arm in useless):
            continue
        by_side.setdefault((edge.value, edge.side), []).append(title(edge.arm))
    return [
        f"warning: the best step of {', '.join(arms)} is the {side} of the grid, {value:g}: "
        f"a {'smaller' if side == 'smallest' else 'larger'} one may be better still"
        for (value, side), arms in by_side.items()
    ]


def _useless(best: pd.DataFrame) -> list[str]:
    """Arms that are no better at their best step than without training."""
    return [
        str(arm)
        for (arm,), part in groups(best, ["arm"])
        if finite_mean(part, METRIC) <= finite_mean(part, "pass_start")
    ]


def _against_rival(rows: pd.DataFrame, table: pd.DataFrame) -> Iterator[str]:
    differences = where(table, at=BEST, against=BEST_RIVAL, metric=METRIC)
    if not len(differences):
        return
    rival = _chosen(best_rival(rows))
    for (arm,), row in groups(differences, ["arm"]):
        value, low, high = (float(floats(row, name)[0]) for name in ("mean", "low", "high"))
        verdict = str(row["verdict"].iloc[0])
        yield (
            f"{title(arm)} at its best minus the best rival at its best ({rival}): "
            f"pass@1 {with_interval(value, low, high)} points, {verdict}"
        )


def _chosen(rows: pd.DataFrame) -> str:
    """Arms and steps that were chosen on either half."""
    pairs = dict.fromkeys(zip(rows["arm"], floats(rows, "step"), strict=True))
    return ", ".join(f"{title(arm)} at {step:g}" for arm, step in pairs)


def _no_gain(best: pd.DataFrame, useless: Collection[str]) -> Iterator[str]:
    scores = [f"{title(a)} {finite_mean(where(best, arm=a), METRIC):.1f}" for a in useless]
    if scores:
        yield (
            f"no step of the grid is better than no training at all, "
            f"{finite_mean(best, 'pass_start'):.1f}, for: {', '.join(scores)}"
        )
