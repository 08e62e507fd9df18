"""The explorer's page: switch and sliders left, figures right, the setting to copy below."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
from dash import Dash, Input, Output, dcc, html, no_update
from dash.exceptions import DependencyException
from flask import abort, request

from lab.base.errors import UserError
from sim.explore.sliders import (
    READINGS,
    SLIDERS,
    Slider,
    as_command,
    as_toml,
    reading_of,
    redraw,
    value_of,
    with_positions,
)
from sim.settings.config import SimConfig

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
    app.server.before_request(lambda: _refuse_malformed(app))
    app.server.register_error_handler(DependencyException, lambda error: ("unknown file\n", 404))
    inputs = [Input(name, "value") for name in _INPUTS]
    outputs = [
        *(Output(f"figure-{name}", "figure") for name in ("progress", "fates", "lost")),
        Output("words", "children"),
        Output("command", "children"),
        Output("toml", "children"),
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
            return [no_update] * 6 + [str(error), *shown]
        words = [html.P(line) for line in drawn.words]
        figures = [drawn.progress, drawn.fates, drawn.lost]
        return [*figures, words, as_command(config), as_toml(config), "", *shown]

    return app


def _refuse_other_hosts() -> None:
    """Refuse requests that a page of another site sends by a name that leads to this machine."""
    if request.host.rpartition(":")[0] not in ("127.0.0.1", "localhost"):
        abort(403)


def _refuse_malformed(app: Dash) -> tuple[str, int] | None:
    """Refuse updates that the page does not send, which Dash would answer with a traceback."""
    if request.method != "POST":
        return None
    body = request.get_json(silent=True)
    body = body if isinstance(body, dict) else {}
    output = next(iter(app.callback_map))
    sent = body.get("inputs")
    inputs = (
        [item if isinstance(item, dict) else {} for item in sent] if isinstance(sent, list) else []
    )
    ids = [(item.get("id"), item.get("property")) for item in inputs]
    expected = [(name, "value") for name in _INPUTS]
    if body.get("output") != output or ids != expected:
        return "an update needs the output and the inputs of the page\n", 400
    # What Dash reads beside them is made here, whatever was sent.
    names = (word.rsplit(".", 1) for word in output.strip(".").split("..."))
    outputs = [{"id": name, "property": value} for name, value in names]
    body |= {"outputs": outputs, "changedPropIds": [], "state": []}
    if inputs[0].get("value") not in (None, *READINGS):
        return f"reading: must be one of {', '.join(READINGS)}\n", 400
    for slider, item in zip(SLIDERS, inputs[1:], strict=True):
        position, last = item.get("value"), len(slider.values) - 1
        if type(position) is not int or not 0 <= position <= last:
            return f"{slider.name}: position must be a whole number from 0 to {last}\n", 400
    return None


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
            _copyable("toml"),
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
