"""The winners of a sweep for reading: `winners.html`, `winners.csv`, `own_best.csv`, and words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from lab.arms import title
from lab.columns import floats, groups, select, unique, where
from lab.compare.own_best import Edge
from lab.figures.settings import arm_scores
from lab.figures.style import arm_order
from lab.figures.winners import MOST_PANELS, winner_chart
from lab.files import whole
from lab.report.elements.figure_page import Part, check_page, figure_page, write_page
from sim.studies.arms.controls import CEILING, is_guarded
from sim.studies.arms.words import edge_words
from sim.studies.sweep.plan import CHOSEN
from sim.studies.sweep.winners import best_scores, layout, print_winners, winners_of

PAGE, CELLS, SCORES = "winners.html", "winners.csv", "own_best.csv"
_CHART = (
    "The colour is the best arm's, the number its mean final pass@1 in percent. Pale and hatched: "
    "its lead over at least one other arm is within noise, a tie; the number after = counts those "
    "other arms. The runner-up, the margin and its interval are in the hover."
)
_SCORES = (
    "What training gains over no training, with 95 % t-interval, every arm at the step that was "
    "best for it on the other half of the replicates. The ceiling is hidden until it is clicked in "
    "the legend, since it would flatten all others."
)
TIES = (
    "A difference within noise is a tie, and in a tie no arm wins. Noise is the 95 % t-interval "
    "and the bootstrap over paired replicates; it is not corrected for the number of cells, so "
    "about one tie in twenty is broken by chance."
)
FROZEN = (
    "Frozen labels never change: what other problems learn can move a problem's votes, but never "
    "mend its label. Labels that follow the votes can be mended."
)


def write_winners(rows: pd.DataFrame, names: Sequence[str], seed: int, folder: Path) -> list[str]:
    """Write the page and its tables, print the charts in text.

    Args:
        rows: of `run_sweep`.
        names: varied settings.
        seed: of the bootstrap.
        folder: of the sweep.

    Returns:
        The findings in words, and the page's path.

    Raises:
        UserError: the page would overwrite something else, or cannot be written.
    """
    check_page(folder / PAGE)
    table = winners_of(rows, names, seed)
    rest = [name for name in names if name != CHOSEN]
    scores = best_scores(rows, rest, CHOSEN) if CHOSEN in names else None
    _csv(table, folder / CELLS)
    if scores is not None:
        _csv(scores, folder / SCORES)
    print_winners(table, names)
    words = winner_words(table, scores, names)
    parts = [_chart(table, names), *_curves(scores, names)]
    write_page(folder / PAGE, figure_page("Which arm wins where", words, parts))
    return ["", *words, str(folder / PAGE)]


def winner_words(
    table: pd.DataFrame, scores: pd.DataFrame | None, names: Sequence[str]
) -> list[str]:
    """Return paragraphs for the page and for the terminal, all numbers counted from the tables.

    Args:
        table: from `sim.studies.sweep.winners.winners_of`.
        scores: from `sim.studies.sweep.winners.best_scores`, where the step was varied.
        names: varied settings.
    """
    at_best = np.isnan(floats(table, CHOSEN)) if CHOSEN in names else np.zeros(len(table), bool)
    at_values = select(table, ~at_best)
    lines = [*_counted(at_values, f"cells of {_and(names)}"), TIES, *_by_panel(at_values, names)]
    if at_best.any():
        rest = _and([name for name in names if name != CHOSEN])
        what = f"cells of {rest}, every arm at its own best step,"
        lines += _counted(select(table, at_best), what)
    if scores is not None:
        lines += [*_transfer(scores, names), *edge_words(_edges(scores))]
    return lines


def _counted(table: pd.DataFrame, what: str) -> Iterator[str]:
    alone = Counter(w for w, t in zip(table["winner"], table["ties"], strict=True) if w and not t)
    tied: Counter[str] = Counter()
    for winner, ties in zip(table["winner"], table["ties"], strict=True):
        tied.update([winner, *ties.split(",")] if ties else [])
    n_tied = sum(bool(ties) for ties in table["ties"])
    won = ", ".join(f"{title(arm)} {n}" for arm, n in alone.most_common())
    yield (
        f"In {alone.total()} of {len(table)} {what} one arm is ahead of all others beyond noise"
        f"{': ' + won if won else ''}. In {n_tied} the best arm is tied with others."
    )
    arms = arm_order([*alone, *tied])
    guarded = [arm for arm in arms if is_guarded(arm)]
    if guarded:
        shares = [
            f"{title(a)} wins alone in {alone[a]}{_lead(table, a)} and ties in {tied[a]}"
            for a in guarded
        ]
        yield f"Of these cells {'; '.join(shares)}."
    elif arms:
        yield "No guarded arm wins or ties in any of these cells."


def _lead(table: pd.DataFrame, arm: str) -> str:
    """The largest margin where the arm wins alone: beyond noise may still be next to nothing."""
    alone = where(table, winner=arm, ties="")
    return f" (by at most {max(floats(alone, 'margin')):.2f} points)" if len(alone) else ""


def _by_panel(table: pd.DataFrame, names: Sequence[str]) -> Iterator[str]:
    """The number of wins of every arm, by value of the setting of the small charts."""
    for name in layout(names)[2][:1]:
        for (value,), part in sorted(groups(table, [name]), key=lambda group: group[0]):
            pairs = zip(part["winner"], part["ties"], strict=True)
            marks = Counter("a tie" if ties else title(winner) for winner, ties in pairs)
            shown = ", ".join(f"{mark} {n}" for mark, n in marks.most_common())
            yield f"Winners at {name} {value:g}: {shown}."


def _transfer(scores: pd.DataFrame, names: Sequence[str]) -> Iterator[str]:
    """The gain of every arm at its own best when positive transfer rises."""
    name = "kappa_corr"
    if name not in names:
        return
    values = sorted(unique(scores, name))
    ends = [where(scores, **{name: value}) for value in (values[0], values[-1])]
    changes = []
    for arm in arm_order(scores["arm"]):
        first, last = (float(np.mean(floats(where(e, arm=arm), "gain"))) for e in ends)
        if math.isfinite(last - first):
            changes.append(f"{title(arm)} {first:+.1f} to {last:+.1f}")
    yield (
        f"What training gains over no training, in points of pass@1 at every arm's own best step, "
        f"from {name} {values[0]:g} to {values[-1]:g}: {', '.join(changes)}."
    )
    if "frozen" in unique(scores, "arm"):
        yield FROZEN


def _edges(scores: pd.DataFrame) -> list[Edge]:
    """Best settings at an end of the grid that are better than no training."""
    at_ends = select(scores, np.asarray(scores["edge"] != "") & (floats(scores, "gain") > 0))
    edges = []
    for (arm, side), part in groups(at_ends, ["arm", "edge"]):
        chosen = [float(v) for text in part["best"] for v in str(text).split(", ")]
        edges.append(Edge(arm, min(chosen) if side == "smallest" else max(chosen), side))
    return edges


def _and(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def _chart(table: pd.DataFrame, names: Sequence[str]) -> Part:
    across, down, panels = layout(names)
    n_panels = len(table[panels].drop_duplicates()) if panels else 1
    heading = "The best arm of every cell"
    if n_panels > MOST_PANELS:
        why = f"{n_panels} small charts are too many to draw; all cells are in {CELLS}."
        return Part(heading, [why], None)
    figure = winner_chart(table, across, down, panels)
    return Part(heading, [_CHART], figure, f"Best arm over {', '.join(names)}, as coloured cells")


def _curves(scores: pd.DataFrame | None, names: Sequence[str]) -> list[Part]:
    """Scores at own best over the last other setting, a panel for every value of the first."""
    across, *rest = [*reversed([name for name in names if name != CHOSEN]), None]
    numeric = scores is not None and all(
        pd.api.types.is_numeric_dtype(scores[name]) for name in names if name != CHOSEN
    )
    if scores is None or across is None or len(rest) > 2 or not numeric:
        return []
    panel = rest[0]
    if panel is not None and len(unique(scores, panel)) > MOST_PANELS:
        return []
    figure = arm_scores(scores, across, panel, hidden=[CEILING])
    heading = f"Every arm at its own best step, over {across}"
    return [Part(heading, [_SCORES], figure, f"pass@1 of every arm at its best over {across}")]


def _csv(table: pd.DataFrame, path: Path) -> None:
    with whole(path) as temporary:
        table.to_csv(temporary, index=False)
