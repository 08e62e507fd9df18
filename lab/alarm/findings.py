"""The alarm judged on whole run folders: tables per arm, what they show in words, and a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lab.alarm.lead_time import FALSE_ALARMS, lead_summary, lead_times
from lab.alarm.risk import MODEL, SCORES
from lab.alarm.roc import roc_table
from lab.alarm.table import alarm_table
from lab.arms import title
from lab.columns import floats, ints
from lab.compare.collection import Comparison, Skipped, collect
from lab.errors import UserError
from lab.figures.alarm import SCORE_TITLES, SHOWN, auroc_curves, roc_curves
from lab.measures.fate import fates
from lab.report.elements.figure_page import Part

VISITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 40, 60)
"""Visits after which the alarm is judged, as far as a run goes."""
ROC_VISIT = 5
"""Visit of the ROC curve: the paper's window W."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the alarm's evaluation."""

    at: tuple[int, ...] = ()
    """Visits; those of `VISITS` that the run has if left out."""
    roc_at: int | None = None
    """Visit of the ROC curve; `ROC_VISIT`, or the last of `at` before it, if left out."""
    false_alarms: float = FALSE_ALARMS
    """Share of the kept problems that the lead time's threshold may ever alarm at."""
    seed: int = 0
    """Of the folds and the bootstrap."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The alarm on one arm."""

    where: str
    """The comparison's title."""
    arm: str
    n_replicates: int
    auroc: pd.DataFrame
    """`lab.alarm.table.alarm_table`."""
    leads: pd.DataFrame
    """`lab.alarm.lead_time.lead_summary`; no rows where the folds lack lost or kept problems."""
    roc: pd.DataFrame
    """`lab.alarm.roc.roc_table`."""
    roc_at: int
    settings: Settings

    @property
    def name(self) -> str:
        """For readers."""
        return f"{self.where}, {title(self.arm)}"


def find(
    folders: Sequence[Path | str], arms: Sequence[str] = (), settings: Settings | None = None
) -> tuple[list[Finding], list[Skipped]]:
    """Judge the alarm on every arm of the runs in some folders.

    Args:
        folders: run folders, or folders that hold some at any depth.
        arms: only these; all if left out.
        settings: how.

    Returns:
        One finding per arm, and the folders and arms that were left out with their reason.

    Raises:
        UserError: no arm can be judged, or an arm is not there.
    """
    found = collect(folders)
    there = {arm for comparison in found.comparisons for arm in comparison.arms}
    if unknown := [arm for arm in arms if arm not in there]:
        raise UserError(f"arm {unknown[0]!r}: not in these runs, which have {', '.join(there)}")
    findings, skipped = [], list(found.skipped)
    for comparison in found.comparisons:
        for arm in comparison.arms:
            if arms and arm not in arms:
                continue
            try:
                findings.append(judge_arm(comparison, arm, settings or Settings()))
            except UserError as error:
                folder = comparison.traces[arm].folder or Path(arm)
                skipped.append(Skipped(folder, f"{folder}: {title(arm)}: {error}"))
    if not findings:
        raise UserError(skipped[-1].reason)
    return findings, skipped


def judge_arm(comparison: Comparison, arm: str, settings: Settings) -> Finding:
    """Judge the alarm on one arm.

    Raises:
        UserError: the arm has fewer than two replicates, nothing at stake or no true answers, or
            it is shorter than a visit that was asked for.
    """
    visits, found = comparison.traces[arm].visits, comparison.fates(arm)
    if found.empty:
        fates(visits)  # refuses them with the reason
    last = int(ints(visits, "visit").max())
    at = settings.at or tuple(t for t in VISITS if t <= last)
    roc_at = settings.roc_at or max(t for t in at if t <= max(ROC_VISIT, min(at)))
    auroc = alarm_table(visits, found, np.random.default_rng(settings.seed), at)
    rng = np.random.default_rng(settings.seed)
    roc = roc_table(visits, found, rng, roc_at, scores=SHOWN)
    leads = _leads(visits, found, settings)
    n_replicates = len(comparison.traces[arm].replicates)
    return Finding(comparison.title, arm, n_replicates, auroc, leads, roc, roc_at, settings)


