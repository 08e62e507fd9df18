"""Replicates of several runs of one arm as one trace, numbered so that arms pair by seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from lab.columns import ints
from lab.trace.trace import Trace

PairKey = tuple[int, int]
"""Seed, and place among the replicates drawn from that seed: what two arms are paired by."""


def pair_keys(trace: Trace) -> dict[int, PairKey]:
    """Replicate number to the seed and place that it is paired by."""
    seeds = trace.run.seeds
    replicates = trace.replicates
    if len(seeds) > max(replicates):
        made: Counter[int] = Counter()
        place = []
        for seed in seeds:
            place.append(made[seed])
            made[seed] += 1
        return {r: (seeds[r], place[r]) for r in replicates}
    seed = seeds[0] if seeds else 0
    return {r: (seed, r) for r in replicates}


def together(traces: Sequence[Trace], pairs: Sequence[PairKey]) -> Trace:
    """One trace of one arm, replicates numbered by their place in `pairs`.

    Args:
        traces: runs of one arm whose pair keys differ.
        pairs: all pair keys of the comparison, sorted.
    """
    number = {key: place for place, key in enumerate(pairs)}
    parts = [(trace, {r: number[key] for r, key in pair_keys(trace).items()}) for trace in traces]
    # By seed, whatever order the folders were found in.
    parts.sort(key=lambda part: min(part[1].values()))
    seeds = [pairs[n][0] for n in sorted(n for _, numbers in parts for n in numbers.values())]
    first = parts[0][0]
    return Trace(
        visits=_joined([_renumbered(t.visits, n) for t, n in parts]),
        steps=_joined([_renumbered(t.steps, n) for t, n in parts]),
        evals=_joined([_renumbered(t.evals, n) for t, n in parts]),
        run=replace(first.run, seeds=seeds),
        folder=first.folder,
        votes=partial(_votes, parts),
        answers=partial(_answers, parts),
    )


def _votes(parts: list[tuple[Trace, dict[int, int]]]) -> pd.DataFrame:
    return _joined([_renumbered(t.votes, n) for t, n in parts])


def _answers(parts: list[tuple[Trace, dict[int, int]]]) -> pd.DataFrame:
    return _joined([_renumbered(t.answers, n) for t, n in parts])


def _joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    # A single table is the common case of a large run: joining would copy it.
    if len(tables) == 1:
        return tables[0].reset_index(drop=True)
    return pd.concat(tables, ignore_index=True)


def _renumbered(table: pd.DataFrame, number: dict[int, int]) -> pd.DataFrame:
    """The rows of known replicates under their new numbers."""
    old = ints(table, "replicate")
    size = 1 + max(max(number), int(old.max(initial=0)))
    is_known, new = np.zeros(size, bool), np.zeros(size, np.int16)
    is_known[list(number)] = True
    new[list(number)] = list(number.values())
    known = is_known[old]
    if known.all():
        return table.assign(replicate=new[old])
    return table[known].assign(replicate=new[old[known]])
