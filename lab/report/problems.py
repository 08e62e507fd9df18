"""The table of all problems, each of which opens its life; drawn by `assets/problems.js`."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lab.base.columns import Floats, Ints, flags, floats, group_mean, ints, where
from lab.base.stats import mean_sd
from lab.compare.collection import Comparison
from lab.figures.problems import Line, life_lines, life_template
from lab.figures.style import FATE_COLOURS
from lab.measures.fate import FATES, FIRST, LAST, histories
from lab.measures.problems import areas
from lab.report.digest import ReportedComparison, Worlds, slugs
from lab.report.html import Html, deflated, figure_json, join, plain, stored, table, tag
from lab.trace.trace import Trace

HOW = (
    "One row per problem; click it, or press Enter on its number, for its life: the votes of each "
    "visit, the label, the flip rate FR, the weight and the route. Over all replicates the fate is "
    "the commonest one (the worse of two) and stands with how many share it, the other numbers are "
    "means. The search takes a problem's number or a part of its name."
)
REDRAWN = (
    "Every replicate of this simulation drew its own problems: the same number in two replicates "
    "means two problems, but in one replicate it is the same problem under every arm. So the table "
    "shows one replicate at a time."
)
WORST_FIRST = (
    "Degraded",
    "Marginal Degraded",
    "Always Wrong",
    "Unclassified",
    "Marginal Stable",
    "Learned",
    "Stable Always Right",
)
"""Fates in the order in which the table sorts them."""
BUDGET = 150_000
"""Characters of all lives of a page that hold further replicates than the first."""
TOP = 5
"""Answers of a problem that keep an area of their own where a trace has votes."""
Columns = dict[str, NDArray[Any]]
"""(N,) values of the problems by name, see `problem_columns`."""
Key = tuple[int, int]
"""Place of the arm, and replicate."""
ON_PAPER = 20
"""Rows of the table of problems where it cannot be scrolled."""
_ZERO, _MOST_VOTES = "0", 10_000


class _Number(NamedTuple):
    """A number of a problem, a column of the table under every arm."""

    key: str
    name: str
    meaning: str
    percent: bool = True
    """A share, which is shown in percent."""


_OF_FATES = (
    _Number("fate", "fate", "commonest fate", percent=False),
    _Number("ila", "ILA", "initial label accuracy in percent (first three visits)"),
    _Number("fla", "FLA", "final label accuracy in percent (last five visits)"),
)
"""Shown where some problem has a fate."""
_WITHOUT_FATES = (
    _Number("first", "first MR", "match rate in percent (first three visits)"),
    _Number("last", "last MR", "match rate in percent (last five visits)"),
)
"""Shown where some problem has none."""
_FLIPS = _Number("flips", "flips", "label changes in training", percent=False)


def problem_sections(worlds: Worlds, budget: int = BUDGET) -> Html:
    """The table of each comparison, with the numbers and lives that its script draws from.

    See `packed_lives` for which lives the budget leaves out.
    """
    lives = packed_lives(worlds, budget)
    parts = [
        _world(world, slug, place, lives[place])
        for place, (world, slug) in enumerate(zip(worlds, slugs(worlds), strict=True))
    ]
    look = stored(deflated(figure_json(life_template())), "life-template")
    return join([tag("p", HOW, class_="how"), *parts, look])


def _world(world: ReportedComparison, slug: str, place: int, lives: Mapping[Key, str]) -> Html:
    name, arms, pairs = f"problem-table-{place}", world.comparison.arms, world.comparison.pairs
    opened = sorted({replicate for _, replicate in lives})
    # Every arm has its own numbers wherever one arm's lives can be opened.
    columns = problem_columns(world, opened if len(pairs) > 1 else [])
    fates = np.stack([columns[f"{k}.fate"] for k in range(len(arms))])
    shown = [*_OF_FATES * bool(fates.any()), *_WITHOUT_FATES * (not fates.all()), _FLIPS]
    once = len({seed for seed, _ in pairs}) == len(pairs)
    numbered = [f"seed {s}" if once else f"{n} (seed {s})" for n, (s, _) in enumerate(pairs)]
    # Data of the script, which treats all text as text.
    about = {
        "world": place,
        "slug": slug,
        "title": world.name,
        "caption": f"All problems, {world.name}; ILA, FLA and MR in percent",
        "arms": list(world.titles.values()),
        "ids": problem_ids(world),
        "replicates": numbered,
        "lives": [sorted(r for arm, r in lives if arm == k) for k in range(len(arms))],
        "redrawn": redrawn(world),
        "fates": [{"name": name, "colour": FATE_COLOURS[name]} for name in WORST_FIRST],
        "kinds": [number._asdict() for number in shown],
        "columns": plain(columns),
    }
    parts = [
        tag("h3", world.name),
        tag("p", REDRAWN, class_="note") if redrawn(world) else None,
        tag("p", _which(len(pairs), opened), class_="how"),
        tag("div", id=name, class_="problems", data_table=f"{name}-about"),
        _on_paper(world, columns, shown[0], numbered[0] if redrawn(world) else ""),
        stored(deflated(json.dumps(about, separators=(",", ":"))), f"{name}-about"),
        *(stored(text, f"life-{place}-{arm}-{r}") for (arm, r), text in lives.items()),
    ]
    return join(parts)


def _on_paper(world: ReportedComparison, columns: Columns, number: _Number, drawn: str) -> Html:
    """The first problems with one number of each arm, for print and for readers without scripts.

    They are those of the first replicate, `drawn`, where each has problems of its own, else "".
    """
    key = f"{number.key}{'.0' * bool(drawn)}"
    numbers = [columns[f"{k}.{key}"][:ON_PAPER] for k in range(len(world.comparison.arms))]
    if number.key == "fate":
        cells = [np.array(["not known", *WORST_FIRST])[values] for values in numbers]
    else:
        cells = [[mean_sd(100 * value, digits=0) for value in values] for values in numbers]
    rows = list(zip(columns["problem"][:ON_PAPER].tolist(), *cells, strict=True))
    head = [f"problem, {number.name}", *world.titles.values()]
    whose = f" of replicate {drawn}" if drawn else ""
    n = len(columns["problem"])
    how = f"{len(rows)} of {n} problems{whose}; the page itself lists all of them."
    return tag("div", tag("p", how, class_="small-how"), table(head, rows), class_="on-paper")


def _which(n: int, opened: list[int]) -> str:
    if len(opened) == n:
        return f"The lives of all {n} replicates can be opened." if n > 1 else ""
    # Those that fit are the first ones.
    numbers = f"0 to {opened[-1]}" if opened[-1] else "0"
    return (
        f"Of {n} replicates the lives of number {numbers} can be opened, under every arm, to keep "
        "the page small; lab.measures.problems reads the others from the run folder."
    )


def problem_columns(world: ReportedComparison, replicates: Collection[int]) -> Columns:
    """All problems under all arms, with the own numbers of some replicates besides the means.

    Returns:
        `problem` (N,) and, for the arm at place k, (N,) each: `k.fate`, the commonest fate over
        the replicates (place in `WORST_FIRST` plus one, the worse at equal counts, 0 where there
        is none), `k.same` replicates share it of `k.known`; means over replicates: `k.ila`,
        `k.fla`, `k.first` and `k.last` (match rate of the first three and last five visits, or of
        those made so far), `k.flips` (label changes in training), NaN where not known. `k.fate.r`
        and so on are those of replicate r alone. Shares are rounded to 0.001 and flips to 0.1.
    """
    arms, traces = world.comparison.arms, world.comparison.traces
    problem = np.unique(np.concatenate([ints(traces[arm].visits, "problem") for arm in arms]))
    columns: Columns = {"problem": problem}
    for place, arm in enumerate(arms):
        rows, fates = _rows(traces[arm].visits), world.comparison.fates(arm)
        numbers = _summary(rows, fates, problem)
        for r in replicates:
            single = _summary(where(rows, replicate=r), where(fates, replicate=r), problem)
            numbers |= {f"{n}.{r}": v for n, v in single.items() if n not in ("same", "known")}
        columns |= {f"{place}.{name}": values for name, values in numbers.items()}
    return columns


def problem_ids(world: ReportedComparison) -> list[str] | None:
    """The problems' own names, where the runs noted them and agree; not escaped."""
    first, *others = (run.extra.get("problem_ids") for run in world.comparison.manifests)
    agree = isinstance(first, list) and all(ids == first for ids in others)
    return [str(name) for name in first] if agree and first else None


