"""Real runs and a response file in, the table of their agreement out.

Real runs are simulated by the measured policy, and by the classical ones as a reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pandas as pd

from guard_core import GuardConfig
from lab.arm_settings import arm_of
from lab.base.arms import BASELINE
from lab.base.columns import floats, ints
from lab.base.errors import UserError
from lab.base.simulated import MEASURED_ALONE, TAKEN, check_settings
from lab.compare.agreement import MEASURED, compare_cells
from lab.compare.collection import Comparison
from lab.measures.fate import MIN_VISITS
from lab.progress import Bar
from lab.trace.manifest import Manifest
from lab.trace.response import Facts, Response
from lab.trace.trace import Trace
from sim.engine.run import simulate
from sim.settings.config import Classical, SimConfig
from sim.settings.machine_code import compilation_shown

STEPS = tuple(0.02 * 2**k for k in range(10))
"""Step sizes that a classical policy is calibrated over, .02 to 10.24."""


class Prediction(NamedTuple):
    """Settings of the simulations that the real runs do not have."""

    response: Response
    path: Path
    """Of the response file."""
    growth: float | None
    """As in `SimConfig`."""
    replicates: int
    """Simulated runs per cell."""
    seed: int

    def of(self, runs: Sequence[Manifest]) -> SimConfig:
        """Return the settings of the measured policy for the runs of one arm."""
        run = runs[0]
        check_same(run, self.response.facts, self.path)
        settings = self._shared(run, *MEASURED_ALONE)
        settings |= {"response": str(self.path), "growth": self.growth}
        return SimConfig(policy=MEASURED, n_answers=self.response.n_answers, **settings)

    def classical(
        self, runs: Sequence[Manifest], policy: Classical, step: float, folder: Path
    ) -> SimConfig:
        """Return those of a classical policy; the folder has the label accuracies at the start."""
        settings = self._shared(runs[0]) | {"trace": str(folder), "fixed_population": True}
        return SimConfig(policy=policy, step=step, population="trace", **settings)

    def _shared(self, run: Manifest, *names: str) -> dict[str, Any]:
        taken = {name: run.config[name] for name in (*TAKEN, *names) if name in run.config}
        taken |= {"guard": GuardConfig.from_dict(run.config["guard"]), "n_problems": run.n_problems}
        return taken | {"replicates": self.replicates, "seed": self.seed}


def not_classical(run: Manifest) -> str | None:
    """Return the setting of a run that only the measured policy has, None where it has none."""
    for name in ("kl_coef", "ema_decay"):
        if (value := run.config.get(name, 0.0)) != 0.0:
            return f"{name} = {value}"
    brake = GuardConfig.from_dict(run.config["guard"]).brake.brake
    return None if brake == 1.0 else f"guard.brake = {brake}"


def check_same(run: Manifest, facts: Facts, path: Path) -> None:
    """Refuse a response file of another model or other problems, and what `check_settings` does."""
    where = f"real: {run.title}, seed {run.seeds[0]}"
    check_settings(run.config, run.roles, where)
    sources = run.extra.get("sources", {})
    for name, other in (("model", "another model"), ("problems", "other problems")):
        if sources.get(name) != getattr(facts, name):
            raise UserError(
                f"response: {path} was measured with {other} than the run of {run.title}, seed "
                f"{run.seeds[0]}; measure the run's own with guard-train measure"
            )
    read_by = ("max_response_tokens", "answer_check", "extract")
    measured = {name: facts.run[name] for name in read_by if name in facts.run}
    measured |= dict.fromkeys(("temperature", "eval_temperature"), facts.temperature)
    for name, wanted in measured.items():
        if (value := run.config.get(name, wanted)) != wanted:
            raise UserError(
                f"{where} has {name} = {value}, the response file {wanted}; leave that run out"
            )


def _simulate_classical(
    comparison: Comparison, prediction: Prediction, policy: Classical
) -> dict[str, Trace]:
    """Simulate the arms that a classical policy can, its step size calibrated on TTRL.

    The step is the one of `STEPS` whose final match rate of TTRL is closest to the real one.
    """
    real = comparison.traces[BASELINE]
    folder = real.folder
    assert folder is not None  # collected from folders

    def run(arm: str, step: float) -> Trace:
        return simulate(prediction.classical(comparison.runs[arm], policy, step, folder))

    gaps = [abs(_final_match(run(BASELINE, step)) - _final_match(real)) for step in STEPS]
    step = STEPS[int(np.argmin(gaps))]
    arms = [arm for arm, runs in comparison.runs.items() if not_classical(runs[0]) is None]
    return {arm: run(arm, step) for arm in arms}


def _final_match(trace: Trace) -> float:
    visit = ints(trace.visits, "visit")
    return float(floats(trace.visits, "match_rate")[visit == visit.max()].mean())


def agree(
    real: Sequence[Comparison],
    prediction: Prediction,
    out: Path | None = None,
    classical: Sequence[Classical] = get_args(Classical),
    progress: bool = False,
) -> pd.DataFrame:
    """Simulate real comparisons and compare both.

    Args:
        out: new folder for the runs of the measured policy; in memory if None.
        classical: other policies, whose runs are not kept.
    """
    for comparison in real:  # before the first run
        for name, runs in comparison.runs.items():
            prediction.of(runs)
            if np.isnan(floats(comparison.traces[name].visits, "label_accuracy")).any():
                raise UserError(
                    f"real: {runs[0].title} has problems without a known answer, which the "
                    "measured policy takes for unsolved; leave that run out"
                )
    several = len({comparison.family for comparison in real}) > 1
    parts = []
    bar = Bar(total=sum(len(c.arms) for c in real), unit="cell", disable=not progress)
    with bar, compilation_shown(bar.set_postfix_str):
        for comparison in real:
            name = "runs" if comparison.step_size is None else f"lr-{comparison.step_size:g}"
            place = f"set-{comparison.family}/{name}" if several else name
            predictions: dict[str, dict[str, Trace]] = {MEASURED: {}}
            for arm, runs in comparison.runs.items():
                config, target = prediction.of(runs), out and out / place / arm
                trace = simulate(config, target, arm=arm_of(config, runs[0].arm))
                predictions[MEASURED][arm] = trace
                bar.update()
            for policy in classical if _calibrates(comparison) else ():
                predictions[policy] = _simulate_classical(comparison, prediction, policy)
            parts.append(compare_cells(comparison, predictions))
    return pd.concat(parts, ignore_index=True)


def left_out(real: Sequence[Comparison], classical: Sequence[Classical]) -> list[str]:
    """Return what the table of `agree` lacks, with the reasons, each once."""
    by_reason: dict[str, list[str]] = {}
    for comparison in real:
        at = "" if comparison.step_size is None else f" at lr {comparison.step_size:g}"
        whole = classical and not _calibrates(comparison)
        if whole:
            reason = "classical policies (their step size needs a TTRL run without KL penalty"
            by_reason.setdefault(f"{reason}, average or brake)", []).append(f"all arms{at}")
        for arm, runs in comparison.runs.items():
            if classical and not whole and (setting := not_classical(runs[0])):
                by_reason.setdefault(f"classical policies ({setting})", []).append(f"{arm}{at}")
            if not len(comparison.fates(arm)):
                short = f"fates and r (fewer than {MIN_VISITS} visits)"
                by_reason.setdefault(short, []).append(f"{arm}{at}")
    lines = [f"{reason}: {', '.join(cells)}" for reason, cells in by_reason.items()]
    return lines + [note for comparison in real for note in comparison.notes]


def _calibrates(comparison: Comparison) -> bool:
    """The step size of a classical policy can be found on the comparison's TTRL runs."""
    runs = comparison.runs.get(BASELINE)
    return runs is not None and not_classical(runs[0]) is None
