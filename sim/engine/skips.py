"""Problems that sit a visit out at random: the control for a guard that skips.

They are voted on and watched as ever, and not trained on. The draws are the guard's own of the
same seed, one per replicate, epoch and problem.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from guard_core import Route
from sim.engine.gradient import Update
from sim.settings.config import SimConfig


def sit_out(
    config: SimConfig,
    draws_RP: NDArray[np.float64],
    seen_RP: NDArray[np.void],
    update: Update,
) -> Update:
    """Skip a batch's problems with probability `skip_rate`, in addition to the guard's.

    Args:
        config: of the run.
        draws_RP: uniform numbers.
        seen_RP: the visits, records of `sim.engine.rows.SEEN`; changed in place.
        update: of the batch.

    Returns:
        The update without the skipped problems.
    """
    out_RP = draws_RP < config.skip_rate
    seen_RP["skipped"] |= out_RP
    seen_RP["route"][out_RP] = Route.SKIPPED
    drop_RP = update.drop_RP | (out_RP & (config.guard.skip_by == "drop"))
    gradient_RPA = np.where(out_RP[..., None], 0.0, update.gradient_RPA)
    streams_RSPB = update.streams_RSPB
    if streams_RSPB is not None:
        streams_RSPB = np.where(out_RP[:, None, :, None], 0.0, streams_RSPB)
    return Update(gradient_RPA, drop_RP, streams_RSPB)
