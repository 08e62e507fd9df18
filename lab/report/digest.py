"""Comparisons reduced to small tables, for pages and files."""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from guard_core.config import PARTS
from lab.base import arms
from lab.base.arms import BASELINE, CUSTOM, DEMO_ARMS, GUARD, MATCHED, VOTE, arm_order, title
from lab.base.columns import TextTable, finite_mean, floats, groups, ints, select, unique, where
from lab.base.files import Folders
from lab.base.stats import counted, estimate, mean_sd, paired_table
from lab.base.stats import difference as difference_text
from lab.compare import tables
from lab.compare.collection import Comparison, Grid, Skipped, collect
from lab.compare.effort import METRIC, own_best, own_best_words
from lab.measures import BY_NAME
from lab.measures.dynamics import dynamics
from lab.measures.fate import MIN_VISITS, histories

COMPARED = tuple(BY_NAME[name] for name in ("pass_final", "TotalDeg"))
"""Metrics that arms and settings are compared in."""
REFERENCES = (BASELINE, MATCHED, VOTE)
"""Arms that the others are compared with."""
MOST_UNREAD = 50.0
"""Percent of responses without a readable answer above which a report warns."""
_LONGEST_NAME = 60
_BASES = {"against": BASELINE, "over_vote": VOTE}
_COLUMNS = {
    "pass_start": "pass@1 before (%)",
    "pass_final": "at the end (%)",
    "against": f"minus {title(BASELINE)} (points)",
    "over_vote": f"minus the {title(VOTE).lower()} (points)",
    "TotalDeg": "problems made worse (%)",
}
"""Column of `overview` to its heading."""
HOW = (
    "Mean ± standard deviation over the seeds. Square brackets: 95 % t-interval of the difference "
    "to TTRL or to the vote before training, paired by seed; bold where it leaves zero out, all "
    "others are within noise. The vote before training is the majority of as many responses of the "
    "start model as a visit has votes; it costs no training, and is scored as a vote."
)
STEPS_HOW = (
    "Final pass@1 in % at each step size, mean over the replicates. Own best: each half of the "
    "replicates is judged at the step size that was best on the other half, a single one at its "
    "own. Square brackets: 95 % t-intervals of paired differences in points, bold where they leave "
    "zero out."
)
NULL_HOW = (
    "With uncoupled problems (the null model) no problem moves another: what happens there is not "
    "caused by interference between problems."
)
_AT_BEST = ("own best", "pass@1 there (%)", "minus TTRL at its own", "worse there (%)")


@dataclass(frozen=True, slots=True)
class ReportedComparison:
    """One comparison as the page shows it; no table has a row per visit."""

    comparison: Comparison
    titles: dict[str, str]
    """Arm to title, not escaped."""
    metrics: pd.DataFrame
    """`lab.compare.tables.metrics`, indexed by (arm, replicate)."""
    dynamics: pd.DataFrame
    """`lab.measures.dynamics` with the column `arm`; its progress is that in the planned epochs."""
    findings: list[tables.Finding]
    pairs: dict[str, pd.DataFrame]
    """Reference arm to `lab.base.stats.paired_table`."""
    notes: list[str]
    """Notes on the runs, such as those that did not finish or are too short for fates."""

    @property
    def name(self) -> str:
        """Title of the comparison, not escaped."""
        return self.comparison.title

    @property
    def guarded(self) -> list[str]:
        """Arms with a guard that is switched on or that touched a visit."""
        touched = (self.dynamics[["weighted_share", "beta", "skipped"]] > 0).any(axis=1)
        acting = set(self.dynamics["arm"][touched])
        for arm, runs in self.comparison.runs.items():
            guards = [run.config.get("guard") for run in runs]
            known = [guard for guard in guards if isinstance(guard, dict)]
            acting |= {arm for guard in known for part in PARTS if guard.get(part)}
        return [arm for arm in self.comparison.arms if arm in acting]

    @property
    def planted(self) -> bool:
        """The embedded arithmetic, some of whose wrong rivals were trained into the model."""
        return self.comparison.world == "real" and any(
            run.task.startswith("tiny")
            and run.config.get("problems") is None
            and run.config.get("tiny_task", "arithmetic") == "arithmetic"
            for run in self.comparison.manifests
        )

    def title(self, arm: str) -> str:
        """Title of an arm, also of one that is no run, such as the vote before training."""
        return self.titles.get(arm, title(arm))

    def of_arm(self, arm: str) -> pd.DataFrame:
        """The dynamics of one arm."""
        return where(self.dynamics, arm=arm)


