"""The paper's tables made from our traces, with the printed numbers next to ours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from lab.base.columns import floats, group_mean
from lab.base.stats import Estimate, estimate
from lab.compare.collection import Comparison
from lab.compare.published import (
    BASE,
    CELLS,
    PASS_AT_1,
    TOTAL,
    Setting,
    note_on_fate,
    note_on_pass,
    published_fate,
    setting_of,
)
from lab.compare.tables import metrics, metrics_of

NUMBERS = ("mean", "sd", "n", "published", "footnote")
"""Ours over the replicates, the paper's, and what a reader must know about the paper's."""


def main_table(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """pass@1 at the end, `tab:main`.

    Args:
        comparisons: of any worlds; several of one model and data set stay apart.

    Returns:
        One row per comparison and method, ours and the paper's: world, task, model, data, method
        and `NUMBERS`, in percent. `base` is before training, of all arms. Model and data are empty,
        and nothing is published, for other tasks.
    """
    rows = [row for comparison in comparisons for row in _main_rows(comparison)]
    return _table(rows, ("data", "method"))


def fate_table(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Fates in percent of the problems, `tab:full_fates`.

    Args:
        comparisons: of any worlds; those without known true answers have no fates.

    Returns:
        One row per comparison, method and fate (the paper's columns: its cells and TotalDeg):
        world, task, model, data, method, fate and `NUMBERS`.
    """
    rows = [row for comparison in comparisons for row in _fate_rows(comparison)]
    return _table(rows, ("data", "method", "fate"))


def footnotes(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The footnotes of a table numbered from 1, and their texts.

    Returns:
        The table with the numbers in place of the texts (0 for none), and the texts in their order.
    """
    texts = [text for text in dict.fromkeys(table["footnote"].tolist()) if text]
    numbers = [texts.index(text) + 1 if text else 0 for text in table["footnote"]]
    return table.assign(footnote=numbers), texts


def _main_rows(comparison: Comparison) -> Iterator[dict[str, object]]:
    setting, found = setting_of(comparison.task), metrics(comparison)
    ours = {arm: estimate(floats(metrics_of(found, arm), "pass_final")) for arm in comparison.arms}
    # All arms of a seed start from one model, so their mean is the seed's start.
    _, seed = np.unique(found.index.get_level_values("replicate"), return_inverse=True)
    start = group_mean(floats(found, "pass_start"), seed, 1 + int(seed.max()))
    ours = {BASE: estimate(start), **ours}
    printed = [m for model, data, m in PASS_AT_1 if Setting(model, data) == setting]
    for method in dict.fromkeys([*ours, *printed]):
        value = None if setting is None else PASS_AT_1.get((setting.model, setting.data, method))
        note = "" if setting is None else note_on_pass(setting, method)
        place = _place(comparison, setting, method)
        yield {**place, **_numbers(ours.get(method), value, note)}


def _fate_rows(comparison: Comparison) -> Iterator[dict[str, object]]:
    setting, found = setting_of(comparison.task), metrics(comparison)
    if not np.isfinite(floats(found, TOTAL)).any():
        return
    for method in comparison.arms:
        for fate in (*CELLS, TOTAL):
            value = None if setting is None else published_fate(setting, method, fate)
            note = "" if setting is None else note_on_fate(setting, method, fate)
            place = _place(comparison, setting, method) | {"fate": fate}
            ours = estimate(floats(metrics_of(found, method), fate))
            yield {**place, **_numbers(ours, value, note)}


def _numbers(ours: Estimate | None, value: float | None, note: str) -> dict[str, object]:
    mean, sd, n = (math.nan, math.nan, 0) if ours is None else (ours.mean, ours.sd, ours.n)
    published = math.nan if value is None else value
    return dict(zip(NUMBERS, (mean, sd, n, published, note), strict=True))


def _place(comparison: Comparison, setting: Setting | None, method: str) -> dict[str, object]:
    model, data = ("", "") if setting is None else setting
    place = {"world": comparison.world, "task": comparison.task, "model": model, "data": data}
    return {**place, "method": method}


def _table(rows: Iterable[Mapping[str, object]], keys: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=["world", "task", "model", *keys, *NUMBERS])
