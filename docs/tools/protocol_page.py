"""Tables of the protocol's runs for the docs, made from the files in docs/data."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from run_rows import DATA, known

from lab.base.arms import ALL_ARMS, BASELINE, CEILING, VOTE, own_of, title
from lab.base.arms import arm as named
from lab.base.columns import TextTable, groups, select, unique, where
from lab.base.stats import LEVEL, Estimate, difference, differences, estimate, mean_sd
from lab.compare.agreement import MEASURED, kendall_tau
from lab.compare.effort import best_among, own_best
from lab.compare.tables import with_vote

RECOMMENDED = "recommended"
RIVALS = ("ttrl", "guard", "matched", "frozen", "memory")
"""Arms whose best the third condition of the protocol compares with."""
UNIT = ("problem_seed", "seed", "place")
"""Columns that name the start of a run."""


def protocol(*words: str) -> TextTable:
    """The table of one of `KINDS`, the last word, from the files that the others name.

    Files of several tasks give their columns beside each other.
    """
    *files, kind = words
    n = 2 if kind == "ranks" else 1
    first, *others = (KINDS[kind](*map(read, files[i : i + n])) for i in range(0, len(files), n))
    rows = [
        sum((row[1:] for row in more), own)
        for own, *more in zip(first.rows, *(other.rows for other in others), strict=True)
    ]
    return TextTable(sum((other.head[1:] for other in others), first.head), rows)


def read(name: str) -> pd.DataFrame:
    """Return the rows of a file of docs/data."""
    return known(DATA / f"{name}.csv")


def products() -> pd.DataFrame:
    """The runs of SmolLM2 on products at 3e-5, seeds 1 to 11."""
    first = where(read("language-model"), task="multiplication", lr=3e-5)
    return pd.concat([first, read("language-seeds")])


def means(rows: pd.DataFrame) -> TextTable:
    """Final pass@1 of every arm at every rate, the lowest mean, and at its own best rate.

    The best learning rate of one half of the seeds is evaluated on the other half.
    """
    lrs = sorted(unique(rows, "lr"))
    table = []
    for (arm,), part in groups(with_vote(rows, ["lr", *UNIT]), ["arm"]):
        cells = {lr: estimate(_values(where(part, lr=lr))) for lr in lrs}
        measured = [cell.mean for cell in cells.values() if cell.n]
        best = estimate(_values(own_best(_numbered(part), ["lr"])))
        line = [_title(arm), *(mean_sd(cells[lr].mean, cells[lr].sd) for lr in lrs)]
        line += [f"{np.mean(measured):.1f}", f"{min(measured):.1f}", f"{best.mean:.1f}"]
        line[-1] += f" \\[{best.low:.1f}, {best.high:.1f}]" * best.has_interval
        table.append((line, np.mean(measured)))
    table.sort(key=lambda row: -row[1])
    head = ["final pass@1, %", *(f"{lr:g}" for lr in lrs)]
    return TextTable([*head, "mean", "lowest", "own best \\[95 %]"], [row for row, _ in table])


def conditions(rows: pd.DataFrame) -> TextTable:
    """What counts as a win, with what was measured; the ranking of the simulator is in `ranks`."""
    free = select(rows, np.array(rows["arm"] != CEILING))
    cells = free.groupby(["arm", "lr"], sort=False)["pass_final"].mean()
    lows = cells.groupby("arm", sort=False).min().to_dict()
    own = lows.pop(RECOMMENDED)
    second, highest = max(lows.items(), key=lambda arm_and_low: arm_and_low[1])
    robust, drop = f"{own:.1f}; {_title(second)} {highest:.1f}", own - lows[BASELINE]
    collapse = f"{drop:+.1f}; start {rows['pass_start'].mean():.1f}, TTRL {lows[BASELINE]:.1f}"
    finals = best(free, [RECOMMENDED])
    level = 1 - (1 - LEVEL) / (rows["arm"].nunique() - 1)  # for all other arms at once
    below = {a: estimate(differences(finals, best(free, [a])), level) for a in lows}
    worst = min(below, key=lambda arm: below[arm].mean)
    lead = estimate(differences(finals, best(free, RIVALS)))
    met = lead.mean >= 2 and not lead.within_noise
    is_below = any(not gain.within_noise and gain.mean <= 0 for gain in below.values())
    nearest = f"{difference(below[worst])}, {_title(worst)}"
    rows_of = {
        "lowest mean of the recommendation, and the highest of others": (robust, own >= highest),
        "30 points above the lowest of TTRL where TTRL collapses": (collapse, drop >= 30),
        "at own best rates not below any arm; the nearest": (nearest, not is_below),
        "there 2 points above the best of five arms": (difference(lead), met),
    }
    lines = [[name, told, "yes" if reached else "no"] for name, (told, reached) in rows_of.items()]
    return TextTable(["condition", "final pass@1", "met"], lines)


def ranks(rows: pd.DataFrame, simulated: pd.DataFrame) -> TextTable:
    """Kendall's tau of the label-free arms by final pass@1: simulated and real, real and real.

    The second is the mean over random halves of the seeds, each against the other half, which is
    the noise. `simulated` comes from `lab.agreement`.
    """
    free = np.array(simulated["arm"] != CEILING)
    own = select(simulated, free & np.array(simulated["prediction"] == MEASURED))
    head = ["learning rate", "simulated and real", "halves of the real seeds"]
    table = []
    for (lr,), part in groups(own, ["lr"]):
        real, predicted = (_pooled(part, name) for name in ("real", "predicted"))
        halves = _halves(select(rows, np.array(rows["arm"].isin(list(real.index)))), lr)
        taus = [kendall_tau(predicted, real), halves]
        table.append([f"{lr:g}", *(f"{tau:.2f}" for tau in taus)])
    return TextTable(head, table)


def over_ttrl(rows: pd.DataFrame) -> TextTable:
    """Final pass@1 of every arm minus TTRL at every rate, and minus the vote at the highest one.

    Paired by seed; the vote before training is the first row.
    """
    lrs = sorted(unique(rows, "lr"))
    cells = [*((BASELINE, lr) for lr in lrs), (VOTE, lrs[-1])]
    at = {lr: where(with_vote(rows, ["lr", *UNIT]), lr=lr) for lr in lrs}
    table = []
    known_arms = [VOTE, *(arm for arm in ALL_ARMS if (rows["arm"] == arm).any())]
    for arm in [*known_arms, *sorted({*rows["arm"]} - {*known_arms})]:
        shown = ("" if arm == b else difference(over_sets(at[lr], arm, b)) for b, lr in cells)
        table.append([_title(arm), *shown])
    names = [f"{lr:g}, minus {'vote' if b == VOTE else _title(b)}" for b, lr in cells]
    return TextTable(["final pass@1, %", *names], table)


def over_sets(
    rows: pd.DataFrame, arm: str, base: str = BASELINE, metric: str = "pass_final"
) -> Estimate:
    """One arm minus another at one learning rate, with the wider interval of pairs and of sets."""
    pairs, sets = gaps(rows, arm, base, metric), set_gaps(rows, arm, base, metric)
    of_pairs, of_sets = estimate(pairs), estimate(sets)
    is_wider = of_sets.high - of_sets.low > of_pairs.high - of_pairs.low  # False for one set
    return of_sets if is_wider else of_pairs


def gaps(rows: pd.DataFrame, arm: str, base: str, metric: str = "pass_final") -> pd.Series:
    """One arm minus another, by `UNIT`."""
    return differences(*(_values(where(rows, arm=name), metric) for name in (arm, base)))


def set_gaps(rows: pd.DataFrame, arm: str, base: str, metric: str = "pass_final") -> pd.Series:
    """Means of the `gaps` of every problem set."""
    return pd.Series(gaps(rows, arm, base, metric).groupby(level="problem_seed").mean())


def readings(rows: pd.DataFrame) -> TextTable:
    """The study of the guard's readings: a row per comparison, a column per cell.

    The means of the sets give a t-interval. The four guards against TTRL at the first learning rate
    are primary, with Bonferroni's correction: over the two open tasks together, and over the closed
    one by itself.
    """
    study = tomllib.loads((DATA / "protocol.toml").read_text())["readings"]
    arms = [named(name).name for name in study["arms"]]
    guards = [name for name in arms if own_of(name)[0] in ("guard", "guard_release")]
    pairs = [(name, BASELINE) for name in guards]
    pairs += [(guards[1], name) for name in arms if own_of(name)[0] in ("permuted", "replayed")]
    titles = (f"`{name}` minus `{base}`" for name, base in pairs)
    lines = [[text.replace("flip_rate=instant", "instant")] for text in titles]
    (_, first), n_open = study["cells"][0], len({task for task, _ in study["cells"]} - {"closed"})
    for task, lr in study["cells"]:
        n_primary = len(guards) * (1 if task == "closed" else n_open)
        cell = where(rows, task=task, lr=lr)
        for line, (name, base) in zip(lines, pairs, strict=True):
            is_primary = lr == first and base == BASELINE
            level = 1 - (1 - LEVEL) / n_primary if is_primary else LEVEL
            found = estimate(set_gaps(cell, name, base), level)
            line.append(difference(found) + f" {conclusion(found)}" * is_primary)
    cells = (f"{task}, {lr:g}" for task, lr in study["cells"])
    return TextTable(["final pass@1, %", *cells], lines)


def conclusion(found: Estimate, higher: str = "helps", lower: str = "harms") -> str:
    """What the protocols conclude from a corrected interval, in points."""
    if not found.within_noise:
        return higher if found.mean > 0 else lower
    is_narrow = found.has_interval and found.low >= -5 and found.high <= 5
    return "no difference" if is_narrow else "inconclusive"


def best(rows: pd.DataFrame, arms: Sequence[str]) -> pd.Series:
    """Final pass@1 of the best of some arms at its best rate, chosen on the other half."""
    return _values(best_among(_numbered(rows), arms, ["lr"]))


_TABLES: tuple[Callable[..., TextTable], ...] = (means, over_ttrl, conditions, ranks, readings)
KINDS = {make.__name__.replace("_", "-"): make for make in _TABLES}
_SPLITS = 256


def _pooled(cells: pd.DataFrame, name: str) -> pd.Series:
    """Mean of every arm over the problem sets, each weighted by its seeds."""
    parts = groups(cells, ["arm"])
    return pd.Series({arm: np.average(p[name], weights=p["seeds"]) for (arm,), p in parts})


def _halves(rows: pd.DataFrame, lr: object) -> float:
    """Mean tau between the arms' means over one random half of the seeds and over the other."""
    finals = where(rows, lr=lr).pivot(index=list(UNIT), columns="arm", values="pass_final")
    finals_SA = finals.dropna().to_numpy(float)
    rng, taus = np.random.default_rng(0), []
    for _ in range(_SPLITS):
        first, second = np.array_split(rng.permutation(finals_SA), 2)
        taus.append(kendall_tau(first.mean(axis=0), second.mean(axis=0)))
    return float(np.mean(taus))


def _numbered(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(replicate=rows.groupby(list(UNIT)).ngroup())


def _values(rows: pd.DataFrame, metric: str = "pass_final") -> pd.Series:
    return pd.Series(rows.set_index(list(UNIT))[metric])


def _title(arm: object) -> str:
    return f"`{arm}`" if title(str(arm)) == arm else title(str(arm))
