"""Figures as parts of the page: the data in the page itself, drawn by the page's own script."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.io import to_json
from plotly.offline import get_plotlyjs

from lab.report.elements.html import Html, raw, tag


def plot(figure: go.Figure, name: str, alt: str, caption: str = "") -> Html:
    """A figure together with its data.

    Args:
        figure: any plotly figure.
        name: of the element, unique on the page, chosen in code.
        alt: what is drawn, for readers who cannot see it.
        caption: below the figure.
    """
    source = f"{name}-data"
    place = tag(
        "div", id=name, class_="plot", role="img", aria_label=alt, data_figure=source,
        style=f"min-height:{figure.layout['height']}px",
    )  # fmt: skip
    data = tag("script", raw(_in_script(figure)), type="application/json", id=source)
    return tag("figure", place, data, tag("figcaption", caption) if caption else None)


def absent(why: str) -> Html:
    """In place of a figure that cannot be drawn."""
    return tag("figure", tag("p", why, class_="absent"))


def library() -> Html:
    """The plotting library, to stand once before the figures are drawn."""
    return tag("script", raw(get_plotlyjs()))


def _in_script(figure: go.Figure) -> str:
    """JSON that cannot end its element or open another: `<` only stands in its strings."""
    json = str(to_json(figure, validate=False, engine="json"))
    return json.replace("<", "\\u003c").replace(">", "\\u003e")
