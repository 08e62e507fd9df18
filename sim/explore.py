"""The page of `guard-sim explore`: a switch and sliders, and what the simulator makes of them."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

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
from lab.compare.published import GUARDS
from lab.figures import fate_bars
from lab.figures.training import lost_votes, training_progress
from lab.measures.dynamics import dynamics, run_windows
from lab.measures.fate import fate_shares, fates
from sim.engine.run import simulate
from sim.settings.config import SimConfig
from sim.studies.jobs import assign, read


class Slider(NamedTuple):
    """One slider over the positions of the values that a setting may take."""

    name: str
    label: str
    values: Sequence[float]
    """Ascending, of the setting's type."""

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


def with_positions(
    base: SimConfig, positions: Mapping[str, int], reading: str | None = None
) -> SimConfig:
    """The settings of sliders and switch, `base` where they set nothing.

    More trained samples than votes are not possible; there all votes are trained on.
    """
    if reading is not None:
        base = replace(base, guard=_guard(reading, base))
    chosen: dict[str, Any] = {}
    for slider in SLIDERS:
        position = positions[slider.name]
        # A slider only takes values off its list once it is moved.
        if position != slider.position(read(base, slider.name)):
            chosen[slider.name] = slider.values[position]
    votes = chosen.get("n_votes", base.n_votes)
    chosen["n_samples"] = min(chosen.get("n_samples", base.n_samples), votes)
    return assign(base, chosen)


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


def redraw(config: SimConfig) -> tuple[list[go.Figure], list[str]]:
    """Simulate TTRL and the settings' guard on the same seeds: figures, and sentences."""
    arms = {"ttrl": _run(replace(config, guard=GuardConfig.off())), "guard": _run(config)}
    whole = pd.concat([over_time.assign(arm=name) for name, (over_time, _) in arms.items()])
    shares = {name: shares for name, (_, shares) in arms.items()}
    together = pd.concat(shares, names=["arm"])
    damage = estimate(floats(shares["ttrl"], "TotalDeg"))
    saved = paired(*(pd.Series(shares[name]["TotalDeg"]) for name in arms))
    words = [
        f"TTRL makes {damage.mean:.1f} % of the problems worse; the guard saves "
        f"{saved.mean:+.1f} points, {saved.verdict}."
    ]
    for name, (over_time, _) in zip(("TTRL", "the guard"), arms.values(), strict=True):
        windows = run_windows(over_time)
        peak = estimate(100 * floats(windows, "fr_peak"))
        collapse = estimate(floats(windows, "collapse"))
        fate = f"collapses in epoch {collapse.mean:.0f}" if collapse.n else "never collapses"
        words.append(f"Under {name} the flip rate peaks at {peak.mean:.1f} % and {fate}.")
    words.append("Matched effort and the simple rivals: guard-sim compare.")
    return [training_progress(whole), fate_bars(together), lost_votes(whole)], words


@lru_cache(maxsize=64)
def _run(config: SimConfig) -> tuple[pd.DataFrame, pd.DataFrame]:
    trace = simulate(config)
    found = fates(trace.visits)
    return dynamics(trace.visits, trace.evals, found), fate_shares(found)


_FIGURES = ("progress", "fates", "lost")
_CONFIG: Any = {"displaylogo": False, "responsive": True, "displayModeBar": False}
_STYLE = Path(__file__).with_name("explore.css").read_text(encoding="utf-8")
_PAGE = """<!DOCTYPE html>
<html lang="en"><head>{%metas%}<title>{%title%}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">{%css%}<style>STYLE</style></head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body></html>"""


