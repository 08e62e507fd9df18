"""Template by which the page's script draws a life: `life_figure` with every mark it knows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
from plotly.io import to_json

from lab.figures.life import life_figure
from lab.trace.schema import ROUTES

NAME = "{}"
"""Stands in the template for the name of an answer."""
_COARSE = (
    ("true answer", "correct"),
    ("wrong label", "label"),
    ("other answers", "other"),
    ("unparseable", "unparseable"),
)


def life_templates(n_answers: int) -> dict[str, Any]:
    """Two plotly figures as plain values: `votes`, an area per answer, and `shares` without votes.

    Every trace says in `meta` what it draws; the script fills in the numbers, leaves out what a
    life does not have, and takes from here how all of it looks.

    Args:
        n_answers: answers with an area of their own, the true one apart.
    """
    by_answer = [(NAME, "correct"), *((f"{NAME}{k}", "answer") for k in range(n_answers))]
    areas = {"votes": [*by_answer, *_COARSE[2:]], "shares": list(_COARSE)}
    return {name: _template(own) for name, own in areas.items()}


def _template(areas: list[tuple[str, str]]) -> dict[str, Any]:
    life = _life()
    share = 1 / len(areas)
    parts = [
        pd.DataFrame({"visit": life["visit"], "area": area, "kind": kind, "share": share})
        for area, kind in areas
    ]
    figure = life_figure(life, pd.concat(parts, ignore_index=True))
    return json.loads(str(to_json(figure, validate=False, engine="json")))


def _life() -> pd.DataFrame:
    """A life with every kind of label and route."""
    n = 1 + len(ROUTES)
    visit = np.arange(n)
    return pd.DataFrame(
        {
            "visit": visit,
            "n_votes": 1,
            "n_unparseable": 0,
            "label": 0,
            "label_correct": visit % 2 == 0,
            "flipped": visit > 1,
            "match_rate": 1.0,
            "label_accuracy": 1.0,
            "flip_rate": 0.0,
            "weight": 1.0,
            "route": [0, *ROUTES],
        }
    )
