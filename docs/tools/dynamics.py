"""Tables and figures of `docs/dynamics.md`.

python docs/tools/dynamics.py kernel set1=FILE ...     # docs/data/dynamics-kernel.csv, -transfer,
                                                       # -spectrum; from response files
python docs/tools/dynamics.py parts set1=FILE ...      # docs/data/dynamics-parts.csv; or some
                                                       # arms of it, as ttrl
python docs/tools/dynamics.py small                    # docs/data/dynamics-small.csv
python docs/tools/dynamics.py draw                     # docs/dynamics/*.svg from docs/data; or
                                                       # some of them, as transfer leak

Drawing needs the extra png and Chromium or Chrome; `dynamics_runs.py` makes the tables of real
runs.
"""

from __future__ import annotations

import fcntl
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from guard_core import GuardConfig
from lab.columns import flags, floats
from lab.measures.fate import fate_shares, fates
from lab.measures.kernel import (
    classes,
    correlations,
    mean_correlations,
    spectrum,
    transfer,
)
from lab.stats.bootstrap import percentile_interval, resample_counts
from lab.stats.paired import estimate
from lab.trace.response import read_response, write_response
from lab.trace.trace import Trace
from sim import SimConfig, simulate

DATA = Path(__file__).parents[1] / "data"
ARMS = {"ttrl": GuardConfig.off(), "frozen": replace(GuardConfig.off(), label_from="frozen")}
PARTS_OFF: dict[str, tuple[tuple[Any, ...], ...]] = {
    "ttrl": ((), ("leak",), ("others",), ("leak", "others"), ("own",)),
    "frozen": ((), ("leak",), ("others",)),
}
"""Parts that are switched off, by arm."""
LR = 3e-4
REPLICATES = 24
FIRST_VISITS, LAST_VISITS = 3, 5
"""Of a problem, as for its fate."""


def kernel_tables(name: str, file: str) -> dict[str, pd.DataFrame]:
    """Transfer of every label, spectrum, and summary of one response file's kernels."""
    response, rows = read_response(file), []
    for kernel in ("gradient", "adam"):
        found = classes(response, adam=kernel == "adam")
        table, shares = transfer(found), spectrum(found)
        summary = [*_of_transfer(table), *_of_pairs(mean_correlations(correlations(found)))]
        summary += _of_spectrum(shares)
        summary = pd.DataFrame(summary, columns=("quantity", "value", "low", "high", "n"))
        rows.append(summary.assign(set=name, kernel=kernel))
        if kernel == "gradient":
            kept, cumulated = table.assign(set=name), shares.cumsum()
    number = np.arange(1, len(cumulated) + 1)
    spectra = pd.DataFrame({"set": name, "directions": number, "share": cumulated})
    return {"kernel": pd.concat(rows), "transfer": kept, "spectrum": spectra}


