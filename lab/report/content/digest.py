"""Everything the page shows of one comparison, reduced to small tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lab import arms
from lab.arms import BASELINE, MATCHED
from lab.columns import floats, ints, select
from lab.compare.collection import Collection, Comparison, Skipped, collect
from lab.compare.headline import Finding, headline
from lab.compare.tables import comparison_table, metrics
from lab.figures.curves import of_arm
from lab.measures.dynamics import dynamics
from lab.measures.fate import MIN_VISITS, fewest_visits
from lab.stats.paired import paired_table
from lab.stats.words import counted
from lab.trace.manifest import Manifest

REFERENCES = (BASELINE, MATCHED)
"""Arms that the others are compared with."""
NEED_FATES = "fates, TotalDeg, L/D, lost problems and the scissor"
"""Figures that are made from fates."""
RULES = ("frs", "mps", "rcsu")
_TOUCHES = ("weighted_share", "beta", "skipped")


@dataclass(frozen=True, slots=True)
class ReportedComparison:
    """One comparison as the page shows it; no table has a row per visit."""

    comparison: Comparison
    titles: dict[str, str]
    """Arm to title, not escaped."""
    metrics: pd.DataFrame
    """`lab.compare.tables.metrics`, indexed by (arm, replicate)."""
    summary: pd.DataFrame
    """`lab.compare.tables.comparison_table`, indexed by arm."""
    dynamics: pd.DataFrame
    """`lab.measures.dynamics` of all arms with the column `arm`; progress counts from the longest
    run."""
    findings: list[Finding]
    pairs: dict[str, pd.DataFrame]
    """Reference arm to `lab.stats.paired.paired_table`."""
    notes: list[str]
    """Notes on the runs, such as those that did not finish or are too short for fates."""

    @property
    def name(self) -> str:
        """Title of the comparison, not escaped."""
        return self.comparison.title

    @property
    def guarded(self) -> list[str]:
        """Arms with a guard that is switched on or that touched a visit."""
        return [arm for arm in self.comparison.arms if self._is_guarded(arm)]

    @property
    def planted(self) -> bool:
        """The embedded arithmetic, some of whose wrong rivals were trained into the model."""
        return self.comparison.world == "real" and any(
            run.task.startswith("tiny")
            and run.config.get("problems") is None
            and run.config.get("tiny_task", "arithmetic") == "arithmetic"
            for run in self.comparison.manifests
        )

    def of_arm(self, arm: str) -> pd.DataFrame:
        """The dynamics of one arm."""
        return of_arm(self.dynamics, arm)

    def _is_guarded(self, arm: str) -> bool:
        own = self.of_arm(arm)
        touched = any(np.nansum(floats(own, name)) > 0 for name in _TOUCHES)
        return touched or any(_rules(run) for run in self.comparison.runs[arm])


def read(folders: Sequence[Path | str]) -> tuple[list[ReportedComparison], list[Skipped]]:
    """Read and digest all runs under some folders.

    Raises:
        UserError: a folder does not exist, or no run can be used.
    """
    found: Collection = collect(folders)
    return [digest(comparison) for comparison in found.comparisons], found.skipped


def digest(comparison: Comparison) -> ReportedComparison:
    """Reduce a comparison to what the page shows."""
    table = metrics(comparison)
    titles = {arm: _title(comparison, arm) for arm in comparison.arms}
    present = [arm for arm in REFERENCES if arm in comparison.arms and len(comparison.arms) > 1]
    return ReportedComparison(
        comparison=comparison,
        titles=titles,
        metrics=table,
        summary=comparison_table(table),
        dynamics=_dynamics(comparison),
        findings=headline(comparison, table),
        pairs={arm: paired_table(table, arm) for arm in present},
        notes=[*comparison.notes, *_too_short(comparison, titles)],
    )


def _rules(run: Manifest) -> list[str]:
    """Names of the guard's rules that a run had switched on."""
    guard = run.config.get("guard")
    return [rule for rule in RULES if isinstance(guard, dict) and guard.get(rule) is True]


def _title(comparison: Comparison, arm: str) -> str:
    """The arm's own name, or that in its runs where `lab.arms` does not know it."""
    base = comparison.variants.get(arm)
    if base is not None and base != arm:
        return arms.title(base) + arm.removeprefix(base)
    known = arms.title(arm)
    return comparison.runs[arm][0].title or known if known == arm else known


def _too_short(comparison: Comparison, titles: dict[str, str]) -> Iterator[str]:
    """Yield the arms with seeds whose problems have too few visits for fates."""
    for arm, trace in comparison.traces.items():
        known = np.isfinite(floats(trace.visits, "label_accuracy"))
        replicate = ints(trace.visits, "replicate")
        short = np.setdiff1d(replicate[known], ints(comparison.fates(arm), "replicate"))
        if len(short):
            fewest = fewest_visits(select(trace.visits, known & np.isin(replicate, short)))
            seeds = dict.fromkeys(comparison.pairs[place][0] for place in short)
            yield (
                f"{titles[arm]}, seed {', '.join(map(str, seeds))}: a problem has "
                f"{counted(fewest, 'visit')} so far; {NEED_FATES} need {MIN_VISITS}"
            )


def _dynamics(comparison: Comparison) -> pd.DataFrame:
    parts = [
        dynamics(trace.visits, trace.evals, comparison.fates(arm)).assign(arm=arm)
        for arm, trace in comparison.traces.items()
    ]
    whole = pd.concat(parts, ignore_index=True)
    # A run that stopped early must not look as if it had gone all the way.
    longest = max(int(ints(whole, "epoch").max()), 1)
    # Plain objects compare several times faster than pandas' strings.
    names = whole["arm"].astype(object)
    return whole.assign(progress=whole["epoch"] / longest, arm=names)
