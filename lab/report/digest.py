"""Comparisons reduced to small tables: metrics, what the page draws, rows of the first screen."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lab.base import arms
from lab.base.arms import BASELINE, DEMO_ARMS, GUARD, MATCHED, title
from lab.base.columns import TextTable, floats, ints, select, where
from lab.base.stats import Estimate, counted, difference, estimate, mean_sd, paired, paired_table
from lab.compare.collection import Collection, Comparison, Skipped, collect
from lab.compare.tables import Finding, comparison_table, headline, metrics, metrics_of
from lab.measures.dynamics import dynamics, run_windows, step_seconds, window_share, window_width
from lab.measures.fate import MIN_VISITS, fewest_visits, migration, of_fate
from lab.measures.metrics import METRICS
from lab.measures.problems import NEEDED, PAPER_FATES, scissor
from lab.trace.manifest import Manifest

REFERENCES = (BASELINE, MATCHED)
"""Arms that the others are compared with."""
NEED_FATES = "fates, TotalDeg, L/D, lost problems and the scissor"
"""Figures that are made from fates."""
RULES = ("frs", "mps", "rcsu")
MOST_UNREAD = 50.0
"""Percent of responses without a readable answer above which a report warns."""
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
        return where(self.dynamics, arm=arm)

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
        notes=[
            *_unread(table, titles),
            *comparison.notes,
            *_too_short(comparison, titles),
        ],
    )


def _rules(run: Manifest) -> list[str]:
    """Names of the guard's rules that a run had switched on."""
    guard = run.config.get("guard")
    return [rule for rule in RULES if isinstance(guard, dict) and guard.get(rule) is True]


def _title(comparison: Comparison, arm: str) -> str:
    """The arm's own name, or that in its runs where `lab.base.arms` does not know it."""
    base = comparison.variants.get(arm)
    if base is not None and base != arm:
        return arms.title(base) + arm.removeprefix(base)
    known = arms.title(arm)
    return comparison.runs[arm][0].title or known if known == arm else known


def _unread(table: pd.DataFrame, titles: dict[str, str]) -> Iterator[str]:
    """Yield the arms most of whose responses hold no answer: their numbers mean nothing."""
    for arm, name in titles.items():
        share = float(floats(metrics_of(table, arm), "unread").mean())
        if share > MOST_UNREAD:
            yield (
                f"{name}: {share:.0f} % of the responses have no readable answer, so the numbers "
                "below say little; read some of them and see --prompt-suffix, "
                "--max-response-tokens and --stop"
            )


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
    """`lab.measures.problems.scissor` of all arms, over replicates with degraded problems."""
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
    """`lab.measures.dynamics.window_share` of all arms."""
    parts = []
    for arm in world.comparison.arms:
        of_replicates = where(ends, arm=arm).set_index("replicate")
        parts.append(window_share(world.of_arm(arm), of_replicates).assign(arm=arm))
    return pd.concat(parts, ignore_index=True)


def seconds(world: ReportedComparison) -> pd.DataFrame:
    """`lab.measures.dynamics.step_seconds` of all arms.

    Raises:
        UserError: TTRL is not among the arms, or its steps were not timed.
    """
    return step_seconds({arm: trace.steps for arm, trace in world.comparison.traces.items()})


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


_HEADS = {metric.name: metric.brief for metric in METRICS if metric.brief}
_AGAINST = f"minus {title(BASELINE)} (points)"
_COLUMNS = {"pass_start": "", "pass_final": "", "against": _AGAINST} | _HEADS
"""Column of `overview` to its heading."""
HOW = (
    "Mean ± standard deviation over the seeds. Square brackets: 95 % t-interval of the difference "
    "to TTRL, paired by seed; bold where it leaves zero out, all others are within noise."
)


def overview(world: ReportedComparison) -> pd.DataFrame:
    """One row per arm, in the order of the page.

    Returns:
        arm, title, seeds (replicates), and as `lab.base.stats.Estimate` over them `pass_start`,
        `pass_final`, `TotalDeg` (percent), `against` (final pass@1 minus TTRL's, points).
    """
    counts = Counter(world.metrics.index.get_level_values("arm"))
    base = pd.Series(metrics_of(world.metrics, BASELINE)["pass_final"])
    rows = []
    for arm in world.comparison.arms:
        own = metrics_of(world.metrics, arm)
        score = pd.Series(own["pass_final"])
        gap = paired(score, base) if arm != BASELINE else estimate(np.empty(0))
        means = {n: estimate(floats(own, n)) for n in _COLUMNS if n != "against"}
        facts = {"arm": arm, "title": world.titles[arm], "seeds": counts[arm]}
        rows.append(facts | means | {"against": gap})
    return pd.DataFrame(rows)


def overview_table(world: ReportedComparison) -> TextTable:
    """`overview` as text; what no arm has is left out."""
    table = overview(world).to_dict("records")
    shown = [name for name in _COLUMNS if any(_cell(row[name], name) for row in table)]
    rows = [
        [row["title"], *(_cell(row[name], name) for name in shown), str(row["seeds"])]
        for row in table
    ]
    return TextTable(["", *(_COLUMNS[name] for name in shown), "seeds"], rows)


def missing(world: ReportedComparison) -> tuple[str, str] | None:
    """What was not measured for want of arms, and the command that adds it; None if nothing."""
    arms = world.comparison.arms
    lacking = [finding for finding in world.findings if not any(p.value.n for p in finding.parts)]
    needed = [arm for arm in DEMO_ARMS if arm not in arms]
    known = {BASELINE, GUARD} & set(arms)
    if not lacking or not needed or not known or _words(world)[1:2] == ["agree"]:
        return None
    what = "; ".join(f"{f.title[:1].lower()}{f.title[1:]} ({f.note})" for f in lacking if f.note)
    wanted = [*(arm for arm in DEMO_ARMS if arm in (*arms, *needed)), *_others(arms)]
    return (f"Not measured: {what}. Added by", _command(world, wanted)) if what else None


def _others(arms: list[str]) -> Iterator[str]:
    yield from (arm for arm in arms if arm not in DEMO_ARMS and "(" not in arm)


def _command(world: ReportedComparison, arms: list[str]) -> str:
    """The comparison's own command with more arms; one of the simulator needs a new folder."""
    simulated = world.comparison.world == "sim"
    words = _words(world)
    if words[1:2] != ["compare"]:
        words = ["guard-sim" if simulated else "guard-train", "compare", "--out", "FOLDER"]
    kept = _without(words, "--arms")
    if simulated:
        kept = [*_without(kept, "--out"), "--out", "NEW-FOLDER"]
    return shlex.join([*kept[:2], "--arms", *arms, *kept[2:]])


def _words(world: ReportedComparison) -> list[str]:
    """The command of a comparison, word by word; empty where a quote is not closed."""
    try:
        return shlex.split(world.comparison.manifests[0].command)
    except ValueError:
        return []


def _without(words: list[str], option: str) -> list[str]:
    """A command without an option and its values."""
    if option not in words:
        return words
    start = words.index(option)
    end = next((k for k in range(start + 1, len(words)) if words[k].startswith("--")), len(words))
    return words[:start] + words[end:]


def _cell(value: Estimate, name: str) -> str:
    return difference(value) if name == "against" else mean_sd(value.mean, value.sd)
