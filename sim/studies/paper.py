"""All cells that the paper prints, simulated under every reading of its guard."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from lab.base.arms import BASELINE, GUARD, arm, for_cell, title
from lab.base.columns import finite_mean, floats, groups, select, where
from lab.base.errors import UserError
from lab.base.files import whole
from lab.base.settings import flattened, to_values
from lab.compare.published import CELLS, GUARDS, PASS_AT_1, published_fate, setting_of
from lab.figures.outcomes import calibration_errors
from lab.report.html import Drawing, check_page, figure_page, write_page
from sim.settings.config import SimConfig
from sim.settings.populations import NAMED
from sim.studies.jobs import job_of
from sim.studies.sweep import claimed, run_jobs

ARMS = (BASELINE, *GUARDS, "frs", "mps", "rcsu")
_GUARDS = [arm(name).name for name in GUARDS]
TABLE, PAGE = "paper.csv", "paper.html"
PASS = "pass@1"
_WORDS = (
    "Simulated minus printed, in points: the mean over the replicates. The populations were "
    "fitted to the fates under TTRL, no number to a row of a guard or an ablation.",
    "pass@1 was never fitted and is known to be off: in the paper it rises under TTRL even where "
    "most problems degrade, in the simulator it falls with them. Qwen3-4B and the cells without "
    "printed fates have populations that are fitted to nothing but the base model's pass@1.",
)


def paper_table(rows: pd.DataFrame) -> pd.DataFrame:
    """The cells that the paper prints, from simulations of its populations.

    Args:
        rows: of `run_paper`, one per population (`row`), arm and replicate.

    Returns:
        One row per population, arm and cell that the paper prints (a fate, or pass@1 at the end):
        row, title, kind (the arm), cell, published, predicted (mean over the replicates) and sd,
        in percent; sd is NaN for one replicate.
    """
    lines = []
    for (name, kind), runs in groups(rows, ["row", "arm"]):
        setting, method = setting_of(str(name)), GUARD if kind in _GUARDS else str(kind)
        assert setting is not None  # every named population is a cell of the paper
        printed = {cell: published_fate(setting, method, cell) for cell in CELLS}
        printed[PASS] = PASS_AT_1.get((setting.model, setting.data, method))
        for cell, value in printed.items():
            if value is not None:
                ours_R = floats(runs, "pass_final" if cell == PASS else cell)
                sd = ours_R.std(ddof=1) if len(ours_R) > 1 else np.nan
                lines.append((name, " ".join(setting), kind, cell, value, ours_R.mean(), sd))
    names = ["row", "title", "kind", "cell", "published", "predicted", "sd"]
    return pd.DataFrame(lines, columns=names)


def paper_errors(table: pd.DataFrame) -> pd.DataFrame:
    """Mean error of every arm over its printed fates and over its printed pass@1, in points.

    Returns:
        arm, fates, n_fates, change (error of the change from TTRL in those fates), pass_at_1 and
        n_pass; NaN where nothing is printed.
    """
    gaps = floats(table, "predicted") - floats(table, "published")
    cells = table.assign(gap=gaps).set_index(["row", "cell"])
    base = cells.loc[cells["kind"] == BASELINE, "gap"]
    cells["change"] = (cells["gap"] - base.reindex(cells.index)).abs()
    cells["gap"] = cells["gap"].abs()
    lines = []
    for (name,), part in groups(cells, ["kind"]):
        is_pass = np.array(part.index.get_level_values("cell") == PASS)
        fates, scores = select(part, ~is_pass), select(part, is_pass)
        means = [finite_mean(fates, "gap"), len(fates), finite_mean(fates, "change")]
        lines.append((name, *means, finite_mean(scores, "gap"), len(scores)))
    columns = ["arm", "fates", "n_fates", "change", "pass_at_1", "n_pass"]
    return pd.DataFrame(lines, columns=columns)


def run_paper(config: SimConfig, out: Path, workers: int, progress: bool = False) -> list[str]:
    """Simulate every printed cell, and write the table and the page; the same call goes on.

    Returns:
        Lines for the terminal: the errors of every arm.
    """
    pairs = []
    for (name, law), kind in itertools.product(NAMED.items(), ARMS):
        cell = replace(config, population=name, n_problems=law.n_problems, epochs=law.epochs)
        labels = {"row": name, "arm": arm(kind).name}
        pairs.append((labels, job_of(cell, {}, for_cell(kind, name))))
    check_page(out / PAGE)
    values = to_values(config)
    with claimed(out, {"settings": values}, workers):
        rows = run_jobs(pairs, out, workers, progress)
    for reason in where(rows, status="failed")["reason"]:
        raise UserError(reason)
    stamp = f"# {json.dumps(flattened(values))}\n"
    with whole(out / TABLE) as file:
        file.write_text(stamp + paper_table(rows).to_csv(index=False, float_format="%.4g"))
    table = pd.read_csv(out / TABLE, comment="#")
    errors = paper_errors(table)
    titles = dict(zip(table["row"], table["title"], strict=True))
    figure = calibration_errors(table.assign(kind=table["kind"].map(title)), titles)
    drawing = Drawing(figure, "Errors by cell", heading="Every printed cell")
    words = []
    for row in errors.to_dict("records"):
        fates = f"fates {row['fates']:.2f} points over {row['n_fates']} cells"
        change = f"change from TTRL {row['change']:.2f}"
        scores = f"pass@1 {row['pass_at_1']:.1f} points over {row['n_pass']} cells"
        of_fates = f"{fates}, {change}; " if row["n_fates"] else ""
        words.append(f"{title(row['arm'])}: {of_fates}{scores}")
    write_page(out / PAGE, figure_page("The paper's cells, simulated", words, drawing, _WORDS))
    n_fates, n_pass = errors["n_fates"].sum(), errors["n_pass"].sum()
    return [f"{n_fates} printed fates, {n_pass} printed pass@1", *words]
