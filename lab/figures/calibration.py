"""Errors of a calibrated simulator against the published numbers, cell by cell."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lab.base.columns import floats, require, select
from lab.figures.style import DIVERGING, multiples, place_of, safe, styled, wrapped

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
        titles: row to title.

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
