"""The paper's printed numbers as data, and its tables made from our traces beside them.

`tab:main` and `tab:full_fates` are held against ours; notes say where they contradict each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
import pandas as pd

from guard_core.config import ROUNDING
from lab.base.columns import Floats, floats
from lab.base.stats import estimate
from lab.compare.collection import Comparison
from lab.compare.tables import metrics, metrics_of

LLAMA, QWEN, QWEN3 = "Llama-3.2-3B", "Qwen2.5-7B", "Qwen3-4B"
AIME24, AIME25, AMC, MATH = "AIME 2024", "AIME 2025", "AMC", "MATH-500"
DATA_SETS = (AIME24, AIME25, AMC, MATH)
AVERAGE = "Average"
"""In place of a data set: the mean over all four."""
N_PROBLEMS = {AIME24: 30, AIME25: 30, AMC: 83, MATH: 500}

BASE = "base"
"""No training; no arm, but what every arm starts from."""
METHOD_TITLES = {BASE: "Base model", "coverrl": "CoVerRL", "scope": "SCOPE"}
"""Methods of the paper that are no arm of this project (`lab.base.arms` names the others)."""

_MAIN = (BASE, "ttrl", "coverrl", "scope", "frs", "mps", "rcsu", "guard")
_PASS: dict[str, tuple[tuple[float, ...], ...]] = {
    LLAMA: (
        (4.7, 0.0, 20.6, 43.9, 17.3),
        (13.3, 0.0, 31.3, 52.1, 24.1),
        (16.9, 1.8, 34.8, 57.0, 27.6),
        (17.1, 0.8, 38.7, 61.7, 29.6),
        (17.1, 3.3, 34.0, 54.0, 27.1),
        (20.3, 0.8, 33.3, 55.8, 27.6),
        (16.7, 0.9, 34.8, 54.9, 26.8),
        (19.5, 3.3, 36.8, 57.3, 29.2),
    ),
    QWEN: (
        (18.1, 6.4, 43.6, 77.2, 36.3),
        (20.0, 15.6, 52.4, 81.0, 42.3),
        (21.5, 16.7, 55.0, 80.0, 43.3),
        (21.1, 14.6, 51.1, 81.0, 42.0),
        (20.2, 23.3, 52.6, 82.1, 44.6),
        (20.5, 20.0, 53.5, 82.2, 44.1),
        (21.3, 20.1, 51.2, 81.6, 43.6),
        (21.9, 24.1, 53.8, 82.0, 45.5),
    ),
    QWEN3: (
        (3.3, 1.8, 19.3, 52.9, 19.3),
        (36.7, 33.3, 71.4, 89.1, 57.6),
        (40.5, 31.8, 69.5, 90.3, 58.0),
        (38.8, 35.6, 73.0, 90.4, 59.5),
        (35.5, 36.1, 72.2, 90.6, 58.6),
        (38.0, 35.6, 73.6, 90.7, 59.5),
        (36.4, 35.9, 73.2, 90.3, 59.0),
        (37.8, 36.2, 73.6, 91.0, 59.7),
    ),
}

PASS_AT_1: dict[tuple[str, str, str], float] = {
    (model, data, method): value
    for model, rows in _PASS.items()
    for method, row in zip(_MAIN, rows, strict=True)
    for data, value in zip((*DATA_SETS, AVERAGE), row, strict=True)
}
"""(model, data set or `AVERAGE`, method) to pass@1 in percent, `tab:main`."""

GUARDS = ("guard", "guard: flip_rate=instant", "guard_release")
"""The guard as the text has it, with the one-step flip rate, and as the authors' scripts set it."""
CELLS = ("Degraded", "Marginal Degraded", "Learned", "Stable Always Right", "Always Wrong")
"""Printed fates that are no sum of others. Marginal Stable is not printed; with what matches no
fate it is what the cells leave of 100, so it is no further number."""
TOTAL = "TotalDeg"

Shares = tuple[float, float, float, float, float]
"""Percent of the problems, in the order of `CELLS`."""

