"""Controls of the explorer, the settings that they define, and what is drawn of these."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from guard_core import GuardConfig
from lab.base.arms import arm, for_cell
from lab.base.columns import floats
from lab.base.settings import to_values
from lab.base.stats import estimate, paired
from lab.figures.outcome import fate_bars
from lab.figures.training import lost_votes, training_progress
from lab.measures.dynamics import dynamics, run_windows
from lab.measures.fate import fate_shares, fates
from sim.engine.run import simulate
from sim.settings.config import SimConfig
from sim.studies.paper import GUARDS


@dataclass(frozen=True, slots=True)
class Slider:
    """One slider over the values that a setting may take."""

    name: str
    """Setting of `SimConfig`; `guard.` stands before those of the guard."""
    label: str
    values: Sequence[float]
    """Ascending; the slider moves over their positions, so a scale may be uneven."""

    @property
    def kind(self) -> Callable[[float], float]:
        """Whole numbers stay whole: the settings refuse 8.0 where a count is meant."""
        return int if all(float(value).is_integer() for value in self.values) else float

    def position(self, value: float) -> int:
        """The position whose value is nearest."""
        return min(range(len(self.values)), key=lambda position: abs(self.values[position] - value))


def _grid(first: float, last: float, step: float) -> tuple[float, ...]:
    return tuple(round(first + step * k, 6) for k in range(round((last - first) / step) + 1))


SLIDERS = (
    Slider("n_votes", "V, votes", (8, 16, 24, 32, 48, 64, 96, 128, 256)),
    Slider("n_samples", "K, trained samples", (2, 4, 8, 16, 24, 32, 48, 64, 128, 256)),
    Slider("step", "step size", (0.003, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2, 0.3)),
    Slider("kappa_att", "coupling of the attractors", _grid(0, 0.5, 0.025)),
    Slider("kappa_corr", "coupling of correct answers", _grid(0, 0.06, 0.004)),
    Slider("att_share", "attractor's share of the wrong mass", _grid(0.05, 0.95, 0.05)),
    Slider("guard.tau_FR", "tau_FR, contested above", _grid(0.05, 0.95, 0.05)),
    Slider("guard.W", "W, window in visits", (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20)),
    Slider("guard.beta_max", "beta_max, minority loss", _grid(0, 1, 0.05)),
    Slider("guard.p_skip", "p_skip, chance to sit out", _grid(0, 1, 0.05)),
)
"""The sliders, from top to bottom."""
_NAMES = ("the paper's text", "one-step flip rate", "authors' scripts")
READINGS: Mapping[str, str] = dict(zip(_NAMES, GUARDS, strict=True))
"""Readings of the guard by what the page calls them, and their arms."""


def reading_of(config: SimConfig) -> str | None:
    """The reading whose guard the settings have, None if they have another."""
    return next((name for name in READINGS if _guard(name, config) == config.guard), None)


def _guard(reading: str, config: SimConfig) -> GuardConfig:
    return arm(for_cell(READINGS[reading], config.population)).guard


def value_of(config: SimConfig, name: str) -> float:
    """The value of a slider's setting."""
    owner = config.guard if name.startswith("guard.") else config
    return getattr(owner, name.removeprefix("guard."))


def with_positions(
    base: SimConfig, positions: Mapping[str, int], reading: str | None = None
) -> SimConfig:
    """The settings that the sliders and the switch stand for.

    More trained samples than votes are not possible; there all votes are trained on.

    Args:
        base: what no slider sets.
        positions: slider name to the slider's position.
        reading: whose guard takes the place of that of `base`, a key of `READINGS`.

    Raises:
        UserError: a combination is impossible.
    """
    if reading is not None:
        base = replace(base, guard=_guard(reading, base))
    chosen: dict[str, Any] = {}
    for slider in SLIDERS:
        position = positions[slider.name]
        # A slider only takes values off its list once it is moved.
        if position != slider.position(value_of(base, slider.name)):
            chosen[slider.name] = slider.kind(slider.values[position])
    prefix = "guard."
    guard = {n.removeprefix(prefix): v for n, v in chosen.items() if n.startswith(prefix)}
    own = {n: v for n, v in chosen.items() if not n.startswith(prefix)}
    votes = own.get("n_votes", base.n_votes)
    own["n_samples"] = min(own.get("n_samples", base.n_samples), votes)
    return replace(base, guard=replace(base.guard, **guard), **own)


def changes(config: SimConfig) -> dict[str, Any]:
    """Settings that differ from the defaults, nested ones with a dot in their name."""
    return dict(_flat(to_values(config), to_values(SimConfig()), ""))


def as_command(config: SimConfig) -> str:
    """The command line that makes this run and leaves its folder."""
    words = ["guard-sim", "run", "--out", "runs/explored"]
    for name, value in changes(config).items():
        words += _option(name, value)
    return shlex.join(words)


def as_toml(config: SimConfig) -> str:
    """A settings file with what differs from the defaults, for `guard-sim run --config`."""
    found = changes(config)
    lines = [f"{n} = {_toml(v)}" for n, v in found.items() if "." not in n]
    guard = [f"{n.split('.')[1]} = {_toml(v)}" for n, v in found.items() if "." in n]
    return "\n".join([*lines, *(["[guard]", *guard] if guard else [])])


def _flat(values: Mapping[str, Any], default: Mapping[str, Any], prefix: str) -> Any:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, default[name], f"{prefix}{name}.")
        elif value != default[name]:
            yield prefix + name, value


def _option(name: str, value: Any) -> list[str]:
    head, _, tail = name.rpartition(".")
    dotted = f"{head}." if head else ""
    if isinstance(value, bool):
        return [f"--{dotted}{'' if value else 'no-'}{tail.replace('_', '-')}"]
    return [f"--{dotted}{tail.replace('_', '-')}", f"{value}"]


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value!r}"


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
        f"{saved.mean:+.1f} points, {saved.verdict}."
    ]
    for name, run in (("TTRL", ttrl), ("the guard", guard)):
        peak = estimate(100 * floats(run.windows, "fr_peak"))
        collapse = estimate(floats(run.windows, "collapse"))
        fate = f"collapses in epoch {collapse.mean:.0f}" if collapse.n else "never collapses"
        lines.append(f"Under {name} the flip rate peaks at {peak.mean:.1f} % and {fate}.")
    lines.append("Matched effort and the simple rivals: guard-sim compare.")
    return lines
