"""The script of the README's pictures gives the same file each time."""

import plotly.graph_objects as go
import pytest


def test_a_picture_is_the_same_at_every_time(tool, chromium):
    pytest.importorskip("kaleido")
    svg = tool("picture").svg
    images = [svg("a", go.Figure(go.Scatter(y=[1, 2, 3], name="curve"))) for _ in range(2)]
    assert images[0] == images[1] and "defs-a" in images[0]
