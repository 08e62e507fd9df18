"""The page of `guard-sim explore`: controls, and what the simulator makes of their settings."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

import pandas as pd
import plotly.graph_objects as go
from dash import Dash, Input, Output, dcc, html, no_update
from flask import abort, request

from guard_core import ConfigError, GuardConfig
from lab.base.arms import BASELINE, GUARD, MATCHED, arm, for_cell, title, with_rule
from lab.base.columns import floats
from lab.base.errors import UserError
from lab.base.settings import flattened, to_values
from lab.base.stats import estimate, paired, some_of, with_interval
from lab.compare.published import GUARDS
from lab.figures.outcomes import fate_bars
from lab.figures.training import lost_votes, training_progress
from lab.measures import measured, update_by_replicate
from lab.measures.dynamics import dynamics, run_windows
from lab.measures.fate import fates
from sim.engine.run import simulate
from sim.settings.config import SimConfig
from sim.settings.populations import NAMED, sizes
from sim.settings.resolve import HOST, settings_of
from sim.studies.jobs import assign, find, job_of, read

_FIGURES = ("progress", "fates", "lost")
_CONFIG: Any = {"displaylogo": False, "responsive": True, "displayModeBar": False}
_DRAGGED: Any = {"marks": None, "included": False, "allow_direct_input": True}
_STYLE, _SCRIPT = (
    Path(__file__).with_name(name).read_text(encoding="utf-8")
    for name in ("explore.css", "explore.js")
)
_PAGE = """<!DOCTYPE html>
<html lang="en"><head>{%metas%}<title>{%title%}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">{%css%}<style>STYLE</style></head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}
<script>SCRIPT</script></footer></body></html>"""
_LONGEST = 100_000
"""Bytes of a request; those of the page have a few thousand."""


class Slider(NamedTuple):
    """A number that is moved or typed."""

    name: str
    label: str
    low: float
    high: float
    step: float
    """Of the slider; whole for a setting that is."""

    @property
    def element(self) -> str:
        """Its name on the page and in a link."""
        return self.name.replace(".", "-")


SLIDERS = (
    Slider("n_votes", "V, votes", 8, 256, 8),
    Slider("n_samples", "K, trained samples", 2, 256, 2),
    Slider("step", "step size", 0.002, 0.3, 0.002),
    Slider("kappa_att", "coupling of the attractors", 0, 0.5, 0.025),
    Slider("kappa_corr", "coupling of correct answers", 0, 0.06, 0.004),
    Slider("att_share", "attractor's share of the wrong mass", 0.05, 0.95, 0.05),
    Slider("guard.tau_FR", "tau_FR, contested above", 0.05, 0.95, 0.05),
    Slider("guard.W", "W, window in visits", 1, 20, 1),
    Slider("guard.beta_max", "beta_max, minority loss", 0, 1, 0.05),
    Slider("guard.p_skip", "p_skip, chance to sit out", 0, 1, 0.05),
)
"""The sliders, from top to bottom."""
_NAMES = ("the paper's text", "one-step flip rate", "authors' scripts")
READINGS: Mapping[str, str] = dict(zip(_NAMES, GUARDS, strict=True))
"""Readings of the guard by what the page calls them, and their arms."""
CHOICES = {"population": tuple(NAMED), "reading": tuple(READINGS)}
"""What is chosen from a list; None keeps what the page was started with."""

State = Mapping[str, Any]
"""Value of every control by its element."""


def reading_of(config: SimConfig) -> str | None:
    """The reading whose guard the settings have, None if they have another."""
    return next((name for name in READINGS if _guard(name, config) == config.guard), None)


def _guard(reading: str, config: SimConfig) -> GuardConfig:
    return arm(for_cell(READINGS[reading], config.cell)).guard


def state_of(config: SimConfig) -> dict[str, Any]:
    """The state of the page that shows these settings."""
    chosen = {"population": config.population, "reading": reading_of(config)}
    return chosen | {slider.element: read(config, slider.name) for slider in SLIDERS}


def with_state(base: SimConfig, state: State) -> SimConfig:
    """The settings of a state, `base` where it sets nothing.

    Another population brings its size and length. More trained samples than votes are not possible;
    there all votes are trained on. An impossible setting is a UserError or a ConfigError.
    """
    population, reading = (state.get(name) for name in CHOICES)
    if population not in (None, base.population):
        base = assign(base, {"population": population, **sizes(str(population), None)})
    if reading is not None and reading != reading_of(base):
        base = replace(base, guard=_guard(reading, base))
    moved = [slider for slider in SLIDERS if state.get(slider.element) is not None]
    numbers = {slider.name: type(slider.step)(state[slider.element]) for slider in moved}
    votes = numbers.get("n_votes", base.n_votes)
    numbers["n_samples"] = min(numbers.get("n_samples", base.n_samples), votes)
    return assign(base, numbers)


def checked(state: State, base: SimConfig) -> bool:
    """Return whether every value is one that the page's controls can have, or that of the start."""
    start = state_of(base)
    numbers = [(state.get(s.element), s) for s in SLIDERS]
    chosen = [state.get(name) in (None, start[name], *known) for name, known in CHOICES.items()]
    return all(chosen) and all(
        value is None
        or (type(value) in (int, float) and (s.low <= value <= s.high or value == start[s.element]))
        for value, s in numbers
    )


