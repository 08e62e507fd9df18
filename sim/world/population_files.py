"""Abilities from files: a histogram, or the first votes of a run that was made elsewhere."""

from __future__ import annotations

import csv
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lab.columns import floats, ints
from lab.errors import UserError
from lab.trace.trace import load


class Histogram(NamedTuple):
    """A discrete law of the ability."""

    p0_B: NDArray[np.float64]
    """Probability of the correct answer in every bin."""
    share_B: NDArray[np.float64]
    """Share of the problems in every bin; sums to one."""


def read_histogram(path: str) -> Histogram:
    """Read a histogram of abilities.

    Args:
        path: CSV file with the columns `p0` (in [0, 1]) and `weight`: shares that sum to 1, or
            whole counts of problems.

    Raises:
        UserError: names the setting, the file, the line and the value.
    """
    where = f"histogram: {path}"
    rows = [(line, _row(cells, f"{where}, line {line}")) for line, cells in _lines(path, where)]
    if not rows:
        raise UserError(f"{where} holds no rows below its header")
    for line, (p0, weight) in rows:
        if not 0 <= p0 <= 1:
            raise UserError(f"{where}, line {line}: p0 = {p0:g}, must be in [0, 1]")
        if not 0 <= weight < math.inf:
            raise UserError(f"{where}, line {line}: weight = {weight:g}, must be at least 0")
    p0_B, weight_B = np.array([row for _, row in rows]).T
    total = float(weight_B.sum())
    counts = bool((weight_B == np.floor(weight_B)).all())
    if total == 0 or not (counts or abs(total - 1) <= 1e-6):
        raise UserError(
            f"{where}: the weights sum to {total:g}, must sum to 1 or be whole counts above 0"
        )
    return Histogram(p0_B, weight_B / total)


def read_first_accuracies(folder: str) -> NDArray[np.float64]:
    """Label accuracy of every problem before training.

    Args:
        folder: a run folder of either world. Several replicates of one problem are averaged.

    Returns:
        (problems,) share of visit 0's votes that were right, in the order of the problem numbers;
        problems without a known answer are left out.

    Raises:
        UserError: the folder cannot be read, or has no visit 0 with a true answer.
    """
    visits = load(folder).visits
    accuracy = floats(visits, "label_accuracy")
    first = (ints(visits, "visit") == 0) & np.isfinite(accuracy)
    if not first.any():
        raise UserError(
            f"trace: {folder} has no label accuracy at visit 0; take a run whose true answers are "
            "known and that was voted on before training"
        )
    _, place = np.unique(ints(visits, "problem")[first], return_inverse=True)
    return np.bincount(place, accuracy[first]) / np.bincount(place)


def _lines(path: str, where: str) -> list[tuple[int, dict[str, str]]]:
    """Number and named cells of every row that is not blank."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            names = [name.strip() for name in reader.fieldnames or ()]
            if {"p0", "weight"} - set(names):
                raise UserError(f"{where}: the first line must name the columns p0 and weight")
            reader.fieldnames = names
            return [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{where} cannot be read ({error})") from error


def _row(cells: dict[str, str], where: str) -> tuple[float, float]:
    for name in ("p0", "weight"):
        try:
            float(cells[name])
        except (TypeError, ValueError):
            raise UserError(f"{where}: {name} = {cells[name]!r} is not a number") from None
    return float(cells["p0"]), float(cells["weight"])
