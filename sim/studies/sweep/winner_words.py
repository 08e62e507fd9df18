"""Who wins where, in plain words: all numbers are counted from the tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from lab.arms import title
from lab.columns import floats
from lab.figures.style import arm_order
from sim.studies.best_words import edge_words
from sim.studies.controls import is_guarded
from sim.studies.frames import equal, groups, unique, where
from sim.studies.own_best import Edge
from sim.studies.sweep.winners import CHOSEN, layout

TIES = (
    "A difference within noise is a tie, and in a tie no arm wins. Noise is the 95 % t-interval "
    "and the bootstrap over paired replicates; it is not corrected for the number of cells, so "
    "about one tie in twenty is broken by chance."
)
FROZEN = (
    "Frozen labels never change: what other problems learn can move a problem's votes, but never "
    "mend its label. Labels that follow the votes can be mended."
)


def winner_words(
    table: pd.DataFrame, scores: pd.DataFrame | None, names: Sequence[str]
) -> list[str]:
    """Paragraphs for the page and for the terminal.

    Args:
        table: from `sim.studies.sweep.winners.winners_of`.
        scores: from `sim.studies.own_best.best_scores`, where the step was varied.
        names: varied settings.
    """
    own = np.isnan(floats(table, CHOSEN)) if CHOSEN in names else np.zeros(len(table), bool)
    at_values = where(table, ~own)
    lines = [*_counted(at_values, f"cells of {_and(names)}"), TIES, *_by_panel(at_values, names)]
    if own.any():
        rest = _and([name for name in names if name != CHOSEN])
        what = f"cells of {rest}, every arm at its own best step,"
        lines += _counted(where(table, own), what)
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
    """How far an arm is ahead where it wins alone: beyond noise may still be next to nothing."""
    own = where(table, equal(table, "winner", arm) & equal(table, "ties", ""))
    return f" (by at most {max(floats(own, 'margin')):.2f} points)" if len(own) else ""


def _by_panel(table: pd.DataFrame, names: Sequence[str]) -> Iterator[str]:
    """Who wins how often at every value of the setting of the small charts."""
    for name in layout(names)[2][:1]:
        for (value,), part in sorted(groups(table, [name]), key=lambda group: group[0]):
            pairs = zip(part["winner"], part["ties"], strict=True)
            marks = Counter("a tie" if ties else title(winner) for winner, ties in pairs)
            shown = ", ".join(f"{mark} {n}" for mark, n in marks.most_common())
            yield f"Winners at {name} {value:g}: {shown}."


def _transfer(scores: pd.DataFrame, names: Sequence[str]) -> Iterator[str]:
    """What every arm gains at its own best when the setting of the small charts rises."""
    name = "kappa_corr" if "kappa_corr" in names else layout(names)[2][:1]
    if not isinstance(name, str):
        return
    values = sorted(unique(scores, name))
    ends = [where(scores, equal(scores, name, value)) for value in (values[0], values[-1])]
    changes = []
    for arm in arm_order(scores["arm"]):
        first, last = (float(np.mean(floats(where(e, equal(e, "arm", arm)), "gain"))) for e in ends)
        if math.isfinite(last - first):
            changes.append(f"{title(arm)} {first:+.1f} to {last:+.1f}")
    yield (
        f"What training gains over no training, in points of pass@1 at every arm's own best step, "
        f"from {name} {values[0]:g} to {values[-1]:g}: {', '.join(changes)}."
    )
    if "frozen" in unique(scores, "arm"):
        yield FROZEN


def _edges(scores: pd.DataFrame) -> list[Edge]:
    """Bests at the end of the grid that are better than no training."""
    found = where(scores, np.asarray(scores["edge"] != "") & (floats(scores, "gain") > 0))
    edges = []
    for (arm, side), part in groups(found, ["arm", "edge"]):
        chosen = [float(v) for text in part["best"] for v in str(text).split(", ")]
        edges.append(Edge(arm, min(chosen) if side == "smallest" else max(chosen), side))
    return edges


def _and(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
