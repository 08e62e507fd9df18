"""Regimes of the two-answer theory."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from lab.base.columns import require, where
from lab.figures.style import GREEN, ORANGE, SKY, VERMILLION, styled, translucent

REGIMES = {
    "kept": ("kept (99 % sure)", GREEN, ""),
    "slow": ("slow loss", SKY, "."),
    "sudden": ("sudden loss", ORANGE, "/"),
    "lost": ("lost (99 % sure)", VERMILLION, "x"),
}
"""Regime of the table to its title, colour and pattern."""
_REGIME_COLUMNS = ("p0", "step_sqrt_votes", "lost", "visits", "single_flip_share", "form")


def regime_map(table: pd.DataFrame) -> go.Figure:
    """Chance to end on the wrong answer over the start and the step, coloured by regime.

    Args:
        table: one row per cell: p0 (chance of the correct answer before training),
            step_sqrt_votes (step * sqrt(V)), regime (of `REGIMES`), lost (probability), visits
            (mean until one answer is extinct); with single_flip_share and form the hover says
            more, as the theory's regime chart gives them.
    """
    require(table, ("regime", *_REGIME_COLUMNS), "regime chart")
    across, down = (sorted(table[name].unique()) for name in ("p0", "step_sqrt_votes"))
    size = 0.94
    figure = go.Figure()
    for regime, (title, colour, pattern) in REGIMES.items():
        cells = where(table, regime=regime).to_dict("records")
        figure.add_bar(
            x=[across.index(cell["p0"]) for cell in cells],
            y=[size] * len(cells),
            base=[down.index(cell["step_sqrt_votes"]) - size / 2 for cell in cells],
            width=size,
            name=title,
            text=[f"{100 * cell['lost']:.0f}" for cell in cells],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            textfont={"size": 11},
            customdata=[[cell[name] for name in _REGIME_COLUMNS] for cell in cells],
            hovertemplate=(
                "p0 %{customdata[0]:g}, step &times; √V %{customdata[1]:g}"
                "<br>ends on the wrong answer: %{customdata[2]:.1%}"
                "<br>visits to extinction: %{customdata[3]:.1f}"
                "<br>degraded with one flip only: %{customdata[4]:.1%}"
                "<br>closer limit: %{customdata[5]}<extra>%{fullData.name}</extra>"
            ),
            marker_color=translucent(colour, 0.6),
            marker_line={"color": colour, "width": 1},
            marker_pattern={"shape": pattern, "fgcolor": colour, "fgopacity": 0.5, "size": 7}
            | {"solidity": 0.15, "fillmode": "overlay"},
        )
    for update, values, name in (
        (figure.update_xaxes, across, "chance of the correct answer before training"),
        (figure.update_yaxes, down, "step &times; √V (logits)"),
    ):
        update(
            title_text=name,
            tickvals=list(range(len(values))),
            ticktext=[f"{value:g}" for value in values],
            range=[-0.55, len(values) - 0.45],
            showgrid=False,
        )
    figure.update_xaxes(tickangle=0)
    height = 46 * len(down) + 150
    legend = {"y": 1 + 8 / height, "traceorder": "normal"}
    return styled(figure, height, barmode="overlay", legend=legend, hovermode="closest")
