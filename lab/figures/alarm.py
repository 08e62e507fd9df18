"""AUROC and ROC curves of the label-free alarm and of simple scores."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from lab.columns import floats
from lab.figures.curves import line_with_band, rows
from lab.figures.style import BLUE, GREY, ORANGE, VERMILLION, ArmStyle, safe, styled

SCORE_TITLES = {
    "alarm": "Alarm",
    "mr": "MR alone",
    "fr": "FR alone",
    "mr_fitted": "MR alone, fitted",
    "mr_mean": "mean MR so far",
    "mr_first": "MR before training",
    "flips": "flips so far",
    "moved": "label has moved",
}
SHOWN = ("alarm", "mr", "fr")
_STYLES = {
    "alarm": ArmStyle(BLUE, "solid", "circle"),
    "mr": ArmStyle(ORANGE, "dash", "diamond"),
    "fr": ArmStyle(VERMILLION, "dot", "square"),
}
_OTHER = ArmStyle(GREY, "longdashdot", "cross")
_CHANCE = {"color": GREY, "width": 1, "dash": "dot"}


def auroc_curves(table: pd.DataFrame, scores: Sequence[str] = SHOWN) -> go.Figure:
    """AUROC of every score over the visits, with its 95 % interval as a band.

    Args:
        table: `lab.alarm.table.alarm_table` of one arm: visit, score, auroc, low, high, n_lost,
            n_kept.
        scores: curves, out of `lab.alarm.table.SCORES`.
    """
    figure = go.Figure(_chance([float(floats(table, "visit").max()) + 0.5], [0.5, 0.5]))
    for name in scores:
        own = rows(table, table["score"].to_numpy() == name).sort_values("visit")
        counts = own[["low", "high", "n_lost", "n_kept"]].to_numpy().tolist()
        hover = (
            "visit %{x}: AUROC %{y:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]<br>"
            "%{customdata[2]} lost, %{customdata[3]} kept problems at stake"
        )
        figure.add_traces(
            _curve(own, name, ("visit", "auroc"), counts, hover, mode="lines+markers")
        )
    figure.update_xaxes(title_text="votes up to visit", rangemode="tozero")
    figure.update_yaxes(title_text="AUROC", range=[0, 1.02])
    return styled(figure, 380, hovermode="closest")


def roc_curves(table: pd.DataFrame, scores: Sequence[str] = SHOWN) -> go.Figure:
    """ROC curves at one visit, with 95 % bands.

    Args:
        table: `lab.alarm.roc.roc_table` of one arm: score, fpr, tpr, low, high.
        scores: curves, out of `lab.alarm.table.SCORES`.
    """
    figure = go.Figure(_chance([1.0], [0.0, 1.0]))
    for name in scores:
        own = rows(table, table["score"].to_numpy() == name).sort_values("fpr")
        bounds = own[["low", "high"]].to_numpy().tolist()
        hover = (
            "at %{x:.1%} false alarms %{y:.1%} of the lost problems found "
            "[%{customdata[0]:.1%}, %{customdata[1]:.1%}]"
        )
        figure.add_traces(_curve(own, name, ("fpr", "tpr"), bounds, hover, mode="lines"))
    figure.update_xaxes(title_text="kept problems alarmed at (share)", range=[0, 1])
    figure.update_yaxes(title_text="lost problems found (share)", range=[0, 1.02])
    return styled(figure, 420, hovermode="closest")


def _chance(end: list[float], height: list[float]) -> go.Scatter:
    """Line of a random score."""
    return go.Scatter(
        x=[0.0, *end],
        y=height,
        mode="lines",
        line=_CHANCE,
        name="chance",
        hoverinfo="skip",
    )


def _curve(
    own: pd.DataFrame,
    name: str,
    axes: tuple[str, str],
    custom: list[list[float]],
    hover: str,
    mode: str,
) -> list[go.Scatter]:
    return line_with_band(
        (floats(own, axes[0]), floats(own, axes[1])),
        (floats(own, "low"), floats(own, "high")),
        _STYLES.get(name, _OTHER),
        name,
        customdata=custom,
        mode=mode,
        name=safe(SCORE_TITLES.get(name, name)),
        hovertemplate=f"{hover}<extra>%{{fullData.name}}</extra>",
    )
