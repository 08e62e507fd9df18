"""Writes the tables of README and docs, which stand between two comments in their pages.

python docs/tools/tables.py

The first comment names the table and what it is made from, a file of docs/data or a part of the
code, as in `<!-- table: rules -->`; the second is `<!-- end -->`. A test fails where a
page differs from what this writes.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import readings
from language_runs import FIRST_SETS, N_TRAINED, PRECISIONS, RATES, START, STUDIES, THREE
from numpy.typing import NDArray
from protocol_page import UNIT, conclusion, gaps, over_sets, products, protocol, set_gaps
from protocol_page import read as rows_of
from run_rows import DATA

from guard_core.config import ROUNDING
from guard_core.rules import RULES
from lab.base.arms import VOTE, title
from lab.base.columns import TextTable, floats, select, where
from lab.base.errors import UserError
from lab.base.files import whole
from lab.base.stats import LEVEL, difference, differences, estimate, mean_sd
from lab.compare.agreement import MEASURED, OTHER_HALF, mean_errors
from lab.compare.tables import with_vote

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_PAPER = re.compile(r"https://arxiv\.org/abs/[\d.]*\d")
_TABLE = re.compile(r"^<!-- table: (.+) -->$[\s\S]*?(?:^<!-- (end|table: .+) -->$|\Z)", re.M)


def main() -> None:
    """Write the tables of all pages."""
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        try:
            new = updated(old)
        except UserError as error:
            sys.exit(f"{page}: {error}")
        if new != old:
            with whole(page) as file:
                file.write_text(new, encoding="utf-8")
            print(page)


def updated(text: str) -> str:
    """Return a page's text with its tables made again.

    Raises:
        UserError: a table has no end, or a name that `MAKERS` lacks.
    """
    return _TABLE.sub(_made, text)


def _made(found: re.Match[str]) -> str:
    name, *words = found[1].split()
    if found[2] != "end":
        raise UserError(f"table {found[1]}: has no <!-- end -->")
    if name not in MAKERS:
        raise UserError(f"table {found[1]}: unknown, give one of {', '.join(MAKERS)}")
    made = "\n".join(MAKERS[name](*words).markdown())
    return f"<!-- table: {found[1]} -->\n\n{made}\n\n<!-- end -->"


def rules() -> TextTable:
    """One row per rule, in the order of `RULES`."""
    rows = []
    for name, rule in RULES.items():
        # Of the class's own docstring, since docstrings are not inherited.
        text = (rule.__doc__ or "").strip()
        paper, label = _PAPER.search(text), "yes" if rule.follows_label else "of subgroups"
        cells = [f"[`{name}`]({paper[0]})" if paper else f"`{name}`"]
        cells += [", ".join(sorted(f"`{need}`" for need in rule.needs)) or "votes"]
        cells += ["label" if rule.pays_label() else "response", label if rule.has_label else "none"]
        cells += [", ".join(f"`{f.name} = {f.default!r}`" for f in fields(rule)) or "none"]
        rows.append([cell.replace("|", "\\|") for cell in [*cells, text.split("\n")[0]]])
    return TextTable(["name", "needs", "pays", "label", "settings", "definition"], rows)


_SUMMARY = {
    VOTE: "no training: first majority vote",
    "guard": "TTRL-Guard, the paper's text",
    "memory": "vote memory: majority of all votes so far",
    "recommended": "recommended: memory, slow to change, KL penalty",
}


def summary() -> TextTable:
    """README's table: arms minus TTRL at the rates where it collapses."""
    runs, level = with_vote(rows_of("language-seeds"), UNIT), 1 - 0.05 / 3
    columns = {_falls("SmolLM2-135M", runs): [_gain(runs, a, "ttrl", level) for a in _SUMMARY]}
    for number, task in enumerate(("arithmetic", "collatz"), 1):
        runs = with_vote(where(rows_of(f"confirm-{task}"), lr=3e-4), UNIT)
        shown = [difference(over_sets(runs, a)) for a in _SUMMARY]
        columns[_falls(f"tiny task {number}", runs)] = shown
    rows = zip(_SUMMARY.values(), *columns.values(), strict=True)
    return TextTable(["", *columns], [list(row) for row in rows])


def _falls(name: str, runs: pd.DataFrame) -> str:
    own = where(runs, arm="ttrl")[["pass_start", "pass_final"]].mean()
    return f"{name} (TTRL: {own['pass_start']:.0f} to {own['pass_final']:.0f} %)"