def make_app(base: SimConfig) -> Dash:
    """The page around one setting, where switch and sliders start."""
    app = Dash(
        "guard-sim explore", title="TTRL-Guard explorer", update_title="", serve_locally=True
    )
    app.index_string = _PAGE.replace("STYLE", _STYLE)
    app.layout = _layout(base)
    app.server.before_request(_refuse_other_hosts)
    app.server.before_request(lambda: _refuse_malformed(app.callback_map))
    inputs = [Input(name, "value") for name in ("reading", *map(_element_id, SLIDERS))]
    outputs = [
        *(Output(f"figure-{name}", "figure") for name in _FIGURES),
        *(Output(name, "children") for name in ("words", "command", "problem")),
        *(Output(f"{_element_id(slider)}-value", "children") for slider in SLIDERS),
    ]

    @app.callback(outputs, inputs)
    def update(reading: str | None, *positions: int) -> list[Any]:
        at = dict(zip((slider.name for slider in SLIDERS), positions, strict=True))
        shown = [f"{slider.values[at[slider.name]]:g}" for slider in SLIDERS]
        try:
            config = with_positions(base, at, reading)
            figures, words = redraw(config)
        except UserError as error:
            return [no_update] * 5 + [str(error), *shown]
        return [*figures, [html.P(line) for line in words], as_command(config), "", *shown]

    return app


def _refuse_other_hosts() -> None:
    """Refuse requests that a page of another site sends by a name that leads to this machine."""
    if request.host.rpartition(":")[0] not in ("127.0.0.1", "localhost"):
        abort(403)


def _refuse_malformed(known: Collection[str]) -> None:
    """Answer updates that the page does not send, such as hand-made ones, with 400."""
    if request.method != "POST":
        return
    body: Any = request.get_json(silent=True)
    inputs = body.get("inputs") if isinstance(body, dict) else None
    if not isinstance(inputs, list) or not all(isinstance(own, dict) for own in inputs):
        abort(400)
    if [own.get("id") for own in inputs] != ["reading", *map(_element_id, SLIDERS)]:
        abort(400)
    reading, *places = (own.get("value") for own in inputs)
    if reading not in (None, *READINGS) or body.get("output") not in list(known):
        abort(400)
    there = zip(places, SLIDERS, strict=True)
    if not all(type(at) is int and at in range(len(slider.values)) for at, slider in there):
        abort(400)


def _layout(base: SimConfig) -> html.Div:
    scale = f"{base.n_problems} problems, {base.epochs} epochs, {base.replicates} replicates"
    graphs: list[Any] = [
        dcc.Graph(id=f"figure-{name}", figure=go.Figure(), config=_CONFIG) for name in _FIGURES
    ]
    switch: Any = dcc.RadioItems(list(READINGS), reading_of(base), id="reading", inline=True)
    controls = [
        html.P(f"Population {base.population}, policy {base.policy}: {scale}."),
        html.Div(["guard as in ", switch], className="control"),
        *(_control(slider, read(base, slider.name)) for slider in SLIDERS),
        html.P(id="problem", className="problem", role="alert"),
        html.H4("This setting"),
        html.Div([html.Pre(id="command"), dcc.Clipboard(target_id="command")], className="copy"),
    ]
    # On a narrow page the words stay in sight while a slider below the figures is moved.
    parts = [
        html.H1("Explore the extinction window"),
        html.Div(controls, className="controls"),
        html.Div(id="words", className="words"),
        html.Div([html.Div(graph, className="wide") for graph in graphs], className="figures"),
    ]
    return html.Div(parts, className="page")


def _control(slider: Slider, value: Any) -> html.Div:
    name, last = _element_id(slider), len(slider.values) - 1
    widget = dcc.Slider(
        min=0,
        max=last,
        step=1,
        value=slider.position(value),
        id=name,
        marks={p: f"{slider.values[p]:g}" for p in (0, last)},
        updatemode="mouseup",
        included=False,
        allow_direct_input=False,
    )
    label = html.Label([slider.label, html.B(f"{value:g}", id=f"{name}-value")], htmlFor=name)
    return html.Div([label, widget], className="control")


def _element_id(slider: Slider) -> str:
    return slider.name.replace(".", "-")
