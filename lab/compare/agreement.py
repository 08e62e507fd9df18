"""Agreement of simulated runs with real ones, relative to the noise of the real runs themselves.

A cell is one arm at one learning rate. Its curves are means over the seeds, and an error is the
distance of two such means: absolute for numbers, root mean square over the epochs for curves. Two
references tell what an error is worth:

`OTHER_HALF`  one half of the real seeds predicts the other half: the noise floor. Each half has
              only half of the seeds, so a prediction without any error of its own, compared with
              all seeds, errs by about half as much.
`COPY`        one half of TTRL's seeds at the same learning rate predicts the other half of the
              arm's: no model at all. For TTRL itself it is the noise floor.

Both are means over `_SPLITS` random splits of the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from lab.base.arms import BASELINE, title
from lab.base.columns import Floats, TextTable, finite_mean, floats, groups, select, unique, where
from lab.base.errors import UserError
from lab.base.stats import Estimate, mean_sd, paired, with_interval
from lab.compare.collection import MEASURED, Comparison, gather
from lab.compare.families import PROMPTS, WEIGHTS, arm_names, shared_settings
from lab.measures.dynamics import dynamics
from lab.measures.fate import FATES, fate_shares, fates
from lab.trace.trace import Trace

OTHER_HALF, COPY = "other half of the seeds", "copy of TTRL"
ERRORS = ("final", "curve", "match_rate", "flip_rate", "fates")
"""Columns of errors in points."""

_CURVES = ("pass_at_1", "match_rate", "flip_rate")
_SHARED = ("n_votes", "n_samples", "batch_size", "mini_batch", "epochs")
_SHARED += ("warmup_ratio", "max_grad_norm", "dtype")
"""Settings in which a simulated run must agree with the real run that it predicts, if noted."""
_SPLITS = 64
_ERROR_HEADS = ("final", "curve", "MR", "FR", "fates")
CELLS = (
    "Final pass@1 in %, errors in points; curves of pass@1, MR and FR as root mean square. Noise: "
    "error of one half of the real seeds for the other; r: correlation over problems."
)
MEANS = "Means over the cells."
_COLUMNS = (
    *("task", "lr", "arm", "prediction", "seeds", "replicates", "real", "predicted"),
    *(*ERRORS, "r"),
    *("gain_real", "gain_low", "gain_high", "gain_predicted", "gain", "sign"),
)
Cell = dict[str, Floats]
"""The runs of a cell that have all epochs, or their means, in percent: `replicate` (S,), each of
`_CURVES` (S, epochs), `fates` (S, F) and `accuracy` (S, problems), the final label accuracy. The
last two are NaN in runs that are too short for them, and for problems without a true answer."""
Cells = Mapping[str, Cell]
"""Of every arm."""


def agreement(real: Sequence[Trace], simulated: Sequence[Trace] | Trace) -> pd.DataFrame:
    """Compare simulated runs with real ones, cell by cell.

    Args:
        real: runs of the trainer, of any arms, seeds and settings.
        simulated: runs of the policy `measured` with the settings of real ones. Each predicts the
            real runs of its arm's settings, learning rate, problems, votes, batches and epochs.

    Returns:
        One row per cell and prediction: task, lr, arm, prediction (the policy, `OTHER_HALF` or
        `COPY`), seeds (real), replicates, real and predicted (final pass@1, %), the errors in
        points `final`, `curve` (pass@1), `match_rate`, `flip_rate` and `fates` (mean over the
        categories), `r` (correlation over problems of the final label accuracy; both NaN for runs
        that are too short for fates), and of the arm minus TTRL in final pass@1: `gain_real`,
        `gain_low`, `gain_high` (95 % interval over paired seeds), `gain_predicted`, `gain` (error
        in points) and `sign` (1 right, 0 wrong; NaN where the real difference is within noise).

    Raises:
        UserError: no simulated run predicts one of the real runs.
    """
    predictions = gather([simulated] if isinstance(simulated, Trace) else simulated)[0]
    parts = []
    for comparison in gather(real)[0]:
        fitting = [s for s in predictions if alike(s, comparison)]
        growths = [s.manifests[0].config.get("growth") for s in fitting]  # None: the file's
        names = [MEASURED if g is None else f"{MEASURED}, growth {g:g}" for g in growths]
        traces = {
            name if names.count(name) == 1 else f"{name}, {s.task}": alike(s, comparison)
            for name, s in zip(names, fitting, strict=True)
        }
        if traces:
            parts.append(compare_cells(comparison, traces))
    if not parts:
        raise UserError(
            "agreement: no simulated run has arm, learning rate, problems, votes, batches and "
            "epochs of a real one; make them with guard-sim agree"
        )
    return pd.concat(parts, ignore_index=True)


def predicts(simulated: Comparison, real: Comparison) -> bool:
    """Return whether simulated runs have the settings of real ones."""
    runs = simulated_run, real_run = simulated.manifests[0], real.manifests[0]
    noted = [[run.config.get(name) for run in runs] for name in _SHARED]
    noted += [[shared_settings(run).get(name) for run in runs] for name in (WEIGHTS, PROMPTS)]
    return (
        (simulated.world, real.world) == ("sim", "real")
        and simulated_run.config.get("policy") == MEASURED
        and simulated.step_size == real.step_size
        and simulated_run.n_problems == real_run.n_problems
        # What one has not noted agrees: a simulation without a clip takes the trainer's.
        and all(one == two or None in (one, two) for one, two in noted)
    )


def alike(simulated: Comparison, real: Comparison) -> dict[str, Trace]:
    """Return the simulated runs of each arm whose settings, as far as noted, are the real ones'."""
    arms = [arm for arm in simulated.arms if arm in real.runs and predicts(simulated, real)]
    pairs = {arm: [*simulated.runs[arm], *real.runs[arm]] for arm in arms}
    return {a: simulated.traces[a] for a, runs in pairs.items() if len({*arm_names(runs)}) == 1}