def tables(findings: Sequence[Finding]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All AUROC rows and all lead rows, with the columns comparison and arm in front."""
    auroc = [f.auroc.assign(comparison=f.where, arm=f.arm) for f in findings]
    leads = [f.leads.assign(comparison=f.where, arm=f.arm) for f in findings]
    parts = (pd.concat(part, ignore_index=True) for part in (auroc, leads))
    first, second = (_in_front(part, ["comparison", "arm"]) for part in parts)
    return first, second


def words(finding: Finding) -> list[str]:
    """Findings of the tables."""
    lines = [_stake(finding), *(_beats(finding, score) for score in ("mr", "fr")), _all(finding)]
    return [*lines, *_lead_words(finding)]


def parts(finding: Finding) -> list[Part]:
    """The figures of one arm, for a page."""
    alt = f"AUROC of the alarm, MR and FR over the visits, {finding.name}"
    if not ints(finding.auroc, "n_lost").any() or not ints(finding.auroc, "n_kept").any():
        return [Part(finding.name, words(finding), None)]
    roc = f"ROC after visit {finding.roc_at}: hits against false alarms as the threshold falls."
    return [
        Part(finding.name, words(finding), auroc_curves(finding.auroc), alt),
        Part(
            f"{finding.name}: ROC after visit {finding.roc_at}",
            [roc],
            roc_curves(finding.roc),
            f"ROC curves after visit {finding.roc_at}, {finding.name}",
        ),
    ]


def _leads(visits: pd.DataFrame, fates: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    # The same seed as the table's: the same folds.
    rng = np.random.default_rng(settings.seed)
    try:
        leads = lead_times(visits, fates, rng, false_alarms=settings.false_alarms)
    except UserError as error:
        if "fitted on have no" not in str(error):
            raise
        return pd.DataFrame({"score": pd.Series(dtype=object)})
    return lead_summary(leads, rng)


def _stake(finding: Finding) -> str:
    row = finding.auroc.iloc[0]
    return (
        f"{row['n_lost']} lost and {row['n_kept']} kept problems were at stake (their label was "
        f"right before training and at the first visit), over {finding.n_replicates} replicates."
    )


def _beats(finding: Finding, score: str) -> str:
    own = finding.auroc[finding.auroc["score"] == score]
    better = [int(t) for t, low in zip(own["visit"], own["gain_low"], strict=True) if low > 0]
    worse = [int(t) for t, high in zip(own["visit"], own["gain_high"], strict=True) if high < 0]
    rest = [int(t) for t in own["visit"] if int(t) not in (*better, *worse)]
    found = [("better than", better), ("worse than", worse), ("within noise of", rest)]
    shown = "; ".join(f"{verdict} it at visits {_list(at)}" for verdict, at in found if at)
    return f"Against {SCORE_TITLES[score]} the alarm is {shown}."


def _all(finding: Finding) -> str:
    """Visits at which it beats every score that needs no alarm."""
    worst: dict[int, float] = {}
    for row in finding.auroc.to_dict("records"):
        if row["score"] != MODEL:
            worst[row["visit"]] = min(worst.get(row["visit"], math.inf), row["gain_low"])
    best = [visit for visit, low in worst.items() if low > 0]
    names = "; ".join(SCORE_TITLES[score] for score in SCORES if score != MODEL)
    if not best:
        return f"At no visit is it beyond noise better than all of: {names}."
    return f"Beyond noise better than all of ({names}): visits {_list(best)}."


def _lead_words(finding: Finding) -> list[str]:
    if not len(finding.leads):
        return ["No lead times: some folds have no lost or no kept problem to set a threshold on."]
    lines = []
    for name in SHOWN:
        row = finding.leads[finding.leads["score"] == name].iloc[0]
        median = float(row["lead_median"])
        when = f"the median alarm {_when(median)}" if np.isfinite(median) else "there is no alarm"
        lines.append(
            f"{SCORE_TITLES[name]}: warns of {row['in_time']:.1%} of the lost problems "
            f"[{row['in_time_low']:.1%}, {row['in_time_high']:.1%}] a visit or more before their "
            f"last win ({when}), and alarms at {row['false_alarms']:.1%} of the kept ones."
        )
    return lines


def _when(lead: float) -> str:
    """Place of an alarm against a problem's last win."""
    if lead == 0:
        return "comes with it"
    visits = "1 visit" if abs(lead) == 1 else f"{abs(lead):g} visits"
    return f"comes {visits} {'before' if lead > 0 else 'after'} it"


def _list(visits: Sequence[int]) -> str:
    return ", ".join(map(str, visits))


def _in_front(table: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    return table.reindex(columns=[*names, *(n for n in table.columns if n not in names)])


def print_table(finding: Finding) -> None:
    """AUROC per visit: the alarm, MR alone, FR alone and what the alarm gains over them."""
    heads = [SCORE_TITLES[name] for name in SHOWN] + ["alarm - MR", "alarm - FR"]
    print(f"{'visit':>5}  " + "".join(f"{head:<25}" for head in heads))
    by_visit = {key: part.set_index("score") for key, part in finding.auroc.groupby("visit")}
    for visit, part in by_visit.items():
        cells = [_cell(part, name, ("auroc", "low", "high"), "") for name in SHOWN]
        gains = ("gain", "gain_low", "gain_high")
        cells += [_cell(part, name, gains, "+") for name in ("mr", "fr")]
        print(f"{visit:>5}  " + "".join(f"{cell:<25}" for cell in cells))


def _cell(part: pd.DataFrame, name: str, columns: tuple[str, str, str], sign: str) -> str:
    value, low, high = (float(floats(part.loc[[name]], column)[0]) for column in columns)
    return f"{value:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"
