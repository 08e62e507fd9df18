"""Draws the README's two pictures from a simulated comparison of its own.

python docs/tools/picture.py             # needs the extra png and Chromium or Chrome

The same settings give the same files: the random names that plotly gives to elements are replaced.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import plotly.graph_objects as go

from lab.compare.collection import gather
from lab.compare.tables import metrics
from lab.figures import fate_bars
from lab.figures.training import training_window
from lab.measures.dynamics import dynamics, run_windows, window_share
from sim import SimConfig
from sim.studies.compare import compare

DOCS = Path(__file__).parents[1]
ARMS = ("ttrl", "guard", "matched", "frozen", "memory")
CONFIG = SimConfig(population="llama-math500", replicates=20, seed=0)


def panels() -> Iterator[tuple[str, go.Figure]]:
    """Name and figure: the window of plain TTRL, and the fates of all arms."""
    with tempfile.TemporaryDirectory() as folder:
        traces = compare(CONFIG, ARMS, Path(folder) / "runs")
        (comparison,), _ = gather(list(traces.values()))
        plain = comparison.traces["ttrl"]
        table = dynamics(plain.visits, plain.evals).assign(arm="ttrl")
        shares = window_share(table, run_windows(table)).assign(arm="ttrl")
        yield "window", training_window(table, shares)
        bars = fate_bars(metrics(comparison).drop(columns="L/D"))
        yield "fates", bars.update_layout(margin_r=22)


def svg(name: str, figure: go.Figure) -> str:
    """Return a figure as SVG, with names that are the same at every time."""
    for number, trace in enumerate(figure.data):
        trace.update(uid=f"-{name}-{number}")
    image = figure.to_image("svg", width=560, height=350).decode()
    (random,) = set(re.findall(r'id="defs-([0-9a-f]{6})"', image))
    return image.replace(random, name)


if __name__ == "__main__":
    for name, figure in panels():
        (DOCS / f"picture-{name}.svg").write_text(svg(name, figure), encoding="utf-8")
