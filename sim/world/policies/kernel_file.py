"""Reading the cross-problem kernel from a file, with every defect named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.errors import UserError

_SYMMETRY = 1e-6
"""Largest difference between k_ij and k_ji, relative to the largest entry."""


def read_kernel(path: str, n_problems: int) -> NDArray[np.float64]:
    """Read a symmetric coupling matrix.

    Args:
        path: a `.npy` file (read without pickle) or a `.csv` file of plain numbers.
        n_problems: N.

    Returns:
        (N, N).

    Raises:
        UserError: names the setting, the file, the defect and where it is.
    """
    where = f"kernel: {path}"
    k_NN = _read(path, where)
    if k_NN.shape != (n_problems, n_problems):
        raise UserError(
            f"{where} has shape {k_NN.shape}, must be n_problems x n_problems = "
            f"({n_problems}, {n_problems})"
        )
    _check(k_NN, where)
    return k_NN


def _read(path: str, where: str) -> NDArray[np.float64]:
    suffix = Path(path).suffix.lower()
    if suffix not in (".npy", ".csv"):
        raise UserError(f"{where} is neither a .npy nor a .csv file")
    try:
        if suffix == ".npy":
            found = np.load(path, allow_pickle=False)
        else:
            found = np.loadtxt(path, delimiter=",", dtype=np.float64, ndmin=2)
    except (OSError, ValueError, EOFError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{where} cannot be read ({reason})") from error
    if found.dtype.kind not in "fiu":
        raise UserError(f"{where} holds {found.dtype}, must hold real numbers")
    return np.ascontiguousarray(found, np.float64)


def _check(k_NN: NDArray[np.float64], where: str) -> None:
    if (bad := np.argwhere(~np.isfinite(k_NN))).size:
        i, j = bad[0]
        raise UserError(f"{where}: entry [{i}, {j}] is {k_NN[i, j]}, must be a finite number")
    if (bad := np.flatnonzero(k_NN.diagonal() < 0)).size:
        i = bad[0]
        raise UserError(f"{where}: entry [{i}, {i}] is {k_NN[i, i]:g}, must be at least 0")
    uneven = np.abs(k_NN - k_NN.T) > _SYMMETRY * np.abs(k_NN).max(initial=0.0)
    if (bad := np.argwhere(uneven)).size:
        i, j = bad[0]
        raise UserError(
            f"{where} is not symmetric: [{i}, {j}] is {k_NN[i, j]:g}, [{j}, {i}] is "
            f"{k_NN[j, i]:g}; give (k + k.T) / 2"
        )