def _of_transfer(table: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    for column in ("moved", "rms"):
        values = floats(table, column)
        counts_BN = resample_counts(len(values), 2000, np.random.default_rng(0))
        medians = np.array([np.median(np.repeat(values, counts)) for counts in counts_BN])
        yield f"{column} (median)", np.median(values), *percentile_interval(medians), len(values)
    for label, right in (("right", True), ("wrong", False)):
        found = estimate(table["lifted"][flags(table, "right") == right])
        yield f"lifted by {label} labels (mean)", found.mean, found.low, found.high, found.n


def _of_pairs(means: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    for row in means.itertuples():
        yield f"correlation {row.kind} (mean)", row.mean, row.low, row.high, row.n
        yield f"correlation {row.kind} (sd)", row.sd, np.nan, np.nan, row.n


def _of_spectrum(shares: np.ndarray) -> Iterator[tuple[Any, ...]]:
    cumulated, n = shares.cumsum(), len(shares)
    yield "effective rank", 1 / (shares**2).sum(), np.nan, np.nan, n
    yield "share of 2 directions", cumulated[1], np.nan, np.nan, n
    for share in (0.5, 0.8, 0.95):
        needed = int((cumulated < share).sum()) + 1
        yield f"directions for {100 * share:.0f} %", needed, np.nan, np.nan, n


def parts_rows(
    name: str, file: str, lr: float, arm: str, parts_off: tuple[Any, ...], replicates: int
) -> pd.DataFrame:
    """One row per replicate of one cell; replicates of one number share their seeds."""
    response = read_response(file)
    sizes = {"n_problems": response.n_problems, "n_answers": response.n_answers, "epochs": 12}
    config = SimConfig(
        policy="measured",
        response=file,
        lr=lr,
        guard=ARMS[arm],
        parts_off=parts_off,
        replicates=replicates,
        **sizes,
    )
    trace = simulate(config)
    cell = {"set": name, "lr": lr, "arm": arm, "parts_off": "+".join(parts_off)}
    return outcomes(trace).assign(**cell)


def outcomes(trace: Trace) -> pd.DataFrame:
    """pass@1 before and after, fates and extinct answers, one row per replicate.

    A correct answer is alive at a visit at which it has a quarter of the votes. It is extinct if it
    was alive at one of the first three visits (or before training) and at none of the last five.
    """
    evals = trace.evals.pivot(index="replicate", columns="epoch", values="pass_at_1")
    shares, visits = fate_shares(fates(trace.visits)), trace.visits
    alive = visits.pivot(
        index=["replicate", "problem"], columns="visit", values="correct_competitive"
    )
    right = visits.pivot(index=["replicate", "problem"], columns="visit", values="label_correct")
    was_alive = alive.loc[:, :FIRST_VISITS].any(axis=1)
    extinct = was_alive & ~alive.iloc[:, -LAST_VISITS:].any(axis=1)
    was_right, is_right = right[0].astype(bool), right.iloc[:, -1].astype(bool)

    def share(chosen: pd.Series) -> pd.Series:
        return 100 * chosen.groupby("replicate").mean()

    columns = {
        "pass_start": 100 * evals.iloc[:, 0],
        "pass_final": 100 * evals.iloc[:, -1],
        "TotalDeg": shares["TotalDeg"],
        "extinct": share(extinct),
        "extinct_right_label": share(extinct & was_right),
        "extinct_wrong_label": share(extinct & ~was_right),
        "label_lost": share(was_right & ~is_right),
        "label_gained": share(~was_right & is_right),
    }
    return pd.DataFrame(columns).reset_index()


def small() -> pd.DataFrame:
    """Numbers of a small measurement, which a test makes again: quantity and value."""
    from real.measure.command import measure_model
    from real.measure.measuring import MeasureConfig
    from real.settings.config import TrainConfig

    how = MeasureConfig(responses=64, weights=1024)
    response = measure_model(TrainConfig(n_problems=8), how, None, lambda phase, done: None)
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "small.npz")
        write_response(file, response)
        kernel = kernel_tables("small", file)["kernel"]
        runs = parts_rows("small", file, LR, "ttrl", ("others",), 1)
    runs = (
        runs[["pass_start", "pass_final"]].iloc[0].rename_axis("quantity").reset_index(name="value")
    )
    return pd.concat([kernel[kernel["kernel"] == "gradient"][["quantity", "value"]], runs])


def main(words: Sequence[str]) -> None:
    """Write what the first word names."""
    command, *rest = words
    files = [word.split("=") for word in rest if "=" in word]
    if command == "draw":
        from dynamics_figures import FIGURES, draw

        draw(rest or list(FIGURES))
    elif command == "small":
        write("small", small(), [])
    elif command == "kernel":
        for name, file in files:
            for kind, table in kernel_tables(name, file).items():
                write(kind, table, ["set"])
    else:
        arms = [word for word in rest if "=" not in word] or list(ARMS)
        cells = [(arm, parts_off) for arm in arms for parts_off in PARTS_OFF[arm]]
        for (arm, parts_off), (name, file) in product(cells, files):
            table = parts_rows(name, file, LR, arm, parts_off, REPLICATES)
            write("parts", table, ["set", "lr", "arm", "parts_off"])
            print(table.to_string(), flush=True)


def write(kind: str, rows: pd.DataFrame, keys: list[str]) -> None:
    """Write a table of docs/data; rows with equal keys take the place of older ones."""
    path, rows = DATA / f"dynamics-{kind}.csv", rows.round(4)
    with open(path, "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if keys and path.stat().st_size:
            old = pd.read_csv(path, dtype={"parts_off": str}).fillna({"parts_off": ""})
            new = set(rows[keys].apply(tuple, axis=1))
            same = old[keys].apply(tuple, axis=1).isin(new)
            rows = pd.concat([old[~same], rows]).sort_values(keys, kind="stable")
        rows.to_csv(path, index=False)


if __name__ == "__main__":
    main(sys.argv[1:])