def as_link(state: State, base: SimConfig) -> str:
    """The query of a link that opens the page in a state: what differs from the start."""
    start = state_of(base)
    changed = {k: v for k, v in state.items() if v is not None and v != start[k]}
    return f"?{urlencode(changed)}"


def from_link(query: str, base: SimConfig) -> dict[str, Any] | None:
    """The state of a link; None where it holds something that is none."""
    given: dict[str, Any] = dict(parse_qsl(query.removeprefix("?")))
    try:
        given |= {s.element: float(given[s.element]) for s in SLIDERS if s.element in given}
    except ValueError:
        return None
    state = state_of(base)
    return state | given if given.keys() <= state.keys() and checked(given, base) else None


def as_command(config: SimConfig) -> str:
    """The command line that makes this run and leaves its folder."""
    # What the command starts from: some of its options decide the values of others.
    deciding = {name: getattr(config, name) for name in ("policy", "response", "lr", "population")}
    usual = flattened({**to_values(settings_of(deciding)), "guard": GuardConfig.paper().to_dict()})
    usual |= {name: SimConfig.__dataclass_fields__[name].default for name in deciding}
    words = ["guard-sim", "run", "--out", "runs/explored"]
    words += ["--profile", "paper"] * (config.rule != BASELINE)  # a rule alone has no guard
    for name, value in flattened(to_values(config)).items():
        if value == usual.get(name):
            continue
        group, dot, option = name.replace("_", "-").rpartition(".")
        if group == "rule-options":
            words += [f"--{group}", name.partition(".")[2], f"{value}"]
        elif isinstance(value, bool):
            words.append(f"--{group}{dot}{'' if value else 'no-'}{option}")
        else:
            several = value if isinstance(value, list | tuple) else (value,)
            words += [f"--{group}{dot}{option}", *map(str, several)]
    return shlex.join(words)


class _Run(NamedTuple):
    over_time: pd.DataFrame
    metrics: pd.DataFrame
    """`lab.measures.measured` with `update_norm`, by replicate."""


@lru_cache(maxsize=64)
def _run(config: SimConfig) -> _Run:
    trace = simulate(config)
    problems = fates(trace.visits)
    metrics = measured(trace, problems).assign(update_norm=update_by_replicate(trace.steps))
    return _Run(dynamics(trace.visits, trace.evals, problems), metrics)


def simulated(config: SimConfig) -> dict[str, _Run]:
    """TTRL, the settings' guard, TTRL at matched effort and vote memory, on the same seeds."""
    names = (BASELINE, GUARD, MATCHED, "memory")
    jobs = {name: job_of(config, {}, with_rule(name, config.rule)) for name in names}
    for job in jobs.values():
        if job.reason:
            raise UserError(job.reason)
    runs = {name: _run(jobs[name].config) for name in (BASELINE, GUARD)}
    matched = jobs[MATCHED]
    assert matched.control is not None
    plain = _run(matched.config).metrics  # of a rule under the guard the rule by itself
    target = runs[GUARD].metrics
    chosen, *_ = find(matched.control, matched.config, plain, target, lambda c: _run(c).metrics)
    return runs | {MATCHED: _run(chosen), "memory": _run(jobs["memory"].config)}


def redraw(config: SimConfig) -> tuple[list[go.Figure], str, list[str]]:
    """Simulate the settings: figures, what the guard saves in one line, and further sentences."""
    runs = simulated(config)
    whole = pd.concat([run.over_time.assign(arm=name) for name, run in runs.items()])
    together = pd.concat({name: run.metrics for name, run in runs.items()}, names=["arm"])
    damage = estimate(floats(runs[BASELINE].metrics, "TotalDeg"))
    headline = (
        f"TTRL makes {damage.mean:.1f} % of the problems worse. The guard saves "
        f"{_saved(runs, GUARD, MATCHED)} points beyond matched effort; vote memory saves "
        f"{_saved(runs, 'memory', GUARD)} beyond the guard."
    )
    words = [f"The guard saves {_saved(runs, GUARD, BASELINE)} points beyond TTRL."]
    for name, run in runs.items():
        windows = run_windows(run.over_time)
        peak = estimate(floats(windows, "fr_peak"))
        collapse = estimate(floats(windows, "collapse"))
        when = f"{collapse.mean:.0f}{some_of(collapse.n, len(windows))}"
        fate = f"collapses in epoch {when}" if collapse.n else "never collapses"
        words.append(f"{title(name)}: the flip rate peaks at {peak.mean:.1f} % and {fate}.")
    return [training_progress(whole), fate_bars(together), lost_votes(whole)], headline, words