FATES: dict[tuple[str, str, str], Shares] = {
    (LLAMA, MATH, "ttrl"): (53.8, 6.4, 0.2, 2.8, 36.4),
    (LLAMA, MATH, "guard"): (24.0, 4.0, 0.8, 32.0, 35.2),
    (LLAMA, AMC, "ttrl"): (12.0, 3.6, 1.2, 24.1, 55.4),
    (LLAMA, AMC, "guard"): (5.0, 3.0, 2.4, 28.3, 55.4),
    (LLAMA, AIME24, "ttrl"): (3.3, 3.3, 3.3, 13.3, 76.7),
    (LLAMA, AIME24, "guard"): (0.0, 3.3, 6.7, 16.7, 73.3),
    (QWEN, MATH, "ttrl"): (13.8, 2.0, 0.6, 63.0, 20.2),
    (QWEN, MATH, "guard"): (3.8, 1.6, 1.0, 68.0, 22.0),
    (QWEN, AMC, "ttrl"): (1.2, 1.2, 0.0, 48.2, 47.0),
    (QWEN, AMC, "guard"): (0.0, 1.2, 1.2, 50.6, 44.6),
    (QWEN, AIME25, "ttrl"): (3.3, 0.0, 0.0, 13.3, 76.7),
    (QWEN, AIME25, "guard"): (0.0, 3.3, 3.3, 20.0, 73.3),
}
"""(model, data set, method) to the printed shares, `tab:full_fates`. The printed TotalDeg is
everywhere the sum of its two printed parts."""

PRINTED = 0.05 + ROUNDING
"""Largest error of a number that is printed with one digit."""
NUMBERS = ("mean", "sd", "n", "published", "footnote")
"""Ours over the replicates, the paper's, and what a reader must know about the paper's."""


class Setting(NamedTuple):
    """Model and data set of a printed number."""

    model: str
    data: str


_MODELS = {"llama": LLAMA, "qwen": QWEN, "qwen3": QWEN3}
_DATA = {"math500": MATH, "amc": AMC, "aime24": AIME24, "aime25": AIME25}


def setting_of(task: str) -> Setting | None:
    """The paper's model and data set that a population is named after; None for other tasks."""
    model, _, data = task.partition("-")
    known = model in _MODELS and data in _DATA
    return Setting(_MODELS[model], _DATA[data]) if known else None


def published_fate(setting: Setting, method: str, fate: str) -> float | None:
    """Printed percent of a fate of `CELLS`, or of `TOTAL`; None where nothing is printed."""
    shares = FATES.get((setting.model, setting.data, method), ())
    known = dict(zip(CELLS, shares, strict=False))
    return known.get(fate) if fate != TOTAL or not shares else round(sum(shares[:2]), 1)


def is_whole(share: float, n_problems: int) -> bool:
    """A printed percentage is some whole number of problems, at its one printed digit."""
    problems = round(share * n_problems / 100)
    return abs(100 * problems / n_problems - share) <= PRINTED


def most_accuracy(shares: Shares, always_wrong: float = 0.5) -> float:
    """Greatest mean final label accuracy, in percent, that printed fates allow.

    Args:
        always_wrong: greatest final accuracy of an Always Wrong problem; the definition allows
            just below .5, and a problem that stays where it began below .15.
    """
    # Degraded: below .6, or it would be Stable; Marginal Degraded: below .7 - .15.
    most = {"Degraded": 0.6, "Marginal Degraded": 0.55, "Always Wrong": always_wrong}
    right = sum(share * most.get(cell, 1.0) for cell, share in zip(CELLS, shares, strict=True))
    return 100 - sum(shares) + right


