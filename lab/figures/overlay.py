"""Real and simulated runs over each other: FR, MR and pass@1 in one panel per arm."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from lab.figures.curves import PROGRESS_TITLE, curve, has_data, of_arm, spread
from lab.figures.multiples import multiples, n_rows, place_of
from lab.figures.style import arm_order, arm_title, styled
from lab.figures.window import CURVES

_PANEL_HEIGHT = 240
_DASHES = {"real": "solid", "simulated": "dot"}


def overlay(
    real: pd.DataFrame, simulated: pd.DataFrame, titles: Mapping[str, str] | None = None
) -> go.Figure:
    """Means with bands of one standard deviation, real runs solid and simulated ones dotted.

    Args:
        real: `lab.measures.dynamics` tables with the column `arm`.
        simulated: the same; arms that only one of both has are left out.
        titles: arm to title, where it differs from `lab.arms`.
    """
    arms = arm_order(set(real["arm"]) & set(simulated["arm"]))
    figure = multiples([arm_title(arm, titles) for arm in arms], row_gap=0.25, shared_yaxes=True)
    for number, arm in enumerate(arms):
        place = place_of(number, len(arms))
        for (name, dash), table in zip(_DASHES.items(), (real, simulated), strict=True):
            own = of_arm(table, arm)
            for panel, colour, _ in CURVES:
                if not has_data(own, [panel.column]):
                    continue
                group = f"{panel.column}-{name}"
                for trace in curve(spread(own, panel.column), panel, colour, group, dash):
                    figure.add_trace(trace, **place)
                figure.data[-1].update(name=f"{panel.title}, {name}", showlegend=number == 0)
    figure.update_yaxes(range=[0, 100])
    figure.update_yaxes(title_text="%", col=1)
    figure.update_xaxes(range=[0, 100])
    figure.update_xaxes(title_text=PROGRESS_TITLE, row=n_rows(len(arms)))
    figure.update_annotations(font_size=13)
    height = _PANEL_HEIGHT * n_rows(len(arms)) + 130
    legend = {"y": 1 + 34 / (height - 90), "traceorder": "normal"}
    return styled(figure, height, legend=legend, hovermode="closest")
