"""Sensitivity of a metric to one setting of the guard, and values that are one algorithm.

FR is a multiple of 1/W, so a threshold tau_FR acts only through the number of flips that exceeds
it: with W = 5 all tau_FR in [.2, .4) are the same algorithm. The paper's peak at .3 is noise.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd

from guard_core import GuardConfig
from lab.base.columns import floats, require
from lab.base.errors import UserError
from lab.base.stats import estimate

SETTINGS = ("guard.tau_FR", "guard.W", "guard.beta_max")
"""Columns of a sweep that the paper varies."""
COLUMNS = ("setting", "value", "arm", "metric", "mean", "sd", "low", "high", "n", "plateau")


def flips_needed(tau_FR: float, W: int) -> int:
    """Flips within a window that make FR exceed tau_FR; W + 1 where none do.

    Thresholds that need equally many are one algorithm.
    """
    exceeding = [flips for flips in range(W + 1) if flips / W > tau_FR]
    return exceeding[0] if exceeding else W + 1


def sensitivity(
    rows: pd.DataFrame,
    metrics: Collection[str] = ("pass_final", "L/D"),
) -> pd.DataFrame:
    """Every metric over every value of each setting, the other settings at their defaults.

    Args:
        rows: of a sweep: a row per cell, arm and replicate with the settings as columns named
            `guard.*`, `arm`, `replicate` and the metrics; rows whose `status` is not "done" are
            left out.

    Returns:
        One row per setting, value, arm and metric, values ascending: `COLUMNS`; mean, sd and 95 %
        t-interval over the n replicates, in the metric's unit; `plateau`, a number that values
        which are one and the same algorithm share; and `default`, whether the value is it.

    Raises:
        UserError: a column is missing, or no setting was varied around the defaults.
    """
    defaults = GuardConfig.paper()
    require(rows, ("arm", "replicate", *metrics), "sensitivity")
    if "status" in rows:
        rows = rows.take(np.flatnonzero(rows["status"].to_numpy() == "done"))
    known = [name for name in SETTINGS if name in rows]
    standard = {name: getattr(defaults, name.removeprefix("guard.")) for name in known}
    parts = [part for name in known for part in _of_setting(rows, name, standard, metrics)]
    if not parts:
        raise UserError(
            f"sensitivity: none of {', '.join(SETTINGS)} was varied around its default; give the "
            "rows of a sweep such as --preset sensitivity"
        )
    return pd.DataFrame(parts, columns=[*COLUMNS, "default"])


def _of_setting(
    rows: pd.DataFrame, name: str, standard: dict[str, float], metrics: Collection[str]
) -> Iterator[dict[str, object]]:
    others = [other for other in standard if other != name]
    keep = np.ones(len(rows), bool)
    for other in others:
        keep &= floats(rows, other) == standard[other]
    # The default's cell belongs to the row of every setting, so it may be there several times.
    own = rows.take(np.flatnonzero(keep)).drop_duplicates([name, "arm", "replicate"])
    values = sorted(own[name].unique())
    if len(values) < 2:
        return
    plateaus = _plateaus(name, values, standard)
    arms = list(dict.fromkeys(own["arm"]))
    for place, value in enumerate(values):
        for arm, metric in itertools.product(arms, metrics):
            here = ((own[name] == value) & (own["arm"] == arm)).to_numpy()
            yield {
                "setting": name,
                "value": value,
                "arm": arm,
                "metric": metric,
                **asdict(estimate(floats(own, metric)[here])),
                "plateau": plateaus[place],
                "default": value == standard[name],
            }


def _plateaus(name: str, values: Sequence[float], standard: dict[str, float]) -> list[int]:
    if name != "guard.tau_FR":
        return list(range(len(values)))
    window = int(standard.get("guard.W", GuardConfig.paper().W))
    return [flips_needed(value, window) for value in values]
