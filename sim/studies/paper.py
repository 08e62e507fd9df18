"""All cells that the paper prints, simulated under every reading of its guard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from lab.arm_settings import with_arm
from lab.base.arms import BASELINE, arm, for_cell, title
from lab.base.columns import floats, groups, where
from lab.base.errors import UserError
from lab.base.files import whole
from lab.base.settings import flattened, to_values
from lab.compare.published import (
    CELLS,
    PASS_AT_1,
    published_fate,
    setting_of,
)
from lab.figures import calibration_errors
from lab.progress import Bar
from lab.report.html import Part, check_page, figure_page, write_page
from sim.engine.run import measure
from sim.settings.config import SimConfig
from sim.settings.populations import NAMED

GUARDS = ("guard", "guard: flip_rate=instant", "guard_release")
"""The guard as the text has it, with the one-step flip rate, and as the authors' scripts set it."""
ARMS = (BASELINE, *GUARDS, "frs", "mps", "rcsu")
TABLE, PAGE = "paper.csv", "paper.html"
PASS = "pass@1"
_WORDS = (
    "Simulated minus printed, in points: the mean over the replicates. The populations were "
    "fitted to the fates under TTRL, no number to a row of a guard or an ablation.",
    "pass@1 was never fitted and is known to be off: in the paper it rises under TTRL even where "
    "most problems degrade, in the simulator it falls with them. Qwen3-4B and the cells without "
    "printed fates have populations that are fitted to nothing but the base model's pass@1.",
)


def paper_table(config: SimConfig, progress: bool = False) -> pd.DataFrame:
    """Simulate every printed cell of the paper.

    Args:
        config: settings that all cells share; population, sizes and arm are replaced.

    Returns:
        One row per population, arm and cell that the paper prints (a fate, or pass@1 at the end):
        row, title, kind (the arm), cell, published, predicted (mean over the replicates) and sd,
        in percent.
    """
    jobs = [(name, asked) for name in NAMED for asked in ARMS]
    bar = Bar(jobs, "paper", len(jobs), unit="run", disable=not progress)
    lines = [line for name, asked in bar for line in _lines(config, name, asked)]
    names = ["row", "title", "kind", "cell", "published", "predicted", "sd"]
    return pd.DataFrame(lines, columns=names)


def _lines(config: SimConfig, name: str, asked: str) -> Iterator[tuple[object, ...]]:
    setting, law = setting_of(name), NAMED[name]
    assert setting is not None  # every named population is a cell of the paper
    method = "guard" if asked in GUARDS else asked
    printed = {cell: published_fate(setting, method, cell) for cell in CELLS}
    printed[PASS] = PASS_AT_1.get((setting.model, setting.data, method))
    own = replace(config, population=name, n_problems=law.n_problems, epochs=law.epochs)
    found = measure(with_arm(own, arm(for_cell(asked, name))))
    for cell, value in printed.items():
        if value is not None:
            ours_R = floats(found, "pass_final" if cell == PASS else cell)
            sd = ours_R.std(ddof=1) if len(ours_R) > 1 else 0.0
            yield name, " ".join(setting), arm(asked).name, cell, value, ours_R.mean(), sd


def paper_errors(table: pd.DataFrame) -> pd.DataFrame:
    """Mean error of every arm over its printed fates and over its printed pass@1, in points.

    Returns:
        arm, fates, n_fates, change (error of the change from TTRL in those fates), pass_at_1 and
        n_pass; NaN where nothing is printed.
    """
    gaps = floats(table, "predicted") - floats(table, "published")
    own = table.assign(gap=gaps)
    plain = where(own, kind=BASELINE)
    keys = zip(plain["row"], plain["cell"], strict=True)
    base = dict(zip(keys, floats(plain, "gap"), strict=True))
    lines = []
    for (name,), part in groups(own, ["kind"]):
        error = floats(part, "gap")
        at = zip(part["row"], part["cell"], strict=True)
        change = error - np.array([base[key] for key in at])
        is_pass = np.array(part["cell"] == PASS)
        means = [_mean(error[~is_pass]), int((~is_pass).sum()), _mean(change[~is_pass])]
        lines.append((name, *means, _mean(error[is_pass]), int(is_pass.sum())))
    columns = ["arm", "fates", "n_fates", "change", "pass_at_1", "n_pass"]
    return pd.DataFrame(lines, columns=columns)


def _mean(errors: np.ndarray) -> float:
    return float(np.abs(errors).mean()) if len(errors) else float("nan")


def run_paper(config: SimConfig, out: Path, progress: bool = False) -> list[str]:
    """Write the table and the page of all printed cells; a table that is there is not made again.

    Returns:
        Lines for the terminal: the errors of every arm.

    Raises:
        UserError: the folder has such a table of other settings, or cannot be written.
    """
    stamp = f"# {json.dumps(flattened(to_values(config)))}\n"
    path = out / TABLE
    check_page(out / PAGE)
    if not path.is_file():
        made = paper_table(config, progress)
        out.mkdir(parents=True, exist_ok=True)
        with whole(path) as file:
            file.write_text(stamp + made.to_csv(index=False, float_format="%.4g"))
    if not path.read_text().startswith(stamp):
        raise UserError(f"{path}: was made with other settings; choose another folder")
    table = pd.read_csv(path, comment="#")
    errors = paper_errors(table)
    titles = dict(zip(table["row"], table["title"], strict=True))
    named = table.assign(kind=[title(name) for name in table["kind"]])
    figure = calibration_errors(named, titles)
    parts = [Part("Every printed cell", _WORDS, figure, "Errors by cell")]
    words = []
    for row in errors.to_dict("records"):
        of_fates = (
            f"fates {row['fates']:.2f} points over {row['n_fates']} cells, change from TTRL "
            f"{row['change']:.2f}; "
        )
        words.append(
            f"{title(row['arm'])}: {of_fates if row['n_fates'] else ''}pass@1 "
            f"{row['pass_at_1']:.1f} points over {row['n_pass']} cells"
        )
    write_page(out / PAGE, figure_page("The paper's cells, simulated", words, parts))
    n_pass = int(np.sum(np.array(table["cell"] == PASS)))
    return [f"{len(table) - n_pass} printed fates, {n_pass} printed pass@1", *words]
