"""What is fitted: a few numbers of a mechanism for all rows, and two of the population per row."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lab.errors import UserError
from sim.calibrate.published import Row
from sim.config import SimConfig
from sim.populations import NAMED

Unit = NDArray[np.float64]
"""(parameters,) in [0, 1], what the optimizer moves."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A field of `SimConfig`, its bounds and where the fit starts."""

    name: str
    low: float
    high: float
    start: float
    scale: Literal["linear", "log"] = "log"
    whole: bool = False

    def value(self, unit: float) -> float:
        """From [0, 1] to the field."""
        if self.scale == "linear":
            return self.low + unit * (self.high - self.low)
        value = self.low * (self.high / self.low) ** unit
        return round(value) if self.whole else value

    def unit(self, value: float) -> float:
        """From the field to [0, 1]; a value outside the bounds goes to the nearer one."""
        value = min(max(value, self.low), self.high)
        if self.scale == "linear":
            return (value - self.low) / (self.high - self.low)
        return math.log(value / self.low) / math.log(self.high / self.low)


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A policy and the parameters that all rows share."""

    name: str
    policy: Literal["independent", "attractor", "features"]
    parameters: tuple[Parameter, ...]

    @property
    def start(self) -> Unit:
        """Where the fit starts."""
        return np.array([p.unit(p.start) for p in self.parameters])

    def values(self, unit: Unit) -> dict[str, Any]:
        """Fields of `SimConfig`."""
        return values(self.parameters, unit)


_STEP = Parameter("step", 0.01, 0.5, 0.06)
_ATTRACTOR = (
    _STEP,
    Parameter("kappa_att", 0.02, 1.0, 0.25),
    Parameter("kappa_corr", 0.0005, 0.2, 0.012),
    Parameter("neg_transfer", 0.0, 1.0, 0.3, "linear"),
)
_SPREAD = (
    *(replace(p, start=0.045) if p.name == "kappa_corr" else p for p in _ATTRACTOR),
    Parameter("corr_load_sd", 0.1, 5.0, 3.0, "linear"),
)

MECHANISMS: dict[str, Mechanism] = {
    m.name: m
    for m in (
        Mechanism("independent", "independent", (_STEP,)),
        Mechanism("attractor", "attractor", _ATTRACTOR),
        Mechanism("spread", "attractor", _SPREAD),
        Mechanism(
            "features", "features", (_STEP, Parameter("feature_dim", 4, 256, 64, whole=True))
        ),
    )
}
"""`spread` is the attractor with a fitted spread of the loadings on the correct direction."""

POPULATION = (
    Parameter("ability_mean", 0.001, 0.999, 0.5, "linear"),
    Parameter("ability_concentration", 0.05, 10.0, 0.3),
)
"""Fitted for every row on its own."""


def mechanisms_named(names: tuple[str, ...]) -> tuple[Mechanism, ...]:
    """The mechanisms of these names, all if none is given.

    Raises:
        UserError: a name is unknown or there twice.
    """
    for name in names:
        if name not in MECHANISMS:
            raise UserError(f"mechanisms {name!r}: unknown, use one of {', '.join(MECHANISMS)}")
        if names.count(name) > 1:
            raise UserError(f"mechanisms: {name} is there twice")
    return tuple(MECHANISMS[name] for name in names or MECHANISMS)


def population_start(row: Row) -> Unit:
    """The named law of the row, the middle for rows that have none."""
    law = NAMED.get(row.name)
    starts = [p.start for p in POPULATION] if law is None else [law.mean, law.concentration]
    return np.array([p.unit(value) for p, value in zip(POPULATION, starts, strict=True)])


def row_config(
    mechanism: Mechanism,
    row: Row,
    shared: dict[str, Any],
    own: dict[str, Any],
    replicates: int,
    seed: int,
) -> SimConfig:
    """The settings of a row under the paper's guard; `sim.run.of_arm` makes them an arm's."""
    return SimConfig(
        policy=mechanism.policy,
        population="beta",
        n_problems=row.n_problems,
        epochs=row.epochs,
        replicates=replicates,
        seed=seed,
        **shared,
        **own,
    )


def values(parameters: tuple[Parameter, ...], unit: Unit) -> dict[str, Any]:
    """Fields of `SimConfig` by name."""
    return {p.name: p.value(float(u)) for p, u in zip(parameters, unit, strict=True)}
