"""`winners.html`, `winners.csv` and `own_best.csv`: which arm wins where, for reading."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lab.figures.settings import arm_scores
from lab.figures.winners import MOST_PANELS, winner_chart
from lab.files import whole
from lab.report.figure_page import Part, check_page, figure_page, write_page
from sim.studies.controls import CEILING
from sim.studies.frames import unique
from sim.studies.own_best import best_scores
from sim.studies.sweep.winner_words import winner_words
from sim.studies.sweep.winners import CHOSEN, layout, print_winners, winners_of

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
