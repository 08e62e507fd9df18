"""The page of `guard-sim explore`: a switch and sliders, and what the simulator makes of them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from dash import Dash, Input, Output, dcc, html, no_update
from flask import abort, request

from guard_core import GuardConfig
from lab.base.arms import arm, for_cell
from lab.base.columns import floats
from lab.base.errors import UserError
from lab.base.settings import flattened, to_values
from lab.base.stats import estimate, paired
from lab.figures import fate_bars
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


def as_command(config: SimConfig) -> str:
    """The command line that makes this run and leaves its folder."""
    usual = flattened(to_values(SimConfig()))
    words = ["guard-sim", "run", "--out", "runs/explored"]
    for name, value in flattened(to_values(config)).items():
        if value == usual.get(name):
            continue
        group, dot, option = name.replace("_", "-").rpartition(".")
        if isinstance(value, bool):
            words.append(f"--{group}{dot}{'' if value else 'no-'}{option}")
        else:
            words += [f"--{group}{dot}{option}", f"{value}"]
    return shlex.join(words)


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


_CONFIG: Any = {"displaylogo": False, "responsive": True, "displayModeBar": False}
_STYLE = """
body { margin: 0; font: 15px/1.5 system-ui, sans-serif; color: #1F2328; background: #fff }
.page { display: grid; grid-template: auto auto 1fr / 320px 1fr; gap: 8px 28px; max-width: 1280px;
  margin: 0 auto; padding: 18px }
.page > * { min-width: 0 }
h1 { font-size: 22px; margin: 0; grid-column: 1 / -1 }
.controls { grid-row: 2 / span 2 }
.words p { margin: 0 0 .5em }
.control { margin-bottom: 6px }
.control label { display: flex; justify-content: space-between; font-size: 13px }
.control label b { font-variant-numeric: tabular-nums }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(330px, 1fr)); gap: 6px }
.wide { grid-column: 1 / -1 }
.problem { color: #B3261E; min-height: 1.5em; margin: 0 }
pre { background: #F3F4F6; padding: 10px; overflow: auto; font-size: 12px; white-space: pre-wrap }
.copy { position: relative }
.copy pre { padding-right: 40px }
.copy > :last-child { position: absolute; right: 8px; top: 8px }
@media (max-width: 800px) {
  .page { grid-template: none / minmax(0, 1fr) }
  .controls { grid-row: auto; order: 1 }
  .words { position: sticky; top: 0; z-index: 1; background: #fff; font-size: 12.5px }
  .words p { margin: 0 }
}
"""
_PAGE = """<!DOCTYPE html>
<html lang="en"><head>{%metas%}<title>{%title%}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">{%css%}<style>STYLE</style></head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body></html>"""


def make_app(base: SimConfig) -> Dash:
    """The page around one setting.

    Args:
        base: where switch and sliders start, and what none of them sets.
    """
    app = Dash(
        "guard-sim explore", title="TTRL-Guard explorer", update_title="", serve_locally=True
    )
    app.index_string = _PAGE.replace("STYLE", _STYLE)
    app.layout = _layout(base)
    app.server.before_request(_refuse_other_hosts)
    inputs = [Input(name, "value") for name in _INPUTS]
    outputs = [
        *(Output(f"figure-{name}", "figure") for name in ("progress", "fates", "lost")),
        Output("words", "children"),
        Output("command", "children"),
        Output("problem", "children"),
        *(Output(f"{_element_id(slider)}-value", "children") for slider in SLIDERS),
    ]

    @app.callback(outputs, inputs)
    def update(reading: str | None, *positions: int) -> list[Any]:
        shown = [f"{c.values[position]:g}" for c, position in zip(SLIDERS, positions, strict=True)]
        names = [slider.name for slider in SLIDERS]
        try:
            config = with_positions(base, dict(zip(names, positions, strict=True)), reading)
            drawn = redraw(config)
        except UserError as error:
            return [no_update] * 5 + [str(error), *shown]
        words = [html.P(line) for line in drawn.words]
        figures = [drawn.progress, drawn.fates, drawn.lost]
        return [*figures, words, as_command(config), "", *shown]

    return app


def _refuse_other_hosts() -> None:
    """Refuse requests that a page of another site sends by a name that leads to this machine."""
    if request.host.rpartition(":")[0] not in ("127.0.0.1", "localhost"):
        abort(403)


def _layout(base: SimConfig) -> html.Div:
    scale = f"{base.n_problems} problems, {base.epochs} epochs, {base.replicates} replicates"
    figures = html.Div(
        [_graph(name, "wide") for name in ("progress", "fates", "lost")], className="figures"
    )
    controls = html.Div(
        [
            html.P(f"Population {base.population}, policy {base.policy}: {scale}."),
            html.Div(["guard as in ", _switch(base)], className="control"),
            *(_control(slider, value_of(base, slider.name)) for slider in SLIDERS),
            html.P(id="problem", className="problem", role="alert"),
            html.H4("This setting"),
            _copyable("command"),
        ],
        className="controls",
    )
    # On a narrow page the words stay in sight while a slider below the figures is moved.
    words = html.Div(id="words", className="words")
    head = html.H1("Explore the extinction window")
    return html.Div([head, controls, words, figures], className="page")


def _switch(base: SimConfig) -> Any:
    return dcc.RadioItems(list(READINGS), reading_of(base), id="reading", inline=True)


def _control(slider: Slider, value: float) -> html.Div:
    name = _element_id(slider)
    last = len(slider.values) - 1
    widget = dcc.Slider(
        min=0,
        max=last,
        step=1,
        value=slider.position(value),
        marks={p: f"{slider.values[p]:g}" for p in (0, last)},
        id=name,
        updatemode="mouseup",
        included=False,
        allow_direct_input=False,
    )
    label = html.Label([slider.label, html.B(f"{value:g}", id=f"{name}-value")], htmlFor=name)
    return html.Div([label, widget], className="control")


def _graph(name: str, css: str) -> html.Div:
    graph: Any = dcc.Graph(id=f"figure-{name}", figure=go.Figure(), config=_CONFIG)
    return html.Div(graph, className=css)


def _copyable(name: str) -> html.Div:
    return html.Div([html.Pre(id=name), dcc.Clipboard(target_id=name)], className="copy")


def _element_id(slider: Slider) -> str:
    return slider.name.replace(".", "-")


_INPUTS = ("reading", *map(_element_id, SLIDERS))
