"""What the command line prints after a run, a comparison or a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from lab.arms import BASELINE, GUARD
from lab.columns import floats
from lab.measures.fate import FATES
from lab.stats.paired import estimate
from sim.studies.best_words import own_best_words
from sim.studies.contrast import BEST, METRIC
from sim.studies.frames import equal, groups, mean, unique, where
from sim.studies.own_best import own_best

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
    """Means over the replicates, one line per setting and arm.

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
    """Differences to TTRL and to the guard, with their bootstrap intervals.

    Args:
        table: from `sim.studies.contrast.contrasts`.
        settings: columns that make a setting.
    """
    pairs = table["arm"].isin([BASELINE, GUARD]) | table["against"].isin([BASELINE, GUARD])
    shown = where(table, np.asarray(pairs & table["metric"].isin(_SHOWN)))
    for (at, *values), part in groups(shown, ["at", *settings]):
        place = [f"{n} {_value(v)}" for n, v in zip(settings, values, strict=True) if v == v]
        print(f"\nDifferences at {at}{', ' if place else ''}{', '.join(place)}")
        for line in _lines(part):
            print(line)
    print("points, mean [95 % bootstrap interval over paired replicates]; no correction for many")


def print_own_best(rows: pd.DataFrame, table: pd.DataFrame) -> None:
    """Every arm at its own best step, the guard against its best rival, and what limits both.

    Args:
        rows: of one policy, over several steps.
        table: from `sim.studies.contrast.contrasts`, of that policy.
    """
    best = own_best(rows, ["step"], METRIC)
    print(f"\nEvery arm at its {BEST}, chosen on the other half of the replicates")
    print(f"{'arm':<14}{'pass@1':>9}{'95 % interval':>17}{'TotalDeg':>10}  steps chosen")
    for (arm,), part in groups(best, ["arm"]):
        steps = ", ".join(f"{step:g}" for step in sorted(unique(part, "step")))
        value = estimate(floats(part, METRIC))
        interval = f"[{value.low:.1f}, {value.high:.1f}]"
        degraded = mean(part, "TotalDeg")
        print(f"{arm:<14}{value.mean:>9.1f}{interval:>17}{degraded:>10.1f}  {steps}")
    for line in own_best_words(rows, table):
        print(line)


def print_failures(rows: pd.DataFrame) -> None:
    """Reasons of failed cells, each once."""
    failed = where(rows, equal(rows, "status", "failed"))
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
    row = where(pair, equal(pair, "metric", metric))
    value, low, high = (float(floats(row, name)[0]) for name in ("mean", "low", "high"))
    mark = "*" if "beyond" in str(row["verdict"].iloc[0]) else " "
    return f"{metric} {value:+6.1f} [{low:+6.1f}, {high:+6.1f}]{mark}"


def _numbers(part: pd.DataFrame) -> str:
    if equal(part, "status", "failed").all():
        return "   failed"
    names = [*_COLUMNS, "step_factor"]
    return "".join(f"{mean(part, name):>9.{_DIGITS.get(name, 1)}f}" for name in names)


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