def redrawn(world: ReportedComparison) -> bool:
    """Return whether replicates drew problems of their own, whose numbers match no other's."""
    pairs, runs = world.comparison.pairs, world.comparison.manifests
    fixed = [run.config["fixed_population"] for run in runs if run.draws_problems]
    # A fixed population is that of one seed.
    return bool(fixed) and len({seed for seed, _ in pairs} if all(fixed) else pairs) > 1


def _rows(visits: pd.DataFrame) -> pd.DataFrame:
    past = histories(visits)
    first = past.order[past.start]
    columns: Columns = {name: ints(visits, name)[first] for name in ("replicate", "problem")}
    rate, flipped = (floats(visits, name)[past.order] for name in ("match_rate", "flipped"))
    early, late = past.visit < FIRST, past.visit >= past.length[past.number] - LAST
    for name, chosen in (("first", early), ("last", late)):
        columns[name] = group_mean(np.where(chosen, rate, np.nan), past.number, len(first))
    return pd.DataFrame(columns | {"flips": np.bincount(past.number, flipped, len(first))})


def _summary(rows: pd.DataFrame, fates: pd.DataFrame, problem: Ints) -> dict[str, Any]:
    n, place = len(problem), np.searchsorted(problem, ints(rows, "problem"))
    columns: Columns = {
        name: group_mean(floats(rows, name), place, n).round(digits)
        for name, digits in (("first", 3), ("last", 3), ("flips", 1))
    }
    place = np.searchsorted(problem, ints(fates, "problem"))
    cell = place * len(FATES) + pd.Categorical(fates["fate"], categories=list(WORST_FIRST)).codes
    counts = np.bincount(cell, minlength=n * len(FATES)).reshape(n, len(FATES))
    known = counts.sum(axis=1)
    for name in ("ila", "fla"):
        columns[name] = group_mean(floats(fates, name), place, n).round(3)
    fate = np.where(known > 0, 1 + counts.argmax(axis=1), 0)
    return columns | {"fate": fate, "same": counts.max(axis=1), "known": known}