Worlds = Sequence[ReportedComparison]


def read(folders: Folders) -> tuple[list[ReportedComparison], list[Skipped]]:
    """Read and digest all runs under some folders; refusals as of `collect`."""
    collection = collect(folders)
    return [digest(comparison) for comparison in collection.comparisons], collection.skipped


def digest(comparison: Comparison) -> ReportedComparison:
    """Reduce a comparison to what the page shows."""
    table = tables.metrics(comparison)
    names = {arm: _title(comparison, arm) for arm in comparison.arms}
    alike = Counter(names.values())  # as of a rule whose class inherits its title
    titles = {arm: f"{t} ({arm})" if alike[t] > 1 else t for arm, t in names.items()}
    present = [arm for arm in REFERENCES if arm in comparison.arms and len(comparison.arms) > 1]
    voted = tables.with_vote(table.reset_index(), ["replicate"]).set_index(["arm", "replicate"])
    present += [VOTE] * (VOTE in voted.index.unique("arm"))
    return ReportedComparison(
        comparison=comparison,
        titles=titles,
        metrics=table,
        dynamics=_dynamics(comparison),
        findings=tables.headline(comparison),
        pairs={arm: paired_table(voted, arm) for arm in present},
        notes=[
            *(_unread(table, titles) if comparison.world == "real" else ()),
            *comparison.notes,
            *_too_short(comparison, titles),
        ],
    )


def _title(comparison: Comparison, arm: str) -> str:
    """The arm's own name, or that in its runs where `lab.base.arms` does not know it."""
    base, mark, differing = arm.partition(arms.VARIANT)
    known = arms.title(base)
    name = comparison.runs[arm][0].title or known if known == base else known
    return name + mark + differing


def _unread(table: pd.DataFrame, titles: dict[str, str]) -> Iterator[str]:
    """Yield the arms most of whose responses hold no answer: their numbers mean nothing."""
    for arm, name in titles.items():
        share = float(floats(tables.metrics_of(table, arm), "unread").mean())
        if share > MOST_UNREAD:
            yield (
                f"{name}: {share:.0f} % of the responses have no readable answer, so the numbers "
                "below say little; read some of them and see --prompt-suffix, "
                "--max-response-tokens and --stop"
            )


def _too_short(comparison: Comparison, titles: dict[str, str]) -> Iterator[str]:
    """Yield what lacks fates, one line for all arms that lack them alike."""
    lacking: dict[tuple[str, str], list[str]] = {}
    for arm, trace in comparison.traces.items():
        known = np.isfinite(floats(trace.visits, "label_accuracy"))
        replicate = ints(trace.visits, "replicate")
        short = np.setdiff1d(replicate[known], ints(comparison.fates(arm), "replicate"))
        if len(short):
            visits = select(trace.visits, known & np.isin(replicate, short))
            fewest = min(histories(visits).length, default=0)
            seeds = dict.fromkeys(str(comparison.pairs[place][0]) for place in short)
            alike = ", ".join(seeds), counted(fewest, "visit")
            lacking.setdefault(alike, []).append(titles[arm])
    for (seeds, visits), names in lacking.items():
        yield (
            f"{', '.join(names)}, seed {seeds}: a problem has {visits} so far; fates, TotalDeg, "
            f"L/D, lost problems and the scissor need {MIN_VISITS}"
        )


def _dynamics(comparison: Comparison) -> pd.DataFrame:
    parts = {
        arm: dynamics(trace.visits, trace.evals, comparison.fates(arm))
        for arm, trace in comparison.traces.items()
    }
    whole = by_arm(parts)
    # A run that stopped early must not look as if it had gone all the way.
    planned = [run.config.get("epochs") for run in comparison.manifests]
    longest = max([1, *ints(whole, "epoch"), *(n for n in planned if isinstance(n, int))])
    # Plain objects compare several times faster than pandas' strings.
    return whole.assign(progress=whole["epoch"] / longest, arm=whole["arm"].astype(object))