def _saved(runs: Mapping[str, _Run], first: str, against: str) -> str:
    """How much less of the problems one arm makes worse than another, in points."""
    value = paired(*(pd.Series(runs[name].metrics["TotalDeg"]) for name in (against, first)))
    return f"{with_interval(value.mean, value.low, value.high)} ({value.shows()})"


def serve(base: SimConfig, port: int) -> None:
    """Serve the page on this machine alone until Ctrl-C."""
    app = make_app(base)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    print(f"explorer: http://{HOST}:{port} (Ctrl-C ends it)", flush=True)
    app.run(host=HOST, port=str(port), debug=False)


def make_app(base: SimConfig) -> Dash:
    """The page around one setting, where its controls start."""
    app = Dash(
        "guard-sim explore", title="TTRL-Guard explorer", update_title="", serve_locally=True
    )
    app.index_string = _PAGE.replace("STYLE", _STYLE).replace("SCRIPT", _SCRIPT)
    app.layout = _layout(base)
    app.server.config["MAX_CONTENT_LENGTH"] = _LONGEST
    names = [*CHOICES, *(slider.element for slider in SLIDERS)]
    texts = ("headline", "words", "command", "problem")
    outputs = [
        *(Output(f"figure-{name}", "figure") for name in _FIGURES),
        *(Output(name, "children") for name in texts),
        Output("link", "href"),
    ]

    @app.callback(outputs, [Input(name, "value") for name in names])
    def update(*values: Any) -> list[Any]:
        state = dict(zip(names, values, strict=True))
        if not checked(state, base):
            abort(400)
        try:
            config = with_state(base, state)
            figures, headline, words = redraw(config)
        except (UserError, ConfigError) as error:
            return [*[no_update] * 6, str(error), no_update]
        told = [html.P(line) for line in words]
        return [*figures, headline, told, as_command(config), "", as_link(state, base)]

    @app.callback([Output(name, "value") for name in names], [Input("url", "search")])
    def open_link(query: str | None) -> list[Any]:
        state = from_link(query, base) if isinstance(query, str) and query else None
        return [no_update] * len(names) if state is None else [state[name] for name in names]

    @app.server.before_request
    def refuse() -> None:
        """Refuse pages of other sites, by a name that leads to this machine, and what is no update.

        Dash answers some of what its page never sends with an error of its own.
        """
        if request.host.rpartition(":")[0] not in ("127.0.0.1", "localhost"):
            abort(403)
        if request.method == "POST" and not _is_update(app):
            abort(400)

    return app


def _is_update(app: Dash) -> bool:
    """Return whether a request has the form of those of the page: each value may be anything."""
    try:
        body: Any = request.get_json(silent=True)
        known = app.callback_map[body["output"]]
        form = [{k: v for k, v in sent.items() if k != "value"} for sent in body["inputs"]]
    except (RecursionError, LookupError, TypeError, AttributeError):
        return False
    targets = [name.rsplit(".", 1) for name in body["output"].strip(".").split("...")]
    changed = body.get("changedPropIds", [])
    return (
        body.get("outputs") == [{"id": name, "property": part} for name, part in targets]
        and form == [{"id": item["id"], "property": item["property"]} for item in known["inputs"]]
        and isinstance(changed, list)
        and all(isinstance(name, str) for name in changed)
        and body.get("state") in (None, [])
    )


def _layout(base: SimConfig) -> html.Div:
    graphs: list[Any] = [
        dcc.Graph(id=f"figure-{name}", figure=go.Figure(), config=_CONFIG) for name in _FIGURES
    ]
    switch: Any = dcc.RadioItems(list(READINGS), reading_of(base), id="reading", inline=True)
    known = list(CHOICES["population"]) if base.response is None else [base.population]
    populations = dcc.Dropdown(known, base.population, id="population", clearable=False)
    controls = [
        html.P(
            f"Policy {base.policy}, {base.replicates} replicates. Move a slider, or type a number."
        ),
        html.Div([html.Label("population", htmlFor="population"), populations]),
        html.Div(["guard as in ", switch], className="control"),
        *(_control(slider, read(base, slider.name)) for slider in SLIDERS),
        html.P([html.A("Reset", href="/"), " ", html.A("Link to this state", id="link")]),
        html.H4("This setting"),
        html.Div([html.Pre(id="command"), dcc.Clipboard(target_id="command")], className="copy"),
    ]
    # On a narrow page the headline stays in sight while a control below it is moved.
    parts = [
        dcc.Location(id="url", refresh=False),
        html.H1("Explore the extinction window"),
        html.Div([html.P(id="headline"), html.P(id="problem", role="alert")], className="headline"),
        html.Div(controls, className="controls"),
        html.Div(
            [html.Div(id="words"), *(html.Div(graph) for graph in graphs)], className="figures"
        ),
    ]
    return html.Div(parts, className="page")


def _control(slider: Slider, value: Any) -> html.Div:
    bounds = slider.low, slider.high, slider.step
    widget = dcc.Slider(*bounds, value=value, id=slider.element, **_DRAGGED)
    return html.Div([html.Label(slider.label, htmlFor=slider.element), widget], className="control")