def compare_cells(real: Comparison, predictions: Mapping[str, Mapping[str, Trace]]) -> pd.DataFrame:
    """As `agreement`, of one comparison; each prediction's traces by its name and their arms."""
    of_arms = (real.traces, *predictions.values())
    epochs = max(int(t.visits["epoch"].max()) for traces in of_arms for t in traces.values())
    predicted = {
        name: {arm: _runs(trace, epochs) for arm, trace in traces.items() if arm in real.traces}
        for name, traces in predictions.items()
    }
    arms = [arm for arm in real.arms if any(arm in cells for cells in predicted.values())]
    runs = {arm: _runs(real.traces[arm], epochs) for arm in {*arms, BASELINE} & set(real.arms)}
    rows = [
        _row(real, runs, arm) | {"prediction": name} | _compared(runs, cells, arm)
        for arm in arms
        for name, cells in predicted.items()
        if arm in cells
    ]
    rows += [_row(real, runs, arm) | values for arm, values in _references(runs, arms)]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def mean_errors(table: pd.DataFrame) -> pd.DataFrame:
    """The mean errors over the cells, one row per prediction.

    Columns: prediction, cells, those of `ERRORS`, r, gain (over arms other than TTRL), signs (cells
    whose real difference to TTRL is beyond noise) and right_signs.
    """
    numbers = [*ERRORS, "r", "gain"]
    of = table.astype(dict.fromkeys([*numbers, "sign"], float)).groupby("prediction", sort=False)
    means, signs = of[numbers].mean(), of["sign"]
    means.insert(0, "cells", of.size())
    return means.assign(signs=signs.count(), right_signs=signs.sum().astype(int)).reset_index()