def simulated() -> TextTable:
    """The simulator's Llama population: TotalDeg at two steps, best final pass@1 of eight."""
    runs, steps, rows = rows_of("sim-llama"), (0.03, 0.06), []
    last = where(runs, lr=steps[-1])
    for name in ("ttrl", "guard", "matched", "memory", "frozen", "truth"):
        of_step = where(runs, arm=name).groupby("lr")
        cells = [f"{of_step['TotalDeg'].mean()[step]:.1f}" for step in steps]
        for base in ("ttrl", "matched"):
            gap = over_sets(last, name, base, "TotalDeg")
            cells.append("" if base == name else difference(gap))
        rows.append([title(name), *cells, f"{of_step['pass_final'].mean().max():.1f}"])
    head = ["", *(f"TotalDeg at step {step:g}, %" for step in steps)]
    head += ["at .06, minus TTRL", "at .06, minus matched effort", "best final pass@1, %"]
    return TextTable(head, rows)


_LEAST_PAIRS = 4
"""Pairs from which on the protocol gives an interval."""
_SHOWN = {
    "held-out pass@1": "held_out_pass_at_1_final",
    "false consensus": "false_consensus",
    "leak": "leak",
}


def language(task: str, lr: str, file: str = "language-model", compared: str = "6") -> TextTable:
    """One row per arm of a task of a language model; intervals are for so many comparisons."""
    runs = with_vote(where(rows_of(file), task=task, lr=float(lr)), UNIT)
    final, rows = runs.groupby("arm")["pass_final"].mean(), []
    for name in sorted(final.index, key=lambda name: (name != VOTE, name != "ttrl", -final[name])):
        own = where(runs, arm=name)
        value = estimate(own["pass_final"])
        cells = [title(name), str(value.n), str(value)]
        cells += ["" if name == "ttrl" else _gain(runs, name, "ttrl", 1 - 0.05 / int(compared))]
        cells += ["" if name == VOTE else _gain(runs, name, VOTE)]
        rows.append([*cells, *(mean_sd(own[column].mean()) for column in _SHOWN.values())])
    head = ["arm", "seeds", "final pass@1, %", "minus TTRL", "minus vote", *_SHOWN]
    return TextTable(head, rows)


def _gain(runs: pd.DataFrame, own: str, base: str, level: float = LEVEL) -> str:
    """The mean paired difference, with its interval where there are pairs enough."""
    gap = estimate(gaps(runs, own, base), level)
    return difference(gap) if gap.n >= _LEAST_PAIRS else f"{gap.mean:+.1f} ({gap.n} pairs)"


def language_pairs() -> TextTable:
    """Paired differences of all the language model's seeds at 3e-5.

    Intervals are at 95 % without a correction, and p is of `sign_flip`.
    """
    reruns = pd.read_csv(DATA / "language-reruns.csv", comment="#").assign(problem_seed=0, place=0)
    runs, held_out = with_vote(products(), UNIT), "held_out_pass_at_1_final"
    pairs = [(own, VOTE) for own in ("ttrl", "memory", "recommended")]
    pairs += [(own, "ttrl") for own in ("memory", "recommended", "guard")]
    pairs += [("recommended", "memory")]
    found = {f"{title(own)} - {title(base)}": gaps(runs, own, base) for own, base in pairs}
    further = pd.concat([gaps(some, "memory", "ttrl") for some in (runs, reruns)])
    found["Vote memory - TTRL, with four reruns"] = further
    unseen = gaps(runs, "recommended", "memory", held_out)
    found["Recommended - Vote memory, held-out problems"] = unseen
    for name in ("memory", "recommended"):
        part = where(runs, arm=name)
        own = part[held_out] - part["held_out_pass_at_1_start"]
        found[f"{title(name)} - its start, held-out problems"] = own
    rows = [[n, str(len(own)), difference(estimate(own)), _p(own)] for n, own in found.items()]
    return TextTable(["final pass@1, points", "pairs", "difference", "p"], rows)


MOST_FLIPPED = 20
"""Values whose signs are all flipped: a million patterns."""


