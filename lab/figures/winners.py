"""Best arm per setting: one coloured cell each, hatched where the lead is within noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from lab.columns import Bools
from lab.figures.curves import rows
from lab.figures.multiples import multiples, n_rows, place_of
from lab.figures.style import arm_order, arm_style, arm_title, safe, styled, translucent

OWN_BEST = "own<br>best"
"""Heads the cells in which every arm has its own best value of the setting across."""
MOST_PANELS = 24
_CELL = 0.94
_GAP = 0.35
"""Between the cells of given values and those at the arms' own best."""
_ALONE, _TIED = 0.9, 0.3
"""Opacity of a cell where the arm wins alone, and where it ties."""


def winner_chart(
    table: pd.DataFrame,
    across: str,
    down: str | None = None,
    panels: Sequence[str] = (),
    titles: Mapping[str, str] | None = None,
) -> go.Figure:
    """The best arm of every cell, in the arm's colour.

    A cell is pale and hatched where another arm is within noise of the best: a tie, and the
    number after `=` counts those other arms.

    Args:
        table: one row per cell: the settings, winner, score (percent), ties (arms within noise,
            comma separated), runner_up, margin with low and high (points), n, ceiling (percent).
            Rows in which `across` is NaN have every arm at its own best of that setting.
        across: setting along the axis.
        down: setting along the other axis; one line of cells if left out.
        panels: settings of which every combination is a small chart of its own.
        titles: arm to title, where it differs from `lab.arms`.

    Raises:
        ValueError: there are more than `MOST_PANELS` small charts.
    """
    cells = _panel_cells(table, panels)
    if len(cells) > MOST_PANELS:
        raise ValueError(f"{len(cells)} small charts: at most {MOST_PANELS} can be read")
    names = [", ".join(f"{n} {_text(v)}" for n, v in cell) for cell in cells]
    columns, lines = _places(table, across), _lines(table, down)
    figure = multiples(names, row_gap=0.28, column_gap=0.09)
    legend: set[str] = set()
    order = arm_order(table["winner"])
    for number, cell in enumerate(cells):
        own = _of_cell(table, cell)
        for arm in arm_order(own["winner"]):
            won = rows(own, own["winner"].to_numpy() == arm)
            bars = _bars(won, across, down, columns, lines, titles)
            bars.update(name=safe(arm_title(arm, titles)), showlegend=arm not in legend)
            bars.legendrank = order.index(arm)
            legend.add(arm)
            figure.add_trace(bars, **place_of(number, len(cells)))
    _axes(figure, across, down, columns, lines)
    figure.update_xaxes(title_text=safe(across), row=n_rows(len(cells)))
    height = n_rows(len(cells)) * (70 + 46 * max(len(lines), 2)) + 90
    return styled(
        figure, height, barmode="overlay", legend={"y": 1 + 34 / (height - 80)}, hovermode="closest"
    )


def _panel_cells(table: pd.DataFrame, panels: Sequence[str]) -> list[list[tuple[str, Any]]]:
    values = [sorted(table[name].unique()) for name in panels]
    return [list(zip(panels, cell, strict=True)) for cell in itertools.product(*values)]


def _of_cell(table: pd.DataFrame, cell: Sequence[tuple[str, Any]]) -> pd.DataFrame:
    chosen: Bools = table["winner"].to_numpy() != ""
    for name, value in cell:
        chosen = chosen & (table[name].to_numpy() == value)
    return rows(table, chosen)


def _places(table: pd.DataFrame, across: str) -> dict[Any, float]:
    """Value to its place along the axis; own best, as None, stands apart at the end."""
    known = sorted(table[across].dropna().unique())
    places: dict[Any, float] = {value: float(place) for place, value in enumerate(known)}
    if table[across].isna().to_numpy().any():
        places[None] = len(known) + _GAP
    return places


def _lines(table: pd.DataFrame, down: str | None) -> dict[Any, int]:
    values = [None] if down is None else sorted(table[down].unique())
    return {value: place for place, value in enumerate(values)}


def _bars(
    won: pd.DataFrame,
    across: str,
    down: str | None,
    columns: Mapping[Any, float],
    lines: Mapping[Any, int],
    titles: Mapping[str, str] | None,
) -> go.Bar:
    """The cells that one arm has won, as bars of height one."""
    cells = won.to_dict("records")
    colour = arm_style(str(cells[0]["winner"])).colour
    tied = [bool(cell["ties"]) for cell in cells]
    return go.Bar(
        x=[columns[_key(cell[across])] for cell in cells],
        y=[_CELL] * len(cells),
        base=[lines[None if down is None else cell[down]] - _CELL / 2 for cell in cells],
        width=_CELL,
        text=[_mark(cell) for cell in cells],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont={"size": 11},
        customdata=[[_hover(cell, across, down, titles)] for cell in cells],
        hovertemplate="%{customdata[0]}<extra></extra>",
        legendgroup=safe(cells[0]["winner"]),
        marker={
            "color": [translucent(colour, _TIED if tie else _ALONE) for tie in tied],
            "line": {"color": colour, "width": 1},
            "pattern": {
                "shape": ["/" if tie else "" for tie in tied],
                "fgcolor": colour,
                "fgopacity": 0.55,
                "size": 7,
                "solidity": 0.18,
                "fillmode": "overlay",
            },
        },
    )


def _axes(
    figure: go.Figure,
    across: str,
    down: str | None,
    columns: Mapping[Any, float],
    lines: Mapping[Any, int],
) -> None:
    ticks = [OWN_BEST if value is None else _text(value) for value in columns]
    figure.update_xaxes(
        tickvals=list(columns.values()),
        ticktext=ticks,
        range=[-0.55, max(columns.values()) + 0.55],
        showgrid=False,
        ticks="",
    )
    figure.update_yaxes(
        tickvals=list(lines.values()),
        ticktext=["" if value is None else _text(value) for value in lines],
        range=[-0.55, len(lines) - 0.45],
        showgrid=False,
        ticks="",
    )
    if down is not None:
        figure.update_yaxes(title_text=safe(down), col=1)
    figure.update_annotations(font_size=13)


def _mark(cell: Mapping[Any, Any]) -> str:
    ties = f" ={len(cell['ties'].split(','))}" if cell["ties"] else ""
    return f"{cell['score']:.0f}{ties}"


def _hover(
    cell: Mapping[Any, Any], across: str, down: str | None, titles: Mapping[str, str] | None
) -> str:
    own = _key(cell[across]) is None
    place = [f"{across}: own best" if own else f"{across} {_text(cell[across])}"]
    place += [] if down is None else [f"{down} {_text(cell[down])}"]
    named = {name: safe(arm_title(name, titles)) for name in (cell["winner"], cell["runner_up"])}
    lines = [safe(", ".join(place)), f"<b>{named[cell['winner']]}</b> {cell['score']:.1f} %"]
    if cell["runner_up"]:
        noise = "within noise: a tie" if cell["ties"] else "beyond noise"
        lines.append(
            f"{cell['margin']:+.1f} points [{cell['low']:+.1f}, {cell['high']:+.1f}] over "
            f"{named[cell['runner_up']]}, {noise} ({cell['n']} pairs)"
        )
    if cell["ties"]:
        others = ", ".join(arm_title(name, titles) for name in cell["ties"].split(","))
        lines.append(f"tied with {safe(others)}")
    if math.isfinite(cell["ceiling"]):
        lines.append(f"true labels {cell['ceiling']:.1f} %")
    return "<br>".join(lines)


def _key(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
