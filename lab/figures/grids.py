"""Cells over two axes: errors of a calibrated simulator, and regimes of the two-answer theory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lab.base.columns import floats, require, select
from lab.figures.style import (
    DIVERGING,
    GREEN,
    ORANGE,
    SKY,
    VERMILLION,
    multiples,
    place_of,
    safe,
    styled,
    translucent,
    wrapped,
)

KIND_TITLES = {
    "ttrl": "Fitted TTRL rows",
    "guard": "Predicted guard rows",
    "shift": "Printed TTRL + the model's effect",
    "matched": "Guard rows by matched effort",
    "copy": "Guard rows by copying TTRL's",
}
_SHORT = {
    "Degraded": "Degr.",
    "Marginal Degraded": "Marg.<br>degr.",
    "Learned": "Lear-<br>ned",
    "Stable Always Right": "Stable<br>right",
    "Always Wrong": "Always<br>wrong",
}
_NEEDED = ("row", "kind", "cell", "published", "predicted", "sd")
_ROW = 34


def calibration_errors(table: pd.DataFrame, titles: Mapping[str, str] | None = None) -> go.Figure:
    """Predicted minus published share of every cell, a panel per kind of prediction.

    With several fits a cell is their mean; their range is in the hover.

    Args:
        table: one row per fit and cell: row (model and data set), kind (of `KIND_TITLES`), cell
            (fate), published, predicted (mean over replicates, percent), sd (over replicates); as
            `cells.parquet` of a calibration has them.

    Raises:
        UserError: a column is missing.
    """
    require(table, _NEEDED, "calibration error")
    found = set(table["kind"])
    kinds = [kind for kind in KIND_TITLES if kind in found]
    kinds += [kind for kind in dict.fromkeys(table["kind"]) if kind not in kinds]
    names, cells = (list(dict.fromkeys(table[name])) for name in ("row", "cell"))
    limit = max(1.0, float(np.abs(floats(table, "predicted") - floats(table, "published")).max()))
    figure = multiples([KIND_TITLES.get(kind, kind) for kind in kinds], columns=1, row_gap=0.3)
    for panel, kind in enumerate(kinds):
        own = select(table, table["kind"].to_numpy() == kind)
        place = place_of(panel, len(kinds), 1)
        figure.add_trace(_heat(own, names, cells, titles or {}), **place)
    figure.update_layout(
        coloraxis={
            "colorscale": [[0, "#B35900"], [0.5, "#F7F7F7"], [1, DIVERGING[-1][1]]],
            "cmin": -limit,
            "cmax": limit,
            "showscale": False,  # the numbers stand in the cells
        }
    )
    figure.update_yaxes(autorange="reversed", showgrid=False, ticks="")
    figure.update_xaxes(showgrid=False, ticks="", tickangle=0)
    figure.update_annotations(x=0, xanchor="left", font_size=13)
    return styled(figure, (_ROW * len(names) + 90) * len(kinds) + 60, hovermode="closest")


def _heat(
    own: pd.DataFrame, names: list[str], cells: list[str], titles: Mapping[str, str]
) -> go.Heatmap:
    shape = (len(names), len(cells))
    z, hover = np.full(shape, np.nan), np.full(shape, "not predicted", object)
    for i, name in enumerate(names):
        for j, cell in enumerate(cells):
            here = select(own, ((own["row"] == name) & (own["cell"] == cell)).to_numpy())
            if len(here):
                errors = floats(here, "predicted") - floats(here, "published")
                z[i, j], hover[i, j] = errors.mean(), _hover(here, errors)
    return go.Heatmap(
        x=[_SHORT.get(cell, safe(cell)) for cell in cells],
        y=[wrapped(titles.get(name, name), 16) for name in names],
        z=z,
        coloraxis="coloraxis",
        text=[["" if np.isnan(v) else f"{v:+.1f}" for v in line] for line in z],
        texttemplate="%{text}",
        textfont={"size": 11},
        customdata=[[[text] for text in line] for line in hover],
        hovertemplate="%{y}, %{x}<br>%{customdata[0]}<extra></extra>",
        xgap=2,
        ygap=2,
    )


def _hover(here: pd.DataFrame, errors: np.ndarray) -> str:
    predicted, sd = floats(here, "predicted").mean(), floats(here, "sd").mean()
    text = (
        f"predicted {predicted:.1f} ± {sd:.1f} %, published {floats(here, 'published')[0]:.1f} %"
        f"<br>{errors.mean():+.1f} points"
    )
    if len(errors) > 1:
        text += f"; {len(errors)} fits from {errors.min():+.1f} to {errors.max():+.1f}"
    return text


REGIMES = {
    "kept": ("kept (99 % sure)", GREEN, ""),
    "slow": ("slow loss", SKY, "."),
    "sudden": ("sudden loss", ORANGE, "/"),
    "lost": ("lost (99 % sure)", VERMILLION, "x"),
}
"""Regime of the table to its title, colour and pattern."""
_CELL = 0.94
_REGIME_NEEDED = ("p0", "step_sqrt_votes", "regime", "lost", "visits")


def regime_map(table: pd.DataFrame) -> go.Figure:
    """Chance to end on the wrong answer over the start and the step, coloured by regime.

    Args:
        table: one row per cell: p0 (chance of the correct answer before training),
            step_sqrt_votes (step * sqrt(V)), regime (of `REGIMES`), lost (probability), visits
            (mean until one answer is extinct); with single_flip_share and form the hover says
            more, as the theory's regime chart gives them.

    Raises:
        UserError: a column is missing.
    """
    require(table, _REGIME_NEEDED, "regime chart")
    across, down = (sorted(table[name].unique()) for name in ("p0", "step_sqrt_votes"))
    figure = go.Figure()
    for regime, (title, colour, pattern) in REGIMES.items():
        own = select(table, table["regime"].to_numpy() == regime)
        cells = own.to_dict("records")
        figure.add_bar(
            x=[across.index(cell["p0"]) for cell in cells],
            y=[_CELL] * len(cells),
            base=[down.index(cell["step_sqrt_votes"]) - _CELL / 2 for cell in cells],
            width=_CELL,
            name=title,
            text=[f"{100 * cell['lost']:.0f}" for cell in cells],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            textfont={"size": 11},
            customdata=[[_regime_hover(cell)] for cell in cells],
            hovertemplate="%{customdata[0]}<extra>%{fullData.name}</extra>",
            marker={
                "color": translucent(colour, 0.6),
                "line": {"color": colour, "width": 1},
                "pattern": {"shape": pattern, "fgcolor": colour, "fgopacity": 0.5, "size": 7}
                | {"solidity": 0.15, "fillmode": "overlay"},
            },
        )
    figure.update_xaxes(
        title_text="chance of the correct answer before training",
        tickvals=list(range(len(across))),
        ticktext=[f"{value:g}" for value in across],
        tickangle=0,
        range=[-0.55, len(across) - 0.45],
        showgrid=False,
    )
    figure.update_yaxes(
        title_text="step &times; √V (logits)",
        tickvals=list(range(len(down))),
        ticktext=[f"{value:g}" for value in down],
        range=[-0.55, len(down) - 0.45],
        showgrid=False,
    )
    height = 46 * len(down) + 150
    legend = {"y": 1 + 8 / height, "traceorder": "normal"}
    return styled(figure, height, barmode="overlay", legend=legend, hovermode="closest")


def _regime_hover(cell: dict[Any, Any]) -> str:
    lines = [
        f"p0 {cell['p0']:g}, step &times; √V {cell['step_sqrt_votes']:g}",
        f"ends on the wrong answer: {100 * cell['lost']:.1f} %",
        f"visits to extinction: {cell['visits']:.1f}",
    ]
    single = cell.get("single_flip_share", math.nan)
    if math.isfinite(single):
        lines.append(f"degraded with one flip only: {100 * single:.1f} %")
    if cell.get("form"):
        lines.append(f"closer limit: {safe(cell['form'])}")
    return "<br>".join(lines)
