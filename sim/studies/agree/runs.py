"""Simulations of real runs: by the measured policy, and by the classical ones as a reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from guard_core import GuardConfig
from lab.arm_settings import arm_of
from lab.arms import BASELINE
from lab.columns import floats, ints
from lab.compare.agreement import MEASURED
from lab.compare.collection import Comparison
from lab.errors import UserError
from lab.trace.manifest import Manifest
from lab.trace.response import Facts, Response
from lab.trace.trace import Trace
from sim.engine.run import simulate
from sim.settings.config import SimConfig

Classical = Literal["independent", "attractor"]
CLASSICAL: tuple[Classical, ...] = get_args(Classical)
STEPS = tuple(0.02 * 2**k for k in range(10))
"""Step sizes that a classical policy is calibrated over, .02 to 10.24."""

_TAKEN = ("labels", "rule", "rule_options", "step_factor", "n_votes", "n_samples", "epochs")
_TAKEN += ("batch_size", "mini_batch", "warmup_ratio")
"""Settings of both worlds that a simulation takes from the real run."""
_FIXED = {"clip_low": 0.2, "clip_high": 0.2, "weight_decay": 0.01, "loss": "dapo", "top_p": 1.0}
_FIXED |= {"drop_uniform": False, "importance_cap": None, "lora_rank": 0, "ahead": 0}
"""Settings of the trainer at the only values that the measured policy has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Settings of the simulations that the real runs do not have."""

    response: Response
    path: Path
    """Of the response file."""
    growth: float | None = None
    """As in `SimConfig`."""
    replicates: int
    """Simulated runs per cell."""
    seed: int = 0

    def of(self, runs: Sequence[Manifest]) -> SimConfig:
        """Return the settings of the measured policy for the runs of one arm.

        Raises:
            UserError: they have another model or other problems, or settings that the policy does
                not have.
        """
        run = runs[0]
        check_same(run, self.response.facts, self.path)
        return SimConfig(
            **self._shared(runs),
            policy=MEASURED,
            response=str(self.path),
            growth=self.growth,
            lr=run.config["lr"],
            kl_coef=run.config.get("kl_coef", 0.0),
            average=run.config.get("average", 0.0),
            max_grad_norm=run.config["max_grad_norm"],
            n_answers=self.response.n_answers,
        )

    def classical(
        self, runs: Sequence[Manifest], policy: Classical, step: float, folder: Path
    ) -> SimConfig:
        """Return the settings of a classical policy for the runs of one arm.

        Args:
            runs: of the arm.
            policy: which one.
            step: its step size.
            folder: run folder that has the label accuracies before training.

        Raises:
            UserError: see `check_classical`.
        """
        check_classical(runs)
        return SimConfig(
            **self._shared(runs),
            policy=policy,
            step=step,
            population="trace",
            trace=str(folder),
            fixed_population=True,
        )

    def _shared(self, runs: Sequence[Manifest]) -> dict[str, Any]:
        run = runs[0]
        return {name: run.config[name] for name in _TAKEN} | {
            "guard": GuardConfig.from_dict(run.config["guard"]),
            "n_problems": run.n_problems,
            "replicates": self.replicates,
            "seed": self.seed,
        }


def check_classical(runs: Sequence[Manifest]) -> None:
    """Refuse runs with settings that only the measured policy has.

    Raises:
        UserError: they have a KL penalty, average the weights or brake the learning rate.
    """
    config = runs[0].config
    brake = GuardConfig.from_dict(config["guard"]).brake
    for name, value, without, lacking in (
        ("kl_coef", config.get("kl_coef", 0.0), 0.0, "KL penalty"),
        ("average", config.get("average", 0.0), 0.0, "weights to average"),
        ("guard.brake", brake, 1.0, "learning rate to brake"),
    ):
        if value != without:
            raise UserError(
                f"real: {runs[0].title} has {name} = {value}, the classical policies have no "
                f"{lacking}; leave the run out, or give --classical without names"
            )


def check_same(run: Manifest, facts: Facts, path: Path) -> None:
    """Refuse a response file of another model or other problems, or a run that is too different.

    Args:
        run: a real run.
        facts: of the response file.
        path: of the response file.

    Raises:
        UserError: they differ, or a setting has a value that the measured policy does not have.
    """
    sources = run.extra.get("sources", {})
    for name, own in (("model", facts.model), ("problems", facts.problems)):
        if sources.get(name) != own:
            other = "another model" if name == "model" else "other problems"
            raise UserError(
                f"response: {path} was measured with {other} than the run of {run.title}, seed "
                f"{run.seeds[0]}; measure the run's own with guard-train measure"
            )
    temperature = {"temperature": facts.temperature, "eval_temperature": facts.temperature}
    for name, own in (_FIXED | temperature).items():
        if (value := run.config.get(name, own)) != own:
            raise UserError(
                f"real: {run.title}, seed {run.seeds[0]} has {name} = {value}, the measured policy "
                f"only {own}; leave that run out"
            )


def simulate_arms(
    comparison: Comparison, prediction: Prediction, folder: Path | None
) -> Iterator[tuple[str, Trace]]:
    """Simulate every arm of one comparison with the measured policy.

    Args:
        comparison: real runs.
        prediction: settings.
        folder: every arm gets a folder of its name in it; in memory if None.

    Yields:
        Arm and trace.

    Raises:
        UserError: see `Prediction.of`; or a folder is in use.
    """
    for arm, runs in comparison.runs.items():
        config = prediction.of(runs)
        target = None if folder is None else folder / arm
        yield arm, simulate(config, target, arm=arm_of(config, runs[0].arm))


def simulate_classical(
    comparison: Comparison, prediction: Prediction, policy: Classical
) -> dict[str, Trace]:
    """Simulate every arm with a classical policy whose step size is calibrated on TTRL.

    The step is the one of `STEPS` whose final match rate of TTRL is closest to the real one. It
    needs no true answer, but a real run at every learning rate.

    Args:
        comparison: real runs, TTRL among them.
        prediction: settings.
        policy: which one.
    """
    folder, base = comparison.traces[BASELINE].folder, comparison.runs[BASELINE]
    assert folder is not None  # collected from folders
    target = _final_match(comparison.traces[BASELINE])

    def gap(step: float) -> float:
        trace = simulate(prediction.classical(base, policy, step, folder))
        return abs(_final_match(trace) - target)

    step = min(STEPS, key=gap)
    configs = {
        arm: prediction.classical(runs, policy, step, folder)
        for arm, runs in comparison.runs.items()
    }
    return {arm: simulate(config) for arm, config in configs.items()}


def _final_match(trace: Trace) -> float:
    """Match rate of the last visits."""
    visit = ints(trace.visits, "visit")
    return float(floats(trace.visits, "match_rate")[visit == visit.max()].mean())
