"""Tables of real and simulated runs for the docs, made from the files in docs/data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from lab.base.columns import TextTable, floats, select
from lab.compare.agreement import MEASURED, OTHER_HALF, mean_errors, mean_table

DATA = Path(__file__).parents[1] / "data"
CHOSEN, SEEN = "other seeds", "prototype"
HELD_OUT, COMPARED, DEVELOPMENT = "none", "earlier laws", "law of growth"
_SEEDS = {HELD_OUT: (23, 24, 25), COMPARED: (4, 5, 20, 21, 22), DEVELOPMENT: (6,)}
SETS = {seed: choices for choices, seeds in _SEEDS.items() for seed in seeds}
"""Problem seeds, and the choices that were made on their data."""
LINEAR = "measured, growth 0"


def agreement(name: str, kind: str = "means") -> TextTable:
    """The table `bars`, or the means of a file's rows."""
    return bars() if name == "bars" else mean_table(read(name))


def read(name: str) -> pd.DataFrame:
    """Return the rows of `lab.agreement` that a file of docs/data holds."""
    return pd.read_csv(DATA / f"agreement-{name}.csv")


def bars() -> TextTable:
    """The demands on the measured policy, what was reached, and the noise of the real runs."""
    head = ["in points unless stated", "target", "reached", "linear", "other half of the seeds"]
    return TextTable([*head, "choices on this data"], [*_first(), *_others(), *_settings()])


def _first() -> Iterator[list[str]]:
    """The demands on the first problem set."""
    table = _with_linear("seed0")
    is_hard = np.isin(floats(table, "lr"), (2e-4, 3e-4)) & table["arm"].isin(["ttrl", "guard"])
    hard = select(table, np.array(is_hard))
    yield _row("final pass@1, mean of 15 cells", "3", table, "final", CHOSEN)
    yield _row("TTRL and guard at 2e-4 and 3e-4", "5", hard, "final", CHOSEN)
    yield _row("the same, seeds 6 to 13", "5", read("hard"), "final", CHOSEN)
    yield _row("arm minus TTRL", "5", table, "gain", CHOSEN)
    means = mean_errors(table).set_index("prediction").loc[MEASURED]
    signs = f"{means['right_signs']:.0f} of {means['signs']:.0f}"
    yield ["right sign where the real difference is beyond noise", "all", signs, "", "", CHOSEN]
    yield _row("MR curve", "2.5", table, "match_rate", CHOSEN)
    yield _row("FR curve", "2.5", table, "flip_rate", CHOSEN)
    yield _row("fates", "3", table, "fates", CHOSEN)
    calm = select(table, (floats(table, "lr") == 1e-4) | np.array(table["arm"] == "frozen"))
    yield _row("correlation over problems, frozen labels and 1e-4", ".85", calm, "r", CHOSEN, 2)
    lowest = _own(calm, MEASURED, "r").min()
    yield ["the lowest of these cells", ".85", f"{lowest:.2f}", "", "", CHOSEN]


def _others() -> Iterator[list[str]]:
    """The demands on other problem sets, and on the checkpoint that verifies."""
    for seed, choices in SETS.items():
        name = f"problem set {seed}, 5 cells"
        yield _row(name, "5", _with_linear(f"seed{seed}"), "final", choices)
    name = "start model that judges, TTRL at 1e-4 and 3e-4"
    yield _row(name, "", _with_linear("verify"), "final", COMPARED)


def _with_linear(name: str) -> pd.DataFrame:
    """The rows of a file, and the measured policy's of the linear model as `LINEAR`."""
    linear = read(f"linear-{name}")
    own = select(linear, np.array(linear["prediction"] == MEASURED))
    return pd.concat([read(name), own.assign(prediction=LINEAR)], ignore_index=True)


def _settings() -> Iterator[list[str]]:
    """The demands on other settings of the first problem set."""
    table = _with_linear("settings")
    rates = {3e-5: ("learning rate 3e-5, four arms", "3"), 1e-3: ("1e-3, four arms", "10")}
    rates[3e-4] = ("V = 16, K = 8, TTRL at 3e-4", "8")
    rates[6e-4] = ("mini_batch 8, TTRL at 6e-4", "trust flag")
    for lr, (name, bar) in rates.items():
        yield _row(name, bar, select(table, floats(table, "lr") == lr), "final", SEEN)


def _row(
    name: str, bar: str, table: pd.DataFrame, column: str, choices: str, digits: int = 1
) -> list[str]:
    numbers = (_own(table, prediction, column) for prediction in (MEASURED, LINEAR, OTHER_HALF))
    means = (f"{np.nanmean(values):.{digits}f}" if len(values) else "" for values in numbers)
    return [name, bar, *means, choices]


def _own(table: pd.DataFrame, prediction: str, column: str) -> np.ndarray:
    return floats(select(table, np.array(table["prediction"] == prediction)), column)
