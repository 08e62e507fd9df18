"""Flip rate, match rate and accuracy of all arms over training, and the votes on lost problems."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from lab.figures.curves import Panel, arm_curves

PROGRESS_PANELS = (
    Panel("flip_rate", "FR: labels that changed", "% of problems"),
    Panel("match_rate", "MR: votes that the label got", "% of votes"),
    Panel("pass_at_1", "pass@1", "% of responses"),
)
LOST_PANELS = (
    Panel(
        "correct_vote_rate_lost",
        "Correct-vote rate on lost problems",
        "% of visits",
        top=100.0,
    ),
)


def training_progress(table: pd.DataFrame, titles: Mapping[str, str] | None = None) -> go.Figure:
    """FR, MR and pass@1 of every arm over normalised progress.

    Args:
        table: `lab.measures.dynamics` tables with the column `arm`.
        titles: arm to title, where it differs from `lab.arms`.
    """
    return arm_curves(table, PROGRESS_PANELS, titles)


def lost_votes(table: pd.DataFrame, titles: Mapping[str, str] | None = None) -> go.Figure:
    """Share of visits to lost problems at which the correct answer still wins the vote.

    Args:
        table: `lab.measures.dynamics` tables made with fates, with the column `arm`.
        titles: arm to title, where it differs from `lab.arms`.
    """
    return arm_curves(table, LOST_PANELS, titles, panel_height=260)
