"""The script of the README's picture draws it, and gives the same file each time."""

import xml.etree.ElementTree as ET

import plotly.graph_objects as go
import pytest

from lab.base.arms import title

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def script(tool):
    pytest.importorskip("kaleido")
    return tool("picture")


def test_two_figures_stand_side_by_side_and_twice_alike(script, chromium):
    figures = tuple(go.Figure(go.Scatter(y=[1, 2, 3], name=name)) for name in "ab")
    drawn = script.picture(figures)
    assert drawn == script.picture(figures)
    root = ET.fromstring(drawn)
    assert root.get("width") == str(2 * script.WIDTH)
    assert [inner.get("x") for inner in root.findall(f"{SVG}svg")] == ["0", str(script.WIDTH)]


def test_the_picture_in_the_docs_is_this_script_s(script):
    text = script.PICTURE.read_text(encoding="utf-8")
    for heading in script._HEADINGS:
        assert heading in text
    for arm in script.ARMS:
        assert title(arm).split()[0] in text
    assert f'width="{2 * script.WIDTH}" height="{script.HEIGHT + script.HEAD}"' in text