def _runs(trace: Trace, epochs: int) -> Cell:
    table, problem_fates = dynamics(trace.visits, trace.evals), fates(trace.visits, partial=True)
    curves = 100 * table.pivot(index="replicate", columns="epoch", values=list(_CURVES))
    columns = range(1, max(epochs, 1) + 1)
    parts = {name: pd.DataFrame(curves[name], columns=columns) for name in _CURVES}
    parts["fates"] = fate_shares(problem_fates)[list(FATES)]
    accuracy = 100 * problem_fates.pivot(index="replicate", columns="problem", values="fla")
    parts["accuracy"] = accuracy.reindex(columns=range(trace.run.n_problems))
    runs: Cell = {n: part.reindex(curves.index).to_numpy(np.float64) for n, part in parts.items()}
    complete = np.isfinite(sum(runs[name][:, -1] for name in _CURVES))
    runs["replicate"] = curves.index.to_numpy(np.float64)
    return {name: values[complete] for name, values in runs.items()}


def _means(runs: Cells) -> dict[str, Cell]:
    """The means over the replicates of every arm that has some."""
    there = ((arm, cell) for arm, cell in runs.items() if len(cell["replicate"]))
    return {arm: {name: v.mean(axis=0) for name, v in cell.items()} for arm, cell in there}


def _final(mean: Cell) -> float:
    return float(mean["pass_at_1"][-1])


def _row(real: Comparison, runs: Cells, arm: str) -> dict[str, Any]:
    """The columns that all predictions of a cell share."""
    task = real.task.removesuffix(f", step size {real.step_size or 0:g}")
    row: dict[str, Any] = {"task": task, "lr": real.step_size, "arm": arm}
    row |= {"seeds": len(runs[arm]["replicate"]), "real": float(_finals(runs[arm]).mean())}
    if (gain := _gain(runs, arm)) is not None:
        row |= {"gain_real": gain.mean, "gain_low": gain.low, "gain_high": gain.high}
    return row


def _gain(runs: Cells, arm: str) -> Estimate | None:
    """The final pass@1 of an arm minus TTRL's over paired seeds; None for TTRL or without it."""
    if arm == BASELINE or BASELINE not in runs:
        return None
    return paired(_finals(runs[arm]), _finals(runs[BASELINE]))


def _finals(runs: Cell) -> pd.Series:
    return pd.Series(runs["pass_at_1"][:, -1], runs["replicate"])


def _compared(real: Cells, predicted: Cells, arm: str) -> dict[str, Any]:
    values: dict[str, Any] = {"replicates": len(predicted[arm]["replicate"])}
    means, gain = _means(predicted), _gain(real, arm)
    values |= _errors(means, _means(real), gain, arm, arm)
    if arm in means:
        values["predicted"] = _final(means[arm])
    if "gain_predicted" in values and gain is not None and not gain.within_noise:
        values["sign"] = float(np.sign(gain.mean) == np.sign(values["gain_predicted"]))
    return values


