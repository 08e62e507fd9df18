"""The parameters of a fit: a few of a mechanism for all rows, and two or three per row."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lab.base.errors import UserError
from sim.settings.config import SimConfig
from sim.settings.populations import NAMED
from sim.studies.calibrate.published import Row

Unit = NDArray[np.float64]
"""(parameters,) in [0, 1], what the optimizer moves."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number of the fit, most often a field of `SimConfig`; its bounds and where it starts."""

    name: str
    low: float
    high: float
    start: float
    scale: Literal["linear", "log"] = "log"
    whole: bool = False

    def value(self, unit: float) -> float:
        """Return the value of the field at a point of [0, 1]."""
        if self.scale == "linear":
            return self.low + unit * (self.high - self.low)
        value = self.low * (self.high / self.low) ** unit
        return round(value) if self.whole else value

    def unit(self, value: float) -> float:
        """Return the point of [0, 1] at a value of the field, clipped to the bounds."""
        value = min(max(value, self.low), self.high)
        if self.scale == "linear":
            return (value - self.low) / (self.high - self.low)
        return math.log(value / self.low) / math.log(self.high / self.low)


POPULATION = (
    Parameter("ability_mean", 0.001, 0.999, 0.5, "linear"),
    Parameter("ability_concentration", 0.05, 10.0, 0.3),
)
"""Fitted for every row on its own."""
_NAMES = tuple(parameter.name for parameter in POPULATION)
MIDDLE = Parameter("middle_share", 0.0, 0.6, 0.05, "linear")
"""Of the problems whose ability is drawn from a second Beta law, the middle, see `row_config`."""
MIDDLE_CONCENTRATION = 10.0
"""Of the middle; its mean is fitted, one for all rows."""


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A policy, the parameters that all rows share, and those of a row's population."""

    name: str
    policy: Literal["independent", "attractor", "features"]
    parameters: tuple[Parameter, ...]
    population: tuple[Parameter, ...] = POPULATION
    """Fitted for every row on its own."""
    optimizer: Literal["sgd", "adam"] = "sgd"

    @property
    def start(self) -> Unit:
        """The start of the fit."""
        return np.array([p.unit(p.start) for p in self.parameters])

    def values(self, unit: Unit) -> dict[str, Any]:
        """Shared numbers by name."""
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
        Mechanism(
            "mixture",
            "attractor",
            (*_ATTRACTOR, Parameter("middle_mean", 0.2, 0.95, 0.6, "linear")),
            (*POPULATION, MIDDLE),
        ),
        Mechanism(
            "adam",
            "attractor",
            (Parameter("step", 0.003, 0.5, 0.05), *_ATTRACTOR[1:]),
            optimizer="adam",
        ),
    )
}
"""`spread` is the attractor with a fitted spread of the loadings on the correct direction,
`mixture` the attractor with a second group of problems in the middle of the abilities, `adam` the
attractor moved by Adam."""
USUAL = ("independent", "attractor", "spread", "features")
"""Fitted where none is named; `docs/calibration.md` says what the others were found to add."""


def mechanisms_named(names: tuple[str, ...]) -> tuple[Mechanism, ...]:
    """The mechanisms of these names, `USUAL` if none is given.

    Raises:
        UserError: a name is unknown or there twice.
    """
    for name in names:
        if name not in MECHANISMS:
            raise UserError(f"mechanisms {name!r}: unknown, use one of {', '.join(MECHANISMS)}")
        if names.count(name) > 1:
            raise UserError(f"mechanisms: {name} is there twice")
    return tuple(MECHANISMS[name] for name in names or USUAL)


def population_start(row: Row, parameters: tuple[Parameter, ...] = POPULATION) -> Unit:
    """The named law of the row; the usual start for rows and parameters that it does not cover."""
    law = NAMED.get(row.name)
    named = {} if law is None else dict(zip(_NAMES, (law.mean, law.concentration), strict=True))
    return np.array([p.unit(named.get(p.name, p.start)) for p in parameters])


def row_config(
    mechanism: Mechanism,
    row: Row,
    shared: dict[str, Any],
    own: dict[str, Any],
    replicates: int,
    seed: int,
) -> SimConfig:
    """The settings of a row under the paper's guard; `with_arm` makes them an arm's.

    With a `middle_share` among the row's numbers, that share of its problems has an ability from
    Beta(mean `middle_mean`, concentration `MIDDLE_CONCENTRATION`), and the rest from the row's own
    Beta law.
    """
    return SimConfig(
        policy=mechanism.policy,
        optimizer=mechanism.optimizer,
        n_problems=row.n_problems,
        epochs=row.epochs,
        replicates=replicates,
        seed=seed,
        **_population({**shared, **own}),
    )


def _population(numbers: dict[str, Any]) -> dict[str, Any]:
    """Fields of `SimConfig`, with the law of the abilities among them."""
    fields = dict(numbers)
    if MIDDLE.name not in fields:
        return {"population": "beta", **fields}
    share, middle = fields.pop(MIDDLE.name), fields.pop("middle_mean")
    mean, concentration = (fields.pop(name) for name in _NAMES)
    laws = ((1.0 - share, mean, concentration), (share, middle, MIDDLE_CONCENTRATION))
    return {"population": "mixture", "mixture": laws, **fields}


def values(parameters: tuple[Parameter, ...], unit: Unit) -> dict[str, Any]:
    """Numbers by name."""
    return {p.name: p.value(float(u)) for p, u in zip(parameters, unit, strict=True)}