def packed_lives(worlds: Worlds, budget: int = BUDGET) -> list[dict[Key, str]]:
    """Lives as deflated JSON: the first replicate of every arm, and as many further ones as fit.

    A replicate has all its arms or none, so that arms can be compared.
    """
    chosen: list[dict[Key, str]] = [{} for _ in worlds]
    going = set(range(len(worlds)))
    for replicate in range(max((len(w.comparison.pairs) for w in worlds), default=0)):
        for place in sorted(going):
            used = sum(len(text) for lives in chosen for text in lives.values())
            left = budget - used if replicate else math.inf
            lives = _lives(worlds[place].comparison, replicate, left)
            if lives is None:
                going.discard(place)
            else:
                chosen[place] |= lives
    return chosen


def _lives(comparison: Comparison, replicate: int, left: float) -> dict[Key, str] | None:
    """The lives of a replicate under all arms that have it, None if they do not fit."""
    packed: dict[Key, str] = {}
    for place, arm in enumerate(comparison.arms):
        if lives := replicate_lives(comparison.traces[arm], replicate):
            packed[place, replicate] = deflated(json.dumps(lives, separators=(",", ":")))
        if sum(map(len, packed.values())) > left:
            return None
    return packed


def replicate_lives(trace: Trace, replicate: int) -> dict[int, dict[str, Any]]:
    """The lives of a replicate's problems, by problem; empty if it has none.

    Each has `visit`, `votes` (of each visit), `flips` (in training) and `traces`: place in
    `life_template`, name or None for the template's, x or None for all visits, y or None for zeros,
    text of the hover or None. An area's y is percent, or a text of a letter per visit: `_ZERO` and
    as many letters on as it has votes.
    """
    visits = where(trace.visits, replicate=replicate).sort_values(["problem", "visit"])
    votes = where(trace.votes, replicate=replicate).sort_values("problem")
    answers = where(trace.answers, replicate=replicate).sort_values("problem")
    lives = {}
    for problem in np.unique(ints(visits, "problem")).tolist():
        known = _of_problem(answers, problem)
        names = dict(zip(known["answer"].tolist(), known["text"].astype(str), strict=True))
        life, voted = _of_problem(visits, problem), _of_problem(votes, problem)
        voted = voted.take(np.flatnonzero(np.isin(voted["visit"], life["visit"])))
        flips = flags(life, "flipped") & (ints(life, "visit") > 0)
        lines = life_lines(life, areas(life, voted, names, TOP), names)
        lives[problem] = {
            "visit": life["visit"].tolist(),
            "votes": life["n_votes"].tolist(),
            "flips": int(flips.sum()),
            "traces": [_packed(life, line) for line in lines],
        }
    return lives


def _of_problem(table: pd.DataFrame, problem: int) -> pd.DataFrame:
    start, end = np.searchsorted(table["problem"].to_numpy(), [problem, problem + 1])
    return table.iloc[start:end]


def _packed(life: pd.DataFrame, line: Line) -> list[Any]:
    """A trace of `life_lines` as the page stores it."""
    place, area, chosen, y, custom = line
    x = None if chosen is None else ints(life, "visit")[chosen].tolist()
    if area is not None and y is not None:
        return [place, area[0], x, _letters(y, floats(life, "n_votes")), None]
    numbers = None if y is None else plain(y.round(3))
    if custom is not None:
        custom = custom.tolist() if custom.dtype.kind == "U" else plain(custom.round(3))
    return [place, None, x, numbers, custom]


def _letters(share: Floats, votes: Floats) -> str | list[float]:
    """Counts as letters, a third of the digits' size; percent where they are no whole numbers."""
    counts = np.rint(share * votes)
    if counts.max(initial=0) > _MOST_VOTES or (np.abs(counts - share * votes) > 1e-6).any():
        return plain((100 * share).round(2))
    return "".join(chr(ord(_ZERO) + count) for count in counts.astype(int).tolist())
