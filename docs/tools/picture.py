"""Draws `docs/picture.svg`, the README's picture, from a simulated run of its own.

python docs/tools/picture.py             # needs the extra png and Chromium or Chrome

The same settings give the same file: the random names that plotly gives to elements are replaced.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import plotly.graph_objects as go

from lab.compare.collection import gather
from lab.compare.tables import metrics
from lab.figures import fate_bars
from lab.figures.training import training_window
from lab.measures.dynamics import dynamics, run_windows, window_share
from sim import SimConfig
from sim.studies.compare import compare
from sim.studies.controls import named

PICTURE = Path(__file__).parents[1] / "picture.svg"
ARMS = ("ttrl", "guard", "matched", "frozen", "memory")
CONFIG = SimConfig(population="llama-math500", replicates=20, seed=0)
WIDTH, HEIGHT, HEAD = 560, 350, 34

_NAME = re.compile(r'id="defs-([0-9a-f]{6})"')
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_HEADINGS = (
    "Plain TTRL: labels stop changing, pass@1 falls",
    "Fates of 500 problems, mean of 20 runs",
)


def browser() -> str | None:
    """The program that draws: BROWSER_PATH, or the first that is installed."""
    given = os.environ.get("BROWSER_PATH")
    return given or next(filter(None, map(shutil.which, _PROGRAMS)), None)


def panels() -> tuple[go.Figure, go.Figure]:
    """The window of plain TTRL, and the fates of all arms, over the same seeds."""
    with tempfile.TemporaryDirectory() as folder:
        traces = compare(CONFIG, [named(arm, CONFIG) for arm in ARMS], Path(folder) / "runs")
        (comparison,), _ = gather(list(traces.values()))
        plain = comparison.traces["ttrl"]
        table = dynamics(plain.visits, plain.evals)
        shares = window_share(table, run_windows(table))
        window = training_window(table.assign(arm="ttrl"), shares.assign(arm="ttrl"))
        bars = fate_bars(metrics(comparison).drop(columns="L/D"))
        return window, bars.update_layout(margin_r=22)


def svg(figure: go.Figure, name: str) -> str:
    """A figure as SVG, with names that are the same at every time."""
    import kaleido

    for number, trace in enumerate(figure.data):
        trace.update(uid=f"-{name}-{number}")
    options = {"format": "svg", "width": WIDTH, "height": figure.layout.height}
    drawer = {"mathjax": False, "path": browser()}
    image = kaleido.calc_fig_sync(figure, opts=options, kopts=drawer).decode()
    (random,) = set(_NAME.findall(image))
    return image.replace(random, name)


def picture(figures: tuple[go.Figure, ...]) -> str:
    """The figures side by side under their headings, as one SVG on a white ground."""
    size = f'width="{WIDTH * len(figures)}" height="{HEIGHT + HEAD}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
        f'viewBox="0 0 {WIDTH * len(figures)} {HEIGHT + HEAD}">',
        f'<rect {size} fill="#ffffff"/>',
    ]
    for place, (figure, heading) in enumerate(zip(figures, _HEADINGS, strict=True)):
        x, sized = WIDTH * place, figure.update_layout(height=HEIGHT)
        parts.append(
            f'<text x="{x + 16}" y="24" font-family="sans-serif" font-size="15" '
            f'font-weight="bold" fill="#1F2328">{heading}</text>'
        )
        parts.append(f'<svg x="{x}" y="{HEAD}">{svg(sized, f"panel{place}")}</svg>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    if browser() is None:
        sys.exit("picture: needs Chrome or Chromium; install one, or name it in BROWSER_PATH")
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    target.write_text(picture(panels()), encoding="utf-8")
    print(target)
