"""`measure`: the numbers of a run per replicate, without a trace."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from sim.engine.simulation import run_epochs
from sim.engine.tally import Tally
from sim.settings.config import SimConfig


def measure(config: SimConfig, accuracy: str = "label_accuracy") -> pd.DataFrame:
    """Simulate without keeping a trace.

    Args:
        config: all settings.
        accuracy: column of the visits by which a problem has its fate.

    Returns:
        One row per replicate, see `Tally.table`.

    Raises:
        UserError: the logits stopped being finite.
    """
    tally = Tally(config.first_replicate, config.replicates, config.n_problems, config.epochs)
    for epoch, part in enumerate(run_epochs(replace(config, vote_replicates=0))):
        visits = {**part.visits, "label_accuracy": part.visits[accuracy]}
        tally.add(epoch, visits, part.steps, part.evals)
    return tally.table()
