"""Two readings of the paper's label accuracy, from one run.

`share`     the share of the votes that is correct, the project's LA (SPEC section 1).
`majority`  1 where the majority is correct and 0 elsewhere, so that ILA and FLA are shares of
            visits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import pandas as pd

from lab.errors import UserError
from sim.engine.measure import Tally
from sim.engine.simulation import run_epochs
from sim.settings.config import SimConfig

Reading = Literal["share", "majority"]
READINGS: tuple[Reading, ...] = get_args(Reading)

_COLUMN = {"share": "label_accuracy", "majority": "label_correct"}


def measure_reading(config: SimConfig, reading: Reading) -> pd.DataFrame:
    """`sim.engine.measure.measure` with the fates of one reading.

    Raises:
        UserError: the logits stopped being finite.
    """
    tally = Tally(config.first_replicate, config.replicates, config.n_problems, config.epochs)
    for epoch, part in enumerate(run_epochs(replace(config, vote_replicates=0))):
        visits = {**part.visits, "label_accuracy": part.visits[_COLUMN[reading]]}
        tally.add(epoch, visits, part.steps, part.evals)
    return tally.table()


def readings_named(names: tuple[str, ...]) -> tuple[Reading, ...]:
    """The readings of these names, all if none is given.

    Raises:
        UserError: a name is unknown.
    """
    for name in names:
        if name not in READINGS:
            raise UserError(f"readings {name!r}: unknown, use one of {', '.join(READINGS)}")
    return tuple(r for r in READINGS if not names or r in names)
