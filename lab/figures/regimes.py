"""The regime chart of the two-answer theory: who loses, and how fast."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from lab.base.columns import require, select
from lab.figures.style import GREEN, ORANGE, SKY, VERMILLION, safe, styled, translucent

REGIMES = {
    "kept": ("kept (99 % sure)", GREEN, ""),
    "slow": ("slow loss", SKY, "."),
    "sudden": ("sudden loss", ORANGE, "/"),
    "lost": ("lost (99 % sure)", VERMILLION, "x"),
}
"""Regime of the table to its title, colour and pattern."""
_CELL = 0.94
_NEEDED = ("p0", "step_sqrt_votes", "regime", "lost", "visits")


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
    require(table, _NEEDED, "regime chart")
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
            customdata=[[_hover(cell)] for cell in cells],
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


def _hover(cell: dict[Any, Any]) -> str:
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
