"""What the command line prints after a run."""

from __future__ import annotations

import math
from collections.abc import Mapping

from lab import Trace
from lab.errors import UserError
from lab.fate import FATES, fate_shares, fates

_SHORT = ("Stable", "Degraded", "Learned", "MargDeg", "MargStab", "Wrong", "Unclass")


def print_summary(traces: Mapping[str, Trace]) -> None:
    """Fates in percent and final scores, one line per arm."""
    cells = "".join(f"{name:>10}" for name in (*_SHORT, "TotalDeg", "pass@1", "maj", "step*"))
    print(f"{'arm':<14}{cells}")
    for name, trace in traces.items():
        numbers = [*_fates(trace), *_scores(trace)]
        shown = "".join(f"{number:10.1f}" for number in numbers)
        factor = trace.run.extra.get("step_factor", 1.0)
        print(f"{name:<14}{shown}{factor:10.3f}")
    replicates = max(len(trace.replicates) for trace in traces.values())
    print(f"percent of problems, mean over {replicates} replicate(s)")


def _fates(trace: Trace) -> list[float]:
    try:
        shares = fate_shares(fates(trace.visits))
    except UserError:
        # Too short a run has no fates; its scores are still worth a line.
        return [math.nan] * (len(FATES) + 1)
    return [float(shares[name].to_numpy().mean()) for name in (*FATES, "TotalDeg")]


def _scores(trace: Trace) -> list[float]:
    epoch = trace.evals["epoch"].to_numpy()
    scores = trace.evals[["pass_at_1", "maj_accuracy"]].to_numpy(float)
    return list(100 * scores[epoch == epoch.max()].mean(axis=0))