def sign_flip(values: pd.Series | NDArray[np.float64]) -> float:
    """Return the p-value of a mean of 0: the share of sign patterns with as large a mean, or more.

    Exact and two-sided, for paired differences that are symmetric around 0 where nothing differs,
    whatever their distribution. With n values it is at least 2 / 2^n: four seeds cannot reach .1.
    NaN for no values, or more than `MOST_FLIPPED`.
    """
    numbers = np.asarray(values, np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not 0 < len(numbers) <= MOST_FLIPPED:
        return math.nan
    sums = np.zeros(1)
    for number in numbers:
        sums = np.concatenate([sums + number, sums - number])
    return float(np.mean(np.abs(sums) >= abs(numbers.sum()) - ROUNDING))


def _p(gaps: pd.Series) -> str:
    p = sign_flip(gaps)
    return "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def _with_p(gaps: pd.Series, level: float = LEVEL) -> str:
    return f"{difference(estimate(gaps, level))}, {_p(gaps)}"


def _points(gaps: pd.Series) -> str:
    return "/".join(f"{gap:+.0f}" for gap in sorted(gaps))


def tiny_pairs() -> TextTable:
    """Final pass@1 on the 12 problem sets of the study of the readings; a set is one value."""
    runs, rows = rows_of("readings-tiny"), []
    one_step = "guard,flip_rate=instant"
    pairs = (("ttrl", VOTE), ("memory", VOTE), ("memory", "ttrl"), ("memory", one_step))
    for task, lr in itertools.product(("arithmetic", "collatz"), (2e-4, 3e-4)):
        own = with_vote(where(runs, task=task, lr=lr), UNIT)
        before = where(own, arm=VOTE)["pass_final"].mean()
        cells = (_with_p(set_gaps(own, *pair)) for pair in pairs)
        rows.append([f"{task}, {lr:g}", f"{before:.1f}", *cells])
    names = {one_step: "guard, one-step FR"}
    heads = (f"{title(a)} - {names.get(b, title(b))}" for a, b in pairs)
    return TextTable(["task, rate", "vote before training, %", *heads], rows)


_WINNER = "memory,hysteresis=0.25"
"""Arm of the judgement that the search found."""


def above_vote() -> TextTable:
    """Final pass@1 minus the vote before training: simulated where chosen, real where judged."""
    searched = where(pd.read_csv(DATA / "vote-search.csv"), lr=2.5e-4)
    runs = rows_of("vote-judged")
    gains = (searched["pass_final"] - searched["maj_start"]).groupby(searched["candidate"]).mean()
    runs = runs.assign(gap=runs["pass_final"] - runs["maj_start"])
    sets, rows = runs.groupby(["arm", "task", "problem_seed"])[["pass_final", "gap"]].mean(), []
    base = sets.loc["recommended", "gap"]
    for name in (_WINNER, "recommended", "memory", "ttrl"):
        own, is_winner = sets.loc[name], name == _WINNER
        candidate = "memory hysteresis=0.25 epochs=24" if is_winner else name
        cells = [f"{gains[candidate]:+.1f}", str(estimate(own["pass_final"])), _with_p(own["gap"])]
        over = difference(estimate(differences(own["gap"], base)))
        cells += ["" if name == "recommended" else over, _points(own["gap"])]
        rows.append(["Winner of the search" if is_winner else title(name), *cells])
    head = ["arm", "minus vote, simulated", "real, final pass@1, %", "minus vote, p"]
    return TextTable([*head, "minus recommended", "sets, minus vote"], rows)


def vote_error(cells: pd.DataFrame, vote: float) -> float:
    """Mean error of a prediction without a model: final pass@1 is the vote, 100 with true labels.

    Args:
        cells: one row per arm: arm and real (final pass@1, %).
        vote: majority vote before training, %.
    """
    return float((cells["real"] - np.where(cells["arm"] == "truth", 100.0, vote)).abs().mean())


def language_vote() -> TextTable:
    """Arms against the votes of the start model in both precisions, with points by set."""
    rows = []
    for dtype, lr in PRECISIONS:
        runs = where(rows_of("language-vote"), lr=lr).set_index(["task", "seed"])
        of_144, parts = _start_votes(runs), runs.groupby("arm")
        for name in (*THREE, "frozen"):
            own = parts.get_group(name)
            final = own["pass_final"]
            over = [final - own["maj_start"], (final - of_144["trained"]).dropna()]
            held_out = estimate(own["held_out_pass_at_1_final"] - of_144["held_out"])
            cells = [f"{title(name)}, {dtype}", f"{final.mean():.1f}"]
            cells += [*map(_against, over), mean_sd(held_out.mean, signed=True)]
            by_set = (f"{_points(g)} ({g.mean():+.1f})" for _, g in over[0].groupby(level="task"))
            rows.append([*cells, "; ".join(by_set)])
    head = ["arm", "final pass@1, %", "minus the vote of 16, p", "minus the vote of 144, p"]
    return TextTable([*head, "the same, held out", "minus vote of 16, by set (mean)"], rows)


def _start_votes(runs: pd.DataFrame) -> pd.DataFrame:
    """The start model's vote of 144, in percent, on both parts of the set of every run."""
    index, parts = runs.index.unique(), ["trained", "held_out"]
    table = pd.read_csv(START)
    place = np.where(table.groupby("set").cumcount() < N_TRAINED, *parts)
    means = 100 * table.assign(part=place).pivot_table("majority", "set", "part")
    return means.reindex(index.get_level_values("task"), columns=parts).set_axis(index)


def _against(gap: pd.Series) -> str:
    """The mean of paired differences with its interval, sign-flip p and conclusion."""
    level = 1 - 0.05 / 8  # four arms against two votes, corrected for together in each precision
    told = conclusion(estimate(gap, level), "beats it", "falls below")
    return f"{_with_p(gap, level)}: {told}"


def language_rate() -> TextTable:
    """Final pass@1 of arms at three rates, and of TTRL at those that its flips choose.

    The last row stands only where all runs of the protocol are there.
    """
    runs = rows_of("language-rate")
    runs["flips"] = 100 * runs["flips_by_visit"].str.split().str[2].astype(float)
    cells = runs.set_index("seed").groupby(["arm", "lr"])["pass_final"]
    rows = [[title(a), *(str(estimate(cells.get_group((a, lr)))) for lr in RATES)] for a in THREE]
    ttrl = where(runs, arm="ttrl")
    flips = ttrl.groupby("lr")["flips"].mean()
    rows.append(["Labels of TTRL that flip at visit 2, %", *(f"{flips[lr]:.0f}" for lr in RATES)])
    settled = ttrl[(ttrl["flips"] < 10) | (ttrl["lr"] == min(RATES))]
    chosen = settled.sort_values("lr").drop_duplicates("seed", keep="last").set_index("seed")
    n_chosen = (str(np.count_nonzero(chosen["lr"] == lr)) for lr in RATES)
    rows.append(["Seeds that choose the rate", *n_chosen])
    if len(runs) == sum(len(block.arms) for block in STUDIES["rate"]):
        name, lr = cells.mean().idxmax()
        gap = estimate(chosen["pass_final"] - cells.get_group((name, lr)))
        verdict = "shown to hold" if gap.low > -5 else "holds" if gap.mean > -5 else "does not hold"
        over = f"{difference(gap)} from {title(name)} at {lr:g}: {verdict}"
        rows.append(["TTRL at the chosen rates", str(estimate(chosen["pass_final"])), over, ""])
    return TextTable(["final pass@1, %", *(f"{lr:g}" for lr in RATES)], rows)


def language_first() -> TextTable:
    """Arms against TTRL and the vote of 16, one row per share of first votes that are right."""
    runs, level, rows = rows_of("language-first"), 1 - 0.05 / 20, []
    pairs = [(own, "ttrl") for own in THREE[1:]] + [(own, VOTE) for own in THREE]
    for share in FIRST_SETS:
        part = with_vote(where(runs, task=f"first-{share}"), UNIT)
        first, final = (where(part, arm=a)["pass_final"].mean() for a in (VOTE, "ttrl"))
        found = (difference(estimate(gaps(part, *pair), level)) for pair in pairs)
        rows.append([f"{share}, {first:.0f}", f"{final:.1f}", *found])
    heads = (f"{title(own)} - {'vote' if base == VOTE else title(base)}" for own, base in pairs)
    head = ["first votes right: chosen, in runs, %", "TTRL, final pass@1, %"]
    return TextTable([*head, *heads], rows)


def ladder() -> TextTable:
    """One row per size of the tiny model: final pass@1 of TTRL, and the other arms minus it."""
    runs, rates = rows_of("ladder"), pd.read_csv(DATA / "ladder-rates.csv")
    weights, others = rates.groupby("width")["weights"].first(), ("guard", "memory", "frozen")
    level, rows = 1 - 0.05 / (len(others) * len(weights)), []
    for width, n_weights in weights.items():
        own = where(runs, task=f"width-{width}")
        plain = where(own, arm="ttrl")
        mean = plain.mean(numeric_only=True)
        changed = mean["held_out_pass_at_1_final"] - mean["held_out_pass_at_1_start"]
        cells = [f"{n_weights:,}", f"{mean['lr']:g}", f"{mean['pass_start']:.1f}"]
        cells += [str(estimate(plain["pass_final"]))]
        cells += [_gain(own, a, "ttrl", level) for a in others]
        rows.append([*cells, f"{changed:.1f}", f"{mean['leak']:.1f}"])
    head = ["parameters", "lr", "before", "TTRL", *(f"{title(a)} - TTRL" for a in others)]
    return TextTable([*head, "held-out change", "leak"], rows)


def trl() -> TextTable:
    """One row per arm of the tiny task: pass@1 in TRL and by guard-train on the same seeds."""
    runs = pd.read_csv(DATA / "trl-tiny.csv").pivot(index=["arm", "seed"], columns="task")
    runs = runs[["pass_start", "pass_final"]].dropna().swaplevel(axis=1)
    rows = []
    for name in ("ttrl", "guard", "memory"):
        own = runs.loc[name]
        cells = [title(name), str(len(own))]
        for trainer in ("TRL", "guard-train"):
            final = own[trainer]["pass_final"]
            shown = f"{final.mean():.1f} ({final.min():.1f} to {final.max():.1f})"
            cells += [f"{own[trainer]['pass_start'].mean():.1f}", shown]
        rows.append(cells)
    head = ["arm", "seeds", "TRL: before", "final pass@1, %", "guard-train: before", "final"]
    return TextTable(head, rows)


CHOSEN, HELD_OUT, COMPARED, DEVELOPMENT = "structure", "none", "earlier laws", "law of growth"
SETS = {HELD_OUT: (23, 24, 25), COMPARED: (4, 5, 20, 21, 22), DEVELOPMENT: (6,)}
"""Choices, and the problem seeds on whose data they were made."""
LINEAR = "measured, growth 0"


def read(name: str) -> pd.DataFrame:
    """Return the rows of `lab.agreement` that a file of docs/data holds."""
    return pd.read_csv(DATA / f"agreement-{name}.csv")


def agreement(_bars: str) -> TextTable:
    """The demands on the measured policy, what was reached, and the noise of the real runs."""
    head = ["in points unless stated", "target", "reached", "linear", "other half of the seeds"]
    return TextTable([*head, "choices on this data"], [*_demands()])


def _demands() -> Iterator[list[str]]:
    """The demands on the first problem set, on others, and on the checkpoint that verifies."""
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
    calm = select(table, (floats(table, "lr") == 1e-4) | np.array(table["arm"] == "frozen"))
    yield _row("correlation over problems, frozen labels and 1e-4", ".85", calm, "r", CHOSEN, 2)
    lowest = where(calm, prediction=MEASURED)["r"].min()
    yield ["the lowest of these cells", ".85", f"{lowest:.2f}", "", "", CHOSEN]
    for choices, seeds in SETS.items():
        parts = [seeds] if choices == COMPARED else [(seed,) for seed in seeds]
        for part in parts:
            table = pd.concat([_with_linear(f"seed{seed}") for seed in part])
            name = "problem sets" if len(part) > 1 else "problem set"
            name = f"{name} {', '.join(map(str, part))}: {5 * len(part)} cells"
            yield _row(name, "5", table, "final", choices)
    name = "start model that judges, TTRL at 1e-4 and 3e-4"
    yield _row(name, "", _with_linear("verify"), "final", COMPARED)


def _with_linear(name: str) -> pd.DataFrame:
    """The rows of a file, and the measured policy's of the linear model as `LINEAR`."""
    own = where(read(f"linear-{name}"), prediction=MEASURED).assign(prediction=LINEAR)
    return pd.concat([read(name), own], ignore_index=True)


def _row(
    name: str, bar: str, table: pd.DataFrame, column: str, choices: str, digits: int = 1
) -> list[str]:
    parts = (where(table, prediction=kind)[column] for kind in (MEASURED, LINEAR, OTHER_HALF))
    means = (f"{part.mean():.{digits}f}" if len(part) else "" for part in parts)
    return [name, bar, *means, choices]


_TABLES = (
    *(agreement, above_vote, ladder, protocol, rules, simulated, summary, tiny_pairs, trl),
    *(language, language_first, language_pairs, language_rate, language_vote),
)
MAKERS: dict[str, Callable[..., TextTable]] = {
    **{make.__name__.replace("_", "-"): make for make in _TABLES},
    "readings": lambda kind, *words: readings.KINDS[kind](*words),
}
"""Name of a table to its function, which takes the other words of the comment."""


if __name__ == "__main__":
    main()
