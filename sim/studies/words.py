"""The text that the command line prints after a run, a comparison or a sweep."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd

from lab.base.arms import BASELINE, GUARD
from lab.base.columns import equals, finite_mean, floats, groups, select, unique, where
from lab.base.stats import estimate, with_interval
from lab.compare.own_best import METRIC, own_best_words
from lab.compare.tables import rule_table
from lab.measures import METRICS, Metric
from lab.measures.fate import FATES, MIN_VISITS
from lab.report.digest import rule_markdown
from sim.studies.compare import BEST, at_own_best, done

_FACTOR = Metric(
    "step_factor", "factor on the step size", "factor", digits=3, head="step*",
    about="factor on the step size, 1 but in controls of matched effort",
)  # fmt: skip
_PRINTED = [metric for metric in (*METRICS, _FACTOR) if metric.head]
_OF_FATES = [m for m in _PRINTED if m.name in (*FATES, "TotalDeg", "L/D")]
_TABLES = (_OF_FATES, [m for m in _PRINTED if m not in _OF_FATES])
_UNITS = "In percent, except L/D, update and step*."
_SHOWN = ("TotalDeg", METRIC)
"""Metrics whose differences are printed; the file has all."""
_MOST_LINES = 200


def print_summary(rows: pd.DataFrame, settings: Sequence[str] = ()) -> None:
    """Print means over the replicates, one line per setting and arm, and what the heads mean.

    Args:
        rows: in the form of `run_sweep`.
    """
    rows = _once(rows, settings)
    cells = list(groups(rows, [*settings, "arm"]))
    for columns in _TABLES:
        if not any(np.isfinite(floats(rows, metric.name)).any() for metric in columns):
            continue  # fates of short runs
        lines = [[*map(_value, key), *_numbers(part, columns)] for key, part in cells[:_MOST_LINES]]
        print(
            "\n".join(_aligned([[*settings, "arm", *(metric.head for metric in columns)], *lines]))
        )
        if len(cells) > _MOST_LINES:
            print(f"... {len(cells) - _MOST_LINES} more lines; all are in the file")
        said = [f"{m.head}: {m.about}" for m in columns if m.about]
        print(textwrap.fill(f"{'; '.join(said)}. {_UNITS}", 100) + "\n")
    print(f"mean over {len(unique(rows, 'replicate'))} replicate(s)")


def print_short(epochs: int) -> None:
    """Print that a run has no fates, where it is too short for them."""
    if epochs < MIN_VISITS:
        print(f"epochs = {epochs}: fates need at least {MIN_VISITS}; the run has scores alone")


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table; its columns up to `arm` begin at the left, the others end at the right."""
    width = [max(map(len, column)) for column in zip(*rows, strict=True)]
    texts = rows[0].index("arm") + 1
    return [
        "  ".join(
            [*map(str.ljust, row[:texts], width), *map(str.rjust, row[texts:], width[texts:])]
        )
        for row in rows
    ]


def print_contrasts(table: pd.DataFrame, settings: Sequence[str]) -> None:
    """Print differences to TTRL and to the guard, with their bootstrap intervals.

    Args:
        table: from `sim.studies.compare.contrasts`.
    """
    pairs = table["arm"].isin([BASELINE, GUARD]) | table["against"].isin([BASELINE, GUARD])
    shown = select(table, np.asarray(pairs & table["metric"].isin(_SHOWN)))
    for (at, *values), part in groups(shown, ["at", *settings]):
        setting = [f"{n} {_value(v)}" for n, v in zip(settings, values, strict=True) if v == v]
        print("\n" + ", ".join([f"Differences at {at}", *setting]))
        for line in _lines(part):
            print(line)
    print("points, mean [95 % bootstrap interval over paired replicates]; no correction for many")


def print_own_best(rows: pd.DataFrame, seed: int) -> None:
    """Print every arm at its own best step and the guarded arms against the best rival.

    Args:
        rows: of one policy, over several steps.
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
    for line in own_best_words(done(rows), seed):
        print(line)


def print_rules(rows: pd.DataFrame, settings: Sequence[str]) -> None:
    """Print every arm at its own best step beside TTRL, a table for every other setting.

    Args:
        rows: of `run_sweep` over several steps.
        settings: columns that were varied, `step` among them.
    """
    # Seeds are replicates here; what a step costs is not measured.
    others = {"seed": rows["replicate"], "place": 0, "seconds": np.nan, "step_size": rows["step"]}
    by = [name for name in settings if name != "step"]
    for cell, part in groups(done(rows).assign(**others), by):
        print(", ".join(f"{n} {_value(v)}" for n, v in zip(by, cell, strict=True)) + "\n")
        print(rule_markdown(rule_table(part)))


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
        yield f"  {arm + ' - ' + against:<24}{'   '.join(texts)}"


def _difference(pair: pd.DataFrame, metric: str) -> str:
    row = where(pair, metric=metric)
    value, low, high = (float(floats(row, name)[0]) for name in ("mean", "low", "high"))
    mark = "*" if "beyond" in str(row["verdict"].iloc[0]) else " "
    return f"{metric} {with_interval(value, low, high):>24}{mark}"


def _numbers(part: pd.DataFrame, columns: Iterable[Metric]) -> list[str]:
    if equals(part, "status", "failed").all():
        return ["failed" for _ in columns]
    means = [(finite_mean(part, metric.name), metric.digits) for metric in columns]
    return ["-" if mean != mean else f"{mean:.{digits}f}" for mean, digits in means]


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
