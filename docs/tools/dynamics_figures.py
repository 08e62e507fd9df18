"""Figures of `docs/agreement.md` from the tables of docs/data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import kaleido
import numpy as np
import pandas as pd
import plotly.graph_objects as go
from drawing import browser, check_png

from lab.base.stats import estimate
from lab.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Place,
    multiples,
    place_of,
    styled,
)

DATA = Path(__file__).parents[1] / "data"
FOLDER = Path(__file__).parents[1] / "dynamics"
WIDTH, HEIGHT = 760, 340
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
PARTS = {
    "": "nothing off",
    "leak": "leak off",
    "others": "others off",
    "leak+others": "leak and<br>others off",
    "own": "own off",
}
_NAME = re.compile(r'id="defs-([0-9a-f]{6})"')


def table(kind: str) -> pd.DataFrame:
    """One table of docs/data."""
    return pd.read_csv(DATA / f"dynamics-{kind}.csv", keep_default_na=True)


def dots(
    figure: go.Figure,
    place: Place,
    rows: pd.DataFrame,
    x: str,
    colour: str,
    name: str,
    shift: float,
) -> None:
    """Means with their intervals: columns x (numbers), mean, low, high."""
    figure.add_trace(
        go.Scatter(
            x=rows[x] + shift,
            y=rows["mean"],
            error_y={
                "type": "data",
                "array": (rows["high"] - rows["mean"]).fillna(0),
                "arrayminus": (rows["mean"] - rows["low"]).fillna(0),
                "thickness": 1.5,
                "width": 4,
            },
            mode="markers",
            marker={"color": colour, "size": 8},
            name=name,
            legendgroup=name,
            showlegend=place["row"] == place["col"] == 1,
        ),
        **place,
    )


def line(
    figure: go.Figure, place: Place, x: Sequence[float], y: Sequence[float], **style: str
) -> None:
    """One curve; style: colour, name, dash."""
    name = style["name"]
    figure.add_trace(
        go.Scatter(
            x=list(x),
            y=list(y),
            mode="lines" if len(x) > 20 else "lines+markers",
            line={"color": style["colour"], "dash": style.get("dash", "solid"), "width": 2.2},
            marker={"color": style["colour"], "size": 6},
            name=name,
            legendgroup=name,
            showlegend=not any(trace.name == name for trace in figure.data),
        ),
        **place,
    )


def finish(figure: go.Figure, height: int = HEIGHT) -> go.Figure:
    """Headings at the left and a legend above."""
    figure.update_annotations(font_size=13)
    return styled(figure, height, legend={"y": 1.16}, margin={"t": 70, "l": 60, "r": 20, "b": 50})


def transfer_figure() -> go.Figure:
    """Probability moved in other problems, and the signed change of their right answers."""
    rows = table("transfer")
    heads = ("Probability moved elsewhere / own", "Change of other right answers / own")
    figure, sets = multiples(heads), list(dict.fromkeys(rows["set"]))
    for number, name in enumerate(sets):
        own = rows[rows["set"] == name]
        figure.add_trace(_points(own["moved"], number, GREY, "label"), **place_of(0, 2))
        for right, colour, shift in ((True, BLUE, -0.18), (False, VERMILLION, 0.18)):
            values = own["lifted"][own["right"] == right]
            title = f"{'right' if right else 'wrong'} label"
            figure.add_trace(_points(values, number + shift, colour, title), **place_of(1, 2))
    for trace in figure.data:
        first = next(other for other in figure.data if other.name == trace.name)
        trace.showlegend = trace is first and trace.name != "label"
    figure.update_xaxes(tickvals=list(range(len(sets))), ticktext=sets)
    figure.update_yaxes(type="log", title_text="times (log scale)", **place_of(0, 2))
    figure.add_hline(y=1, line={"color": GREY, "dash": "dot"}, row=1, col=1)
    figure.update_yaxes(title_text="times", **place_of(1, 2))
    return finish(figure)


def _points(values: pd.Series, x: float, colour: str, name: str) -> go.Box:
    return go.Box(
        x=np.full(len(values), x),
        y=values,
        boxpoints="all",
        pointpos=0,
        jitter=0.6,
        marker={"color": colour, "size": 4, "opacity": 0.6},
        line={"color": colour},
        width=0.3,
        name=name,
        legendgroup=name,
    )


def correlation_figure() -> go.Figure:
    """Mean correlations by kind of pair, and their spread."""
    rows = table("kernel").query("kernel == 'gradient'")
    sets = list(dict.fromkeys(rows["set"]))
    kinds = ("right-right", "wrong-wrong", "right-wrong")
    figure = multiples(("Mean correlation of two classes", "Its standard deviation over pairs"))
    for panel, of in enumerate(("mean", "sd")):
        for kind, colour, shift in zip(
            kinds, (BLUE, VERMILLION, GREY), (-0.2, 0, 0.2), strict=True
        ):
            own = rows[rows["quantity"] == f"correlation {kind} ({of})"]
            own = own.rename(columns={"value": "mean"}).assign(
                x=[sets.index(s) for s in own["set"]]
            )
            dots(figure, place_of(panel, 2), own, "x", colour, kind, shift)
    figure.update_xaxes(tickvals=list(range(len(sets))), ticktext=sets)
    figure.add_hline(y=0, line={"color": GREY, "dash": "dot"}, row=1, col=1)
    figure.update_yaxes(rangemode="tozero", **place_of(1, 2))
    return finish(figure)


def spectrum_figure() -> go.Figure:
    """Share of the correlations that the largest directions hold."""
    rows, figure = table("spectrum"), multiples(("Share held by the largest directions",))
    for (name, own), colour in zip(rows.groupby("set", sort=False), COLOURS, strict=False):
        share = 100 * own["share"]
        line(figure, place_of(0, 1), own["directions"], share, colour=colour, name=str(name))
    figure.update_xaxes(title_text="directions")
    figure.update_yaxes(title_text="%", range=[0, 102])
    return finish(figure)


def steps_figure() -> go.Figure:
    """A step up and a step down: what they do to other problems and to the own label."""
    rows = table("steps")
    heads = ("Other problems, step of norm .02", "Own label, step of norm .02")
    figure, own = multiples(heads), rows[rows["size"] == rows["size"].min()]
    for side, colour in (("up", BLUE), ("down", VERMILLION)):
        for panel, part in enumerate(("others", "own")):
            figure.add_trace(
                go.Scatter(
                    x=own[f"{part}_linear"],
                    y=own[f"{part}_{side}"].abs(),
                    mode="markers",
                    marker={"color": colour, "size": 6, "opacity": 0.7},
                    name=f"step {side}",
                    legendgroup=side,
                    showlegend=panel == 0,
                ),
                **place_of(panel, 2),
            )
    for panel, part in enumerate(("others", "own")):
        most = float(own[f"{part}_linear"].max())
        line(
            figure, place_of(panel, 2), [0, most], [0, most], colour=GREY, name="linear", dash="dot"
        )
    figure.update_xaxes(title_text="change of log p, linear")
    figure.update_yaxes(title_text="change of log p, true (size)", rangemode="tozero", col=1)
    return finish(figure, HEIGHT + 30)


def drift_figure() -> go.Figure:
    """Correlation of the kernel with the start's, and its growth, over the distance."""
    rows = table("runs").dropna(subset=["correlation"])
    heads = ("Correlation with the kernel at the start", "Growth of entries between problems")
    figure = multiples(heads)
    for (name, own), colour in zip(_runs(rows), COLOURS, strict=False):
        for panel, column in enumerate(("correlation", "growth_others")):
            x = own["distance"]
            line(figure, place_of(panel, 2), x, own[column], colour=colour, name=name)
    figure.update_xaxes(title_text="distance of the weights from the start")
    figure.update_yaxes(range=[0, 1.05], **place_of(0, 2))
    figure.update_yaxes(type="log", title_text="times", **place_of(1, 2))
    return finish(figure)


