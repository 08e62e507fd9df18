"""From settings to what the explorer shows: both arms simulated, their curves and fates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import pandas as pd
import plotly.graph_objects as go

from guard_core import GuardConfig
from lab.columns import floats
from lab.figures.curves import lost_votes, training_progress
from lab.figures.fates import fate_bars
from lab.measures.dynamics import dynamics
from lab.measures.fate import fate_shares, fates
from lab.measures.window import run_windows
from lab.stats.paired import estimate, paired
from sim.engine.run import simulate
from sim.settings.config import SimConfig


@dataclass(frozen=True, slots=True)
class Drawn:
    """Content of the page for one setting."""

    progress: go.Figure
    fates: go.Figure
    lost: go.Figure
    words: list[str]
    """The numbers in sentences."""


@dataclass(frozen=True, slots=True)
class _Arm:
    """One arm's run, reduced to small tables."""

    dynamics: pd.DataFrame
    shares: pd.DataFrame
    windows: pd.DataFrame


def redraw(config: SimConfig) -> Drawn:
    """Simulate TTRL and the guard on the same seeds, and draw both.

    Args:
        config: of the guard's run.

    Raises:
        UserError: the step size makes the logits overflow, or a problem has too few visits.
    """
    arms = {"ttrl": _run(replace(config, guard=GuardConfig.off())), "guard": _run(config)}
    whole = pd.concat([arm.dynamics.assign(arm=name) for name, arm in arms.items()])
    shares = pd.concat({name: arm.shares for name, arm in arms.items()}, names=["arm"])
    return Drawn(training_progress(whole), fate_bars(shares), lost_votes(whole), _words(arms))


@lru_cache(maxsize=64)
def _run(config: SimConfig) -> _Arm:
    trace = simulate(config)
    found = fates(trace.visits)
    over_time = dynamics(trace.visits, trace.evals, found)
    return _Arm(over_time, fate_shares(found), run_windows(over_time))


def _words(arms: dict[str, _Arm]) -> list[str]:
    ttrl, guard = arms["ttrl"], arms["guard"]
    damage = estimate(floats(ttrl.shares, "TotalDeg"))
    saved = paired(*(pd.Series(arm.shares["TotalDeg"]) for arm in (ttrl, guard)))
    lines = [
        f"TTRL makes {damage.mean:.1f} % of the problems worse; the guard saves "
        f"{saved.mean:+.1f} points ({saved.verdict})."
    ]
    for name, arm in (("TTRL", ttrl), ("the guard", guard)):
        peak = estimate(100 * floats(arm.windows, "fr_peak"))
        collapse = estimate(floats(arm.windows, "collapse"))
        fate = f"collapses in epoch {collapse.mean:.1f}" if collapse.n else "never collapses"
        lines.append(f"Under {name} the flip rate peaks at {peak.mean:.1f} % and {fate}.")
    lines.append("Matched effort and the simple rivals: guard-sim compare.")
    return lines
