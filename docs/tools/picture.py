"""Draws the pictures of README and docs: one of real runs, from docs/data, two of simulated ones.

python docs/tools/picture.py course      # or window, fates; without a name all

Needs the extra png and Chromium. The same rows and settings give the same files: the random names
that plotly gives to elements are replaced.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from protocol_page import products

from lab.base.columns import where
from lab.compare.collection import Comparison, gather
from lab.compare.tables import metrics
from lab.figures.outcomes import fate_bars
from lab.figures.style import GREY, PURPLE, arm_style, arm_title, styled, translucent
from lab.figures.training import training_window
from lab.measures.dynamics import dynamics, run_windows, window_share
from sim import SimConfig
from sim.studies.compare import compare

DOCS = Path(__file__).parents[1]
ARMS = ("ttrl", "guard", "matched", "frozen", "memory")
CONFIG = SimConfig(population="llama-math500", replicates=20, seed=0)
REAL_ARMS = ("recommended", "memory", "guard", "ttrl")


def course(runs: pd.DataFrame) -> go.Figure:
    """Right votes by visit: runs of four arms, their means, and the majority before training.

    Args:
        runs: one row per run: arm, maj_start (%), accuracy_by_visit (shares, separated by spaces).
    """
    figure = go.Figure()
    for arm in REAL_ARMS:
        own = where(runs, arm=arm)["accuracy_by_visit"]
        right = 100 * np.array([[float(x) for x in text.split()] for text in own])
        style = arm_style(arm) if arm != "recommended" else arm_style("memory_guard")
        colour = PURPLE if arm == "recommended" else style.colour
        visits = np.arange(right.shape[1])
        for run in right:
            thin = {"color": translucent(colour, 0.3), "width": 1}
            figure.add_scatter(x=visits, y=run, mode="lines", line=thin, showlegend=False)
        thick = {"color": colour, "dash": style.dash, "width": 3.5}
        figure.add_scatter(x=visits, y=right.mean(0), mode="lines", line=thick, name=arm_title(arm))
    vote = where(runs, arm="ttrl")["maj_start"].mean()
    note = f"majority vote before training: {vote:.0f} %"
    figure.add_hline(vote, line={"dash": "dash", "color": GREY}, annotation_text=note)
    figure.update_xaxes(title_text="visit of every problem (0: before training)", dtick=1)
    figure.update_yaxes(title_text="right votes (%)", range=[0, 80])
    return styled(figure, 350)


def simulated(config: SimConfig, folder: Path) -> dict[str, go.Figure]:
    """Both simulated pictures; the runs are kept in a new folder while they are read."""
    (runs,), _ = gather(list(compare(config, ARMS, folder).values()))
    bars = fate_bars(metrics(runs).drop(columns="L/D"))
    return {"window": window(runs), "fates": bars.update_layout(margin_r=22)}


def window(runs: Comparison) -> go.Figure:
    """Match rate, flip rate and pass@1 of plain TTRL."""
    plain = runs.traces["ttrl"]
    table = dynamics(plain.visits, plain.evals).assign(arm="ttrl")
    shares = window_share(table, run_windows(table)).assign(arm="ttrl")
    return training_window(table, shares)


def svg(name: str, figure: go.Figure) -> str:
    """Return a figure as SVG, with names that are the same at every time."""
    for number, trace in enumerate(figure.data):
        trace.update(uid=f"-{name}-{number}")
    image = figure.to_image("svg", width=560, height=350).decode()
    (random,) = set(re.findall(r'id="defs-([0-9a-f]{6})"', image))
    return image.replace(random, name)


def main(names: list[str]) -> None:
    """Write the pictures with these names, or all."""
    known = ["course", "window", "fates"]
    if {*names} - {*known}:
        sys.exit(f"picture.py: names are {', '.join(known)}, or none for all")
    names = names or known
    figures = {"course": course(products())} if "course" in names else {}
    if {"window", "fates"} & {*names}:
        with tempfile.TemporaryDirectory() as folder:
            figures |= simulated(CONFIG, Path(folder) / "runs")
    for name in names:
        (DOCS / f"picture-{name}.svg").write_text(svg(name, figures[name]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