def by_arm(parts: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The tables of some arms below each other, with the arm in the first column."""
    named = [pd.DataFrame({"arm": arm, **table}) for arm, table in parts.items()]
    return pd.concat(named, ignore_index=True)


def no_fates(world: ReportedComparison) -> str | None:
    """Reason why no replicate of a comparison has fates; None where one has."""
    if np.isfinite(floats(world.metrics, "TotalDeg")).any():
        return None
    if np.isfinite(floats(world.dynamics, "label_accuracy")).any():
        needed = f"needs at least {MIN_VISITS} visits of every problem"
        return f"Not measured yet: {needed}, see the notes on the runs."
    return "Not measured: the true answers of these problems are not known."


def with_fates(
    world: ReportedComparison, table: Callable[[pd.DataFrame, pd.DataFrame], pd.DataFrame]
) -> pd.DataFrame:
    """`by_arm` of a table that is made from the visits and the fates of each arm that has fates."""
    comparison, known = world.comparison, world.metrics["TotalDeg"].dropna().index.unique("arm")
    arms = [arm for arm in comparison.arms if arm in known]
    return by_arm({a: table(comparison.traces[a].visits, comparison.fates(a)) for a in arms})


def overview(world: ReportedComparison) -> pd.DataFrame:
    """One row per arm, in the order of the page: arm, title, seeds (replicates), and estimates.

    They are over replicates: `pass_start`, `pass_final`, `TotalDeg` (percent), and the final pass@1
    minus TTRL's (`against`) and minus the vote before training (`over_vote`), in points. The first
    row is this vote, where it was measured.
    """
    table, rows = tables.with_vote(world.metrics.reset_index(), ["replicate"]), []
    for (arm,), of_arm in groups(table, ["arm"]):
        means = {name: estimate(floats(of_arm, name)) for name in _COLUMNS if name not in _BASES}
        gaps = {
            # Nothing of an arm minus itself.
            name: tables.difference(table.head(len(table) * (arm != base)), arm, base, METRIC)
            for name, base in _BASES.items()
        }
        facts = {"arm": arm, "title": world.title(arm), "seeds": len(of_arm)}
        rows.append(facts | means | gaps)
    return pd.DataFrame(rows)


def overview_table(world: ReportedComparison) -> TextTable:
    """`overview` as text; what no arm has is left out."""
    table = overview(world)
    written = {name: difference_text if name in _BASES else str for name in _COLUMNS}
    shown = {name: [*map(write, table[name])] for name, write in written.items()}
    shown = {name: cells for name, cells in shown.items() if any(cells)}
    columns = [table["title"], *shown.values(), table["seeds"].astype(str)]
    head = ["", *(_COLUMNS[name] for name in shown), "seeds"]
    return TextTable(head, [list(row) for row in zip(*columns, strict=True)])


def missing(world: ReportedComparison) -> tuple[str, str] | None:
    """What was not measured for want of arms, and the command that adds it; None if nothing."""
    present = world.comparison.arms
    lacking = [f for f in world.findings if f.note and not any(p.value.n for p in f.parts)]
    needed = [arm for arm in DEMO_ARMS if arm not in present]
    simulated = world.comparison.world == "sim"
    program = "guard-sim" if simulated else "guard-train"
    try:
        words = shlex.split(world.comparison.manifests[0].command)
    except ValueError:  # a quote is not closed
        words = []
    if words[:2] == ["python", "-m"]:
        words[:3] = [program]
    if not lacking or not needed or not {BASELINE, GUARD} & set(present) or words[1:2] == ["agree"]:
        return None
    what = "; ".join(f"{f.title[:1].lower()}{f.title[1:]} ({f.note})" for f in lacking)
    others = [a for a in present if a not in DEMO_ARMS and not re.search(rf"\(|\b{CUSTOM}$", a)]
    # The comparison's own command with more arms; one of the simulator needs a new folder.
    if words[1:2] != ["compare"]:
        words = [program, "compare", "--out", "FOLDER"]
    kept = _without(words, "--arms")
    if simulated:
        kept = [*_without(kept, "--out"), "--out", "NEW-FOLDER"]
    command = shlex.join([*kept[:2], "--arms", *DEMO_ARMS, *others, *kept[2:]])
    return f"Not measured: {what}. Added by", command


def _without(words: list[str], option: str) -> list[str]:
    """The words without an option and its values, also where it is written `--option=value`."""
    kept, drops = [], False
    for word in words:
        drops = word.partition("=")[0] == option if word.startswith("--") else drops
        kept += [] if drops else [word]
    return kept


@dataclass(frozen=True, slots=True)
class StepStudy:
    """One task over step sizes, or with the null model beside it."""

    name: str
    """Title, not escaped."""
    grid: Grid

    @property
    def several(self) -> bool:
        """There is more than one step size to choose from."""
        return len(unique(self.grid.rows, "step")) > 1

    def words(self) -> list[str]:
        """Sentences on the arms at their own best, first of the model itself, then of the null."""
        lines = []
        for rows, about in ((self.grid.rows, ""), (self.grid.null, "uncoupled problems: ")):
            scored = select(rows, np.isfinite(floats(rows, METRIC)))
            if self.several and len(scored):
                lines += [about + line for line in own_best_words(scored)]
        if self.grid.failed:
            lines.append(f"warning: {self.grid.failed} arms and steps failed and are left out")
        return lines

    def how(self) -> str:
        """Explanation of the table."""
        return f"{STEPS_HOW} {NULL_HOW}" if len(self.grid.null) else STEPS_HOW

    def table(self) -> TextTable:
        """Final pass@1 of every arm at every step size and at its own best, the null model last."""
        steps = sorted(unique(self.grid.rows, "step"))
        head = ["", *(f"step {step:g}" for step in steps), *_AT_BEST * self.several]
        rows = []
        for name, column in (("No training", "pass_start"), (title(VOTE), "maj_start")):
            if column in self.grid.rows:
                # Means over the replicates first: an arm may have fewer of them.
                score = mean_sd(self.grid.rows.groupby("replicate")[column].mean().mean())
                rows.append([name, *[score] * len(steps), *["", score, "", ""] * self.several])
        rows += _lines(self.grid.rows, steps, "")
        rows += _lines(self.grid.null, steps, ", uncoupled problems")
        return TextTable(head, rows)


def step_studies(worlds: Worlds) -> list[StepStudy]:
    """Comparisons at several step sizes together, and those with runs beside them."""
    grids = [(w.name, w.comparison.grid) for w in worlds if w.comparison.grid is not None]
    for family in families(worlds):
        rows = tables.over_steps(family)
        name = re.sub(r"[,:] step size \S+$", "", family[0].title)
        grids.append((name, Grid(rows, rows.head(0))))
    return [StepStudy(f"Step sizes: {name}", grid) for name, grid in grids if len(grid.rows)]


def families(worlds: Worlds) -> list[list[Comparison]]:
    """Comparisons that differ in their step size alone, where there are several."""
    by_family: dict[int, list[Comparison]] = {}
    for world in worlds:
        if world.comparison.step_size is not None:
            by_family.setdefault(world.comparison.family, []).append(world.comparison)
    return [family for family in by_family.values() if len(family) > 1]


def _lines(rows: pd.DataFrame, steps: Sequence[float], what: str) -> Iterator[list[str]]:
    at_best = own_best(rows, ["step"])
    for arm in arm_order(rows["arm"]):
        of_arm = where(rows, arm=arm)
        cells = [mean_sd(finite_mean(where(of_arm, step=step), METRIC)) for step in steps]
        if len(steps) > 1:
            best = where(at_best, arm=arm)
            chosen = ", ".join(f"{s:g}" for s in sorted(unique(best, "step")) if arms.trains(arm))
            score, worse = (estimate(floats(best, name)) for name in (METRIC, "TotalDeg"))
            against = tables.gap(at_best, arm, BASELINE, METRIC)
            cells += [chosen, str(score), against, str(worse)]
        yield [title(arm) + what, *cells]


def file_names(texts: Iterable[str]) -> list[str]:
    """A distinct name for files per text, such as `sim-llama-math500`."""
    names: list[str] = []
    for text in texts:
        name = re.sub(r"[^a-z0-9]+", "-", text.lower())[:_LONGEST_NAME].strip("-") or "unnamed"
        numbered = (f"{name}-{place}" if place > 1 else name for place in itertools.count(1))
        names.append(next(distinct for distinct in numbered if distinct not in names))
    return names


def slugs(worlds: Worlds) -> list[str]:
    """A name for files per comparison."""
    return file_names(f"{w.comparison.world}-{w.comparison.task}" for w in worlds)
