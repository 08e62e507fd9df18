"""The lives of all problems as short texts, one per arm and replicate, within a budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from lab.columns import Ints, ints
from lab.figures.life import shortened
from lab.report.content.digest import ReportedComparison
from lab.report.problems.life_votes import Lives, top_votes
from lab.report.problems.packing import Array, pack
from lab.trace.trace import Trace

BUDGET = 6_000_000
"""Characters of all lives of a page."""
TOP = 5
"""Answers of a problem that keep an area of their own where a trace has votes."""
Key = tuple[int, int]
"""Place of the arm, and replicate."""
_READ = (
    "visit", "n_votes", "n_unparseable", "label", "flipped", "match_rate", "flip_rate", "route",
    "weight", "label_accuracy", "label_correct",
)  # fmt: skip


class ArmLives:
    """The lives of one arm, packed one replicate at a time."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        visits = trace.visits
        replicate, problem, visit = (ints(visits, n) for n in ("replicate", "problem", "visit"))
        self._width = 1 + int(problem.max())
        history = replicate * self._width + problem
        self._order = np.argsort(history * (1 + visit.max()) + visit)
        self._history = history[self._order]

    def packed(self, replicate: int) -> str | None:
        """Return the packed lives of a replicate; None if it has none.

        Columns: `problem` and `length` of each life, then one value per visit, lives one after
        the other: `step` from the visit before (the first counts from -1), `n_votes`,
        `n_unparseable`, `label` (plus one), `flipped`, `label_correct`, `route`, `flip_rate`,
        `weight`. Without votes `match_rate` and `label_accuracy`; with them, for k below `TOP`,
        `answer_k` (plus one, 0 for none) and `correct` of each life, and `votes_k` of each visit;
        where the trace knows the answers' texts, `texts` of each life, by answer id.
        """
        lives = self._lives(replicate)
        if lives is None:
            return None
        table = lives.table
        step = np.diff(table["visit"], prepend=0)
        step[lives.start] = table["visit"][lives.start] + 1
        columns: dict[str, Array | list[Any]] = {
            "problem": lives.problem,
            "length": lives.length,
            "step": step,
            "label": table["label"] + 1,
            **{n: table[n] for n in ("n_votes", "n_unparseable", "flipped", "label_correct")},
            **{n: table[n] for n in ("route", "flip_rate", "weight")},
        }
        votes = self._votes(replicate)
        if votes.empty:
            return pack(columns | {n: table[n] for n in ("match_rate", "label_accuracy")})
        found = top_votes(lives, votes, TOP)
        columns["correct"] = found.correct
        for k in range(TOP):
            columns |= {f"answer_{k}": found.answer[k] + 1, f"votes_{k}": found.votes[k]}
        return pack(columns | self._texts(replicate, lives, found.answer))

    def _texts(self, replicate: int, lives: Lives, answer: Ints) -> dict[str, list[dict[str, str]]]:
        """`texts` of each life: those of the answers (top, N), and of its labels."""
        rows = self._trace.answers
        rows = rows.take(np.flatnonzero(rows["replicate"].to_numpy() == replicate))
        if rows.empty:
            return {}
        width = 2 + max(answer.max(), lives.table["label"].max(), ints(rows, "answer").max())
        labels = lives.problem[lives.life] * width + lives.table["label"]
        wanted = np.concatenate([labels, (lives.problem * width + answer)[answer >= 0]])
        rows = rows.take(
            np.flatnonzero(np.isin(ints(rows, "problem") * width + ints(rows, "answer"), wanted))
        )
        texts: list[dict[str, str]] = [{} for _ in lives.problem]
        place = np.searchsorted(lives.problem, ints(rows, "problem")).tolist()
        for life, number, text in zip(place, rows["answer"], rows["text"], strict=True):
            texts[life][str(number)] = shortened(str(text))
        return {"texts": texts}

    def _lives(self, replicate: int) -> Lives | None:
        ends = [replicate * self._width, (replicate + 1) * self._width]
        first, last = np.searchsorted(self._history, ends)
        if first == last:
            return None
        rows, history = self._order[first:last], self._history[first:last]
        start = np.flatnonzero(np.diff(history, prepend=-1))
        table = {name: _plain(self._trace.visits, name, rows) for name in _READ}
        length = np.diff(start, append=len(rows))
        return Lives(history[start] % self._width, start, length, table)

    def _votes(self, replicate: int) -> pd.DataFrame:
        votes = self._trace.votes
        return votes.take(np.flatnonzero(votes["replicate"].to_numpy() == replicate))


def packed_lives(
    worlds: Sequence[ReportedComparison], budget: int = BUDGET
) -> list[dict[Key, str]]:
    """As many lives as fit: the first replicate of every arm, then the second, and so on.

    The first arm of each world always has its first replicate; further arms of that replicate
    come one by one, further replicates with all their arms or not at all, so that arms can be
    compared.

    Args:
        worlds: the comparisons of the page.
        budget: characters for all of them.

    Returns:
        One dictionary per world.
    """
    readers = [
        [ArmLives(world.comparison.traces[arm]) for arm in world.comparison.arms]
        for world in worlds
    ]
    chosen: list[dict[Key, str]] = [{} for _ in worlds]
    going = set(range(len(worlds)))
    for replicate in range(max((len(w.comparison.pairs) for w in worlds), default=0)):
        for place in sorted(going):
            left = budget - sum(len(text) for own in chosen for text in own.values())
            if not _add(readers[place], replicate, chosen[place], left):
                going.discard(place)
    return chosen


def _add(readers: Sequence[ArmLives], replicate: int, chosen: dict[Key, str], left: int) -> bool:
    """Add one replicate of all arms; False once there is no room."""
    first = not chosen
    found: dict[Key, str] = {}
    for arm, reader in enumerate(readers):
        text = reader.packed(replicate)
        if text is None:
            continue
        left -= len(text)
        if left >= 0 or (first and not found):
            found[arm, replicate] = text
            continue
        if first:
            chosen.update(found)
        return False
    chosen.update(found)
    return True


def _plain(table: pd.DataFrame, name: str, rows: Ints) -> np.ndarray:
    values = table[name].to_numpy()[rows]
    return values.astype(np.int64) if values.dtype.kind in "iu" else values
