"""What a comparison of arms at their own best steps shows, in plain words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import pandas as pd

from lab.arms import title
from lab.columns import floats
from sim.studies.contrast import BEST, BEST_RIVAL, METRIC, best_rival
from sim.studies.controls import CEILING
from sim.studies.frames import equal, groups, mean, unique, where
from sim.studies.own_best import Edge, edges, own_best


def own_best_words(rows: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """Guarded arms against the best rival, what no step improves, and bests at a grid's end.

    Args:
        rows: of `run_sweep`, of one policy, over several steps.
        table: from `sim.studies.contrast.contrasts`, of that policy.
    """
    best = own_best(rows, ["step"], METRIC)
    useless = _useless(best)
    lines = [*_against_rival(rows, table), *_no_gain(best, useless)]
    return lines + edge_words(edges(best, "step", unique(rows, "step")), useless)


def edge_words(found: Iterable[Edge], useless: Collection[str] = ()) -> list[str]:
    """Warnings where a best step lies at the end of the grid.

    Args:
        found: from `sim.studies.own_best.edges`.
        useless: arms that are at their best without training: the less they train the better, so
            for them the smallest step is no accident of the grid.
    """
    by_side: dict[tuple[float, str], list[str]] = {}
    for edge in found:
        if edge.arm == CEILING or (edge.side == "smallest" and edge.arm in useless):
            continue
        by_side.setdefault((edge.value, edge.side), []).append(title(edge.arm))
    return [
        f"warning: the best step of {', '.join(arms)} is the {side} of the grid, {value:g}: "
        f"a {'smaller' if side == 'smallest' else 'larger'} one may be better still"
        for (value, side), arms in by_side.items()
    ]


def _useless(best: pd.DataFrame) -> list[str]:
    """Arms that even their best step leaves no better than no training at all."""
    return [
        str(arm)
        for (arm,), part in groups(best, ["arm"])
        if mean(part, METRIC) <= mean(part, "pass_start")
    ]


def _against_rival(rows: pd.DataFrame, table: pd.DataFrame) -> Iterator[str]:
    at_best = equal(table, "at", BEST) & equal(table, "against", BEST_RIVAL)
    own = where(table, at_best & equal(table, "metric", METRIC))
    if not len(own):
        return
    rival = _chosen(best_rival(rows))
    for (arm,), row in groups(own, ["arm"]):
        value, low, high = (float(floats(row, name)[0]) for name in ("mean", "low", "high"))
        verdict = str(row["verdict"].iloc[0])
        yield (
            f"{title(arm)} at its best minus the best rival at its best ({rival}): "
            f"{value:+.1f} points of pass@1 [{low:+.1f}, {high:+.1f}], {verdict}"
        )


def _chosen(rows: pd.DataFrame) -> str:
    """Arms and steps that were chosen on either half."""
    pairs = dict.fromkeys(zip(rows["arm"], floats(rows, "step"), strict=True))
    return ", ".join(f"{title(arm)} at {step:g}" for arm, step in pairs)


def _no_gain(best: pd.DataFrame, useless: Collection[str]) -> Iterator[str]:
    scores = [f"{title(a)} {mean(where(best, equal(best, 'arm', a)), METRIC):.1f}" for a in useless]
    if scores:
        yield (
            f"no step of the grid is better than no training at all, "
            f"{mean(best, 'pass_start'):.1f}, for: {', '.join(scores)}"
        )
