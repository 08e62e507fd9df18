"""Insert the tables of the protocol's runs into the docs, made from the files in docs/data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.arms import BASELINE, title
from lab.columns import groups, select, unique, where
from lab.compare.agreement import MEASURED
from lab.compare.own_best import best_among, own_best
from lab.compare.ranking import kendall_tau
from lab.report.content.agreement import TextTable
from lab.stats.paired import LEVEL, Estimate, differences, estimate
from lab.stats.words import difference, mean_sd

DATA = Path(__file__).parents[1] / "data"
RECOMMENDED, CEILING = "recommended", "truth"
RIVALS = ("ttrl", "guard", "matched", "frozen", "memory")
"""Arms whose best the third condition of the protocol compares with."""
_UNIT = ("problem_seed", "seed")


def on_page_markdown(markdown: str, **others: Any) -> str:
    """Replace lines `PROTOCOL FILE [FILE] KIND`; the kinds are those of `KINDS`."""
    return "\n".join(
        "\n".join(_table(line.split()[1:])) if line.startswith("PROTOCOL ") else line
        for line in markdown.split("\n")
    )


def read(name: str) -> pd.DataFrame:
    """Return the rows of `protocol_runs.table` or `lab.agreement` in files of docs/data.

    Args:
        name: of a file, or `FILE+FILE` for the rows of several.
    """
    kinds = {"right_start": str, "right_final": str}
    tables = [pd.read_csv(DATA / f"{file}.csv", dtype=kinds) for file in name.split("+")]
    return pd.concat(tables, ignore_index=True)


def means(rows: pd.DataFrame) -> TextTable:
    """Final pass@1 of every arm at every learning rate, the lowest mean, and at its own best.

    The best learning rate of one half of the seeds is evaluated on the other half.
    """
    lrs = sorted(unique(rows, "lr"))
    table = []
    for (arm,), part in groups(rows, ["arm"]):
        cells = {lr: estimate(_finals(where(part, lr=lr))) for lr in lrs}
        measured = [cell.mean for cell in cells.values() if cell.n]
        best = estimate(_finals(own_best(part, ["lr"], unit=_UNIT)))
        line = [_title(arm), *(_cell(cells[lr]) for lr in lrs), _number(np.mean(measured))]
        table.append(([*line, _number(min(measured)), _interval(best)], np.mean(measured)))
    table.sort(key=lambda row: -row[1])
    head = ["final pass@1, %", *(f"{lr:g}" for lr in lrs)]
    return TextTable([*head, "mean", "lowest", "own best \\[95 %]"], [row for row, _ in table])


def gains(rows: pd.DataFrame) -> TextTable:
    """The recommended arm minus every other one, paired by seed, at equal rates and own best.

    Intervals hold for all other label-free arms at once with 95 % (Bonferroni's correction).
    """
    lrs = sorted(unique(rows, "lr"))
    others = [arm for arm in unique(rows, "arm") if arm != RECOMMENDED]
    level = corrected(others)
    own = {arm: best(rows, [str(arm)]) for arm in (RECOMMENDED, *others)}
    table = []
    for arm in others:
        at = [gain(where(rows, lr=lr), str(arm), level) for lr in lrs]
        at.append(estimate(differences(own[RECOMMENDED], own[arm]), level))
        table.append([_title(arm), *map(difference, at)])
    head = ["recommended minus", *(f"{lr:g}" for lr in lrs), "each at its own best"]
    return TextTable(head, table)


def conditions(rows: pd.DataFrame) -> TextTable:
    """What counts as a win, with what was measured; the ranking of the simulator is in `ranks`."""
    free = select(rows, np.array(rows["arm"] != CEILING))
    lows = {str(arm): _lowest(part) for (arm,), part in groups(free, ["arm"])}
    own = lows.pop(RECOMMENDED)
    second, drop = max(lows, key=lambda arm: lows[arm]), own - lows[BASELINE]
    robust = f"{own:.1f}; {_title(second)} {lows[second]:.1f}"
    collapse = f"{drop:+.1f}; start {rows['pass_start'].mean():.1f}, TTRL {lows[BASELINE]:.1f}"
    finals = best(free, [RECOMMENDED])
    level = corrected([*lows])
    below = {a: estimate(differences(finals, best(free, [a])), level) for a in lows}
    worst = min(below, key=lambda arm: below[arm].mean)
    lead = estimate(differences(finals, best(free, RIVALS)))
    met = lead.mean >= 2 and not lead.within_noise
    table = [
        [
            "lowest mean of the recommendation, and the highest of others",
            robust,
            own >= lows[second],
        ],
        ["30 points above the lowest of TTRL where TTRL collapses", collapse, drop >= 30],
        [
            f"at own best rates not below any arm; the nearest is {_title(worst)}",
            difference(below[worst]),
            all(gain.within_noise or gain.mean > 0 for gain in below.values()),
        ],
        ["there 2 points above the best of five arms", difference(lead), met],
    ]
    rows_of = [[name, number, "yes" if reached else "no"] for name, number, reached in table]
    return TextTable(["condition", "final pass@1", "met"], rows_of)


def oracle(rows: pd.DataFrame) -> TextTable:
    """Wrong majorities that each arm's last labels mend, and that an oracle could.

    The oracle chooses for every problem, in every run, between the last labels of all label-free
    arms at the same learning rate and seed.
    """
    free = select(rows, np.array(rows["arm"] != CEILING))
    parts = {_title(arm): part for (arm,), part in groups(free, ["arm"])}
    together = [_union(part) for _, part in groups(free, [*_UNIT, "lr"])]
    parts["oracle between the labels of all these arms"] = pd.DataFrame(together)
    head = ["labels of the last visit", "right, %", "wrong majorities mended, %"]
    rows_of = [[name, *map(_number, _shares(part))] for name, part in parts.items()]
    return TextTable([*head, "right majorities lost, %"], rows_of)


def ranks(rows: pd.DataFrame, simulated: pd.DataFrame) -> TextTable:
    """Kendall's tau of the label-free arms by final pass@1: simulated and real, real and real.

    The second is the mean over random halves of the seeds, each against the other half: what tau is
    worth where arms differ by less than the noise of their runs.

    Args:
        rows: the real runs.
        simulated: from `lab.agreement`, of the same cells.
    """
    free = np.array(simulated["arm"] != CEILING)
    own = select(simulated, free & np.array(simulated["prediction"] == MEASURED))
    head = ["learning rate", "arms", "simulated and real", "halves of the real seeds"]
    table = []
    for (lr,), part in groups(own, ["lr"]):
        real, predicted = (_pooled(part, name) for name in ("real", "predicted"))
        halves = _halves(select(rows, np.array(rows["arm"].isin(list(real.index)))), lr)
        taus = [kendall_tau(predicted, real), halves]
        table.append([f"{lr:g}", str(len(real)), *(f"{tau:.2f}" for tau in taus)])
    return TextTable(head, table)


def gain(rows: pd.DataFrame, arm: str, level: float = LEVEL) -> Estimate:
    """Final pass@1 of the recommended arm minus that of another one, over paired seeds."""
    first, second = (_finals(where(rows, arm=name)) for name in (RECOMMENDED, arm))
    return estimate(differences(first, second), level)


def best(rows: pd.DataFrame, arms: Sequence[str]) -> pd.Series:
    """Final pass@1 of the best of some arms at its best rate, chosen on the other half."""
    return _finals(best_among(rows, arms, ["lr"], unit=_UNIT))


def corrected(others: Sequence[object]) -> float:
    """Level of one of the intervals that hold for all label-free arms at once."""
    return 1 - (1 - LEVEL) / max(1, len([arm for arm in others if arm != CEILING]))


KINDS: dict[str, Callable[..., TextTable]] = {
    "means": means,
    "gains": gains,
    "conditions": conditions,
    "oracle": oracle,
    "ranks": ranks,
}
_SPLITS = 256


def _table(words: list[str]) -> Iterator[str]:
    *files, kind = words
    return KINDS[kind](*map(read, files)).markdown()


def _pooled(cells: pd.DataFrame, name: str) -> pd.Series:
    """Mean of every arm over the problem sets, each weighted by its seeds."""
    parts = groups(cells, ["arm"])
    return pd.Series({arm: np.average(p[name], weights=p["seeds"]) for (arm,), p in parts})


def _halves(rows: pd.DataFrame, lr: object) -> float:
    """Mean tau between the arms' means over one random half of the seeds and over the other."""
    finals = where(rows, lr=lr).pivot(index=list(_UNIT), columns="arm", values="pass_final")
    finals_SA = finals.dropna().to_numpy(float)
    rng, taus = np.random.default_rng(0), []
    for _ in range(_SPLITS):
        first, second = np.array_split(rng.permutation(finals_SA), 2)
        taus.append(kendall_tau(first.mean(axis=0), second.mean(axis=0)))
    return float(np.mean(taus))


def _finals(rows: pd.DataFrame) -> pd.Series:
    return pd.Series(rows.set_index(list(_UNIT))["pass_final"])


def _lowest(rows: pd.DataFrame) -> float:
    """The lowest mean over the learning rates."""
    return min(_finals(part).mean() for _, part in groups(rows, ["lr"]))


def _shares(rows: pd.DataFrame) -> tuple[float, float, float]:
    """The columns of `oracle`, in percent."""
    start, end = (_flags(rows, name) for name in ("right_start", "right_final"))
    return 100 * end.mean(), 100 * end[~start].mean(), 100 * (~end)[start].mean()


def _union(rows: pd.DataFrame) -> Mapping[str, str]:
    """One row in which a last label is right where that of any row is."""
    right = "".join("01"[flag] for flag in _flags(rows, "right_final").any(axis=0).astype(int))
    return {"right_start": str(rows["right_start"].iloc[0]), "right_final": right}


def _flags(rows: pd.DataFrame, name: str) -> np.ndarray:
    return np.array([[bit == "1" for bit in bits] for bits in rows[name]])


def _title(arm: object) -> str:
    return f"`{arm}`" if title(str(arm)) == arm else title(str(arm))


def _cell(value: Estimate) -> str:
    return mean_sd(value.mean, value.sd)


def _number(value: Any) -> str:
    return f"{float(value):.1f}"


def _interval(value: Estimate) -> str:
    bounds = f" \\[{value.low:.1f}, {value.high:.1f}]" if value.has_interval else ""
    return f"{value.mean:.1f}{bounds}"