def _references(runs: Cells, arms: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    rng = np.random.default_rng(0)
    replicates = sorted({int(r) for cell in runs.values() for r in cell["replicate"]})
    splits = []
    for _ in range(_SPLITS if len(replicates) > 1 else 0):
        halves = np.array_split(rng.permutation(replicates), 2)
        parts = [{a: _part(r, half.tolist()) for a, r in runs.items()} for half in halves]
        splits.append((*map(_means, parts), {arm: _gain(parts[1], arm) for arm in arms}))
    for arm in arms:
        for name, source in ((OTHER_HALF, arm), (COPY, BASELINE)):
            rows = [_errors(half, other, gains[arm], source, arm) for half, other, gains in splits]
            table = pd.DataFrame(rows)
            if means := {str(column): finite_mean(table, str(column)) for column in table}:
                means.pop("gain_predicted", None)
                yield arm, {"prediction": name, **means}


def _part(runs: Cell, half: Sequence[int]) -> Cell:
    chosen = np.isin(runs["replicate"], half)
    return {name: values[chosen] for name, values in runs.items()}


def _errors(
    predicted: Cells,
    real: Cells,
    gain: Estimate | None,
    source: str,
    arm: str,
) -> dict[str, float]:
    """Of the means of a source's runs as a prediction of an arm's, whose real gain is given."""
    if source not in predicted or arm not in real:
        return {}
    mean, real_mean = predicted[source], real[arm]
    both = pd.DataFrame({"predicted": mean["accuracy"], "real": real_mean["accuracy"]})
    squares = [float(np.nanmean((mean[name] - real_mean[name]) ** 2)) for name in _CURVES]
    errors = [abs(_final(mean) - _final(real_mean)), *map(math.sqrt, squares)]
    errors.append(float(np.abs(mean["fates"] - real_mean["fates"]).mean()))
    values = dict(zip(ERRORS, errors, strict=True)) | {"r": float(both.corr().to_numpy()[0, 1])}
    if BASELINE in predicted and gain is not None:
        values["gain_predicted"] = _final(mean) - _final(predicted[BASELINE])
        values["gain"] = abs(values["gain_predicted"] - gain.mean)
    return values


def kendall_tau(first: ArrayLike, second: ArrayLike) -> float:
    """Return Kendall's tau-b of two series; NaN where one is constant or has fewer than two."""
    if np.size(first) < 2:
        return np.nan
    from scipy.stats import kendalltau  # its import takes most of a second

    return float(np.asarray(kendalltau(first, second))[0])


def cell_table(table: pd.DataFrame) -> TextTable:
    """The measured policy's row of every cell of one task, with the noise of its final pass@1."""
    head = ["lr", "arm", "real", "sim.", "final", "noise", *_ERROR_HEADS[1:]]
    head += ["r", "arm - TTRL", "sim."]
    rows = []
    for (lr, arm), part in groups(table, ["lr", "arm"]):
        by_name = {str(r["prediction"]): r for r in part.to_dict("records")}
        row = next(r for n, r in by_name.items() if n not in (OTHER_HALF, COPY))
        floor = by_name.get(OTHER_HALF, {}).get("final", math.nan)
        errors = [*(mean_sd(row[name]) for name in ERRORS), mean_sd(row["r"], digits=2)]
        cells = [f"{lr:g}", title(str(arm)), mean_sd(row["real"]), mean_sd(row["predicted"])]
        gain = with_interval(row["gain_real"], row["gain_low"], row["gain_high"])
        cells += [errors[0], mean_sd(floor), *errors[1:], gain]
        rows.append([*cells, mean_sd(row["gain_predicted"], signed=True)])
    return TextTable(head, rows)


def mean_table(table: pd.DataFrame) -> TextTable:
    """The mean errors over the cells of every prediction, the real noise last."""
    head = ["mean error, points", "cells", *_ERROR_HEADS, "r", "arm - TTRL", "right signs"]
    rows = []
    for row in mean_errors(table).to_dict("records"):
        cells = [mean_sd(row[name]) for name in ERRORS] + [mean_sd(row["r"], digits=2)]
        signs = f"{row['right_signs']} of {row['signs']}" if row["signs"] else ""
        name, count = str(row["prediction"]), str(row["cells"])
        rows.append([name, count, *cells, mean_sd(row["gain"]), signs])
    return TextTable(head, rows)


def ranking_table(table: pd.DataFrame) -> TextTable:
    """Kendall's tau of the arms by predicted and real final pass@1, means over the problem sets.

    1 is the same order, -1 the opposite one; a dash is where all arms end alike.
    """
    both = np.isfinite(floats(table, "real") + floats(table, "predicted"))
    keys, taus = ["task", "lr", "prediction"], []
    for key, part in groups(select(table, both), keys):
        taus.append((*key, kendall_tau(floats(part, "predicted"), floats(part, "real"))))
    tau_table = pd.DataFrame(taus, columns=[*keys, "tau"])
    lrs = sorted(unique(tau_table, "lr"))
    rows = []
    for (name,), part in groups(tau_table, ["prediction"]):
        means = [finite_mean(where(part, lr=lr), "tau") for lr in lrs]
        rows.append([str(name), *(mean_sd(mean, digits=2) or "-" for mean in means)])
    return TextTable(["Kendall's tau over the arms", *(f"{lr:g}" for lr in lrs)], rows)