def leak_figure() -> go.Figure:
    """pass@1 of real runs, and the part of it on responses that the start model gave."""
    rows = table("runs")
    runs = list(_runs(rows))
    figure = multiples([name for name, _ in runs], row_gap=0.4)
    for panel, (_, own) in enumerate(runs):
        place, x = place_of(panel, len(runs)), own["epoch"]
        line(
            figure,
            place,
            x,
            100 * own["kept"],
            colour=GREY,
            name="on the start's responses",
            dash="dash",
        )
        line(figure, place, x, 100 * own["pass_at_1"], colour=VERMILLION, name="pass@1")
        given = 100 * own["kept_right"] / own["kept"]
        line(figure, place, x, given, colour=BLUE, name="right, of the start's responses")
    figure.update_yaxes(range=[0, 102])
    figure.update_yaxes(title_text="%", col=1)
    figure.update_xaxes(title_text="epoch")
    return finish(figure, 290 * -(-len(runs) // 2) + 60)


def _runs(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    groups = rows.groupby(["run", "lr"], sort=False)
    return [(f"{run}, {lr:g}", own.sort_values("epoch")) for (run, lr), own in groups]


def parts_figure() -> go.Figure:
    """Final pass@1 with parts switched off, per problem set, at the largest learning rate."""
    rows = table("parts").fillna({"parts_off": ""})
    rows = rows[rows["lr"] == rows["lr"].max()]
    sets, order = list(dict.fromkeys(rows["set"])), list(PARTS)
    figure = multiples(sets, columns=1 if len(sets) == 1 else 2)
    for panel, name in enumerate(sets):
        own, place = rows[rows["set"] == name], place_of(panel, len(sets))
        for arm, colour, shift in (("ttrl", VERMILLION, -0.12), ("frozen", PURPLE, 0.12)):
            found = [
                (order.index(parts), estimate(part["pass_final"]))
                for parts, part in own[own["arm"] == arm].groupby("parts_off")
            ]
            values = pd.DataFrame(
                [{"x": x, "mean": e.mean, "low": e.low, "high": e.high} for x, e in found]
            )
            title = {"ttrl": "TTRL", "frozen": "Frozen labels"}[arm]
            dots(figure, place, values, "x", colour, title, shift)
        start = own["pass_start"].mean()
        figure.add_hline(
            y=start, line={"color": GREY, "dash": "dot"}, row=place["row"], col=place["col"]
        )
    figure.update_xaxes(
        tickvals=list(range(len(order))), ticktext=list(PARTS.values()), tickangle=-50
    )
    figure.update_yaxes(range=[0, 100])
    figure.update_yaxes(title_text="final pass@1 (%)", col=1)
    return finish(figure, 400 * -(-len(sets) // 2) + 40)


FIGURES = {
    "transfer": transfer_figure,
    "correlation": correlation_figure,
    "spectrum": spectrum_figure,
    "steps": steps_figure,
    "drift": drift_figure,
    "leak": leak_figure,
    "parts": parts_figure,
}


def draw(names: Sequence[str]) -> None:
    """Write the named figures as SVG on a white ground; the same tables give the same files."""
    check_png()
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        figure = FIGURES[name]
        path = FOLDER / f"{name}.svg"
        path.write_text(svg(figure(), name), encoding="utf-8")
        print(path)


def svg(figure: go.Figure, name: str) -> str:
    """A figure without random names."""
    for number, trace in enumerate(figure.data):
        trace.update(uid=f"{name}-{number}")
    figure.update_layout(paper_bgcolor="#ffffff")
    options = {"format": "svg", "width": WIDTH, "height": figure.layout.height}
    drawer = {"mathjax": False, "path": browser()}
    image = kaleido.calc_fig_sync(figure, opts=options, kopts=drawer).decode()
    (random,) = set(_NAME.findall(image))
    return image.replace(random, name) + "\n"