def note_on_pass(setting: Setting, method: str) -> str:
    """Footnote on a printed pass@1; empty if there is none."""
    key = (setting.model, setting.data, method)
    value, shares = PASS_AT_1.get(key), FATES.get(key)
    if value is not None and setting.data == AVERAGE:
        mean = sum(PASS_AT_1[setting.model, data, method] for data in DATA_SETS) / len(DATA_SETS)
        wrong = abs(mean - value) > PRINTED
        return f"the four printed cells have the mean {mean:.3f}" if wrong else ""
    if value is None or shares is None or value <= (stayed := most_accuracy(shares, 0.15)):
        return ""
    return (
        f"the printed fates cap the final label accuracy at {stayed:.1f} % if all Always Wrong "
        "problems ended below .15; their definition alone would allow "
        f"{most_accuracy(shares):.1f} %"
    )


def note_on_fate(setting: Setting, method: str, fate: str) -> str:
    """Footnote on a printed share; empty if there is none."""
    if (value := published_fate(setting, method, fate)) is None:
        return ""
    n_problems = N_PROBLEMS[setting.data]
    if fate == TOTAL:
        odd = [part for part in CELLS[:2] if note_on_fate(setting, method, part)]
        return f"of {' and '.join(odd)}, no multiple of 1/{n_problems}" if odd else ""
    return "" if is_whole(value, n_problems) else f"no multiple of 1/{n_problems}"


def main_table(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """pass@1 at the end, `tab:main`.

    Returns:
        One row per comparison and method, ours and the paper's: world, task, model, data, method
        and `NUMBERS`, in percent. `base` is before training, of all arms. Model and data are empty,
        and nothing is published, for other tasks.
    """
    rows = []
    for comparison in comparisons:
        setting, table = _setting(comparison), metrics(comparison)
        # All arms of a seed start from one model, so their mean is the seed's start.
        ours = {BASE: table.groupby("replicate")["pass_start"].mean().to_numpy(np.float64)}
        ours |= {arm: floats(metrics_of(table, arm), "pass_final") for arm in comparison.arms}
        printed = [m for model, data, m in PASS_AT_1 if (model, data) == setting]
        for method in dict.fromkeys([*ours, *printed]):
            value = PASS_AT_1.get((setting.model, setting.data, method))
            note = note_on_pass(setting, method)
            rows.append(_row(comparison, method, ours.get(method, np.empty(0)), value, note))
    return pd.DataFrame(rows, columns=["world", "task", "model", "data", "method", *NUMBERS])


def fate_table(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Fates in percent of the problems, `tab:full_fates`, where the true answers are known.

    Returns:
        One row per comparison, method and fate (the paper's columns: its cells and TotalDeg):
        world, task, model, data, method, fate and `NUMBERS`.
    """
    rows = []
    for comparison in comparisons:
        setting, table = _setting(comparison), metrics(comparison)
        if not np.isfinite(floats(table, TOTAL)).any():
            continue
        for method, fate in itertools.product(comparison.arms, (*CELLS, TOTAL)):
            ours = floats(metrics_of(table, method), fate)
            value = published_fate(setting, method, fate)
            note = note_on_fate(setting, method, fate)
            rows.append(_row(comparison, method, ours, value, note) | {"fate": fate})
    keys = ["world", "task", "model", "data", "method", "fate"]
    return pd.DataFrame(rows, columns=[*keys, *NUMBERS])


def _setting(comparison: Comparison) -> Setting:
    # Of the runs' own task: that of one comparison of several tells them apart.
    return setting_of(comparison.manifests[0].task) or Setting("", "")


def _row(
    comparison: Comparison, method: str, ours: Floats, value: float | None, note: str
) -> dict[str, object]:
    row: dict[str, object] = {"world": comparison.world, "task": comparison.task, "method": method}
    row |= _setting(comparison)._asdict() | asdict(estimate(ours))
    return row | {"published": math.nan if value is None else value, "footnote": note}


def footnotes(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The table with its footnotes numbered from 1 (0 for none), and their texts in order."""
    texts = [text for text in dict.fromkeys(table["footnote"].tolist()) if text]
    numbers = [texts.index(text) + 1 if text else 0 for text in table["footnote"]]
    return table.assign(footnote=numbers), texts
