from dataclasses import replace

import plotly.graph_objects as go
import pytest


def test_a_picture_is_the_same_at_every_time(tool, chromium):
    pytest.importorskip("kaleido")
    svg = tool("picture").svg
    images = [svg("a", go.Figure(go.Scatter(y=[1, 2, 3], name="curve"))) for _ in range(2)]
    assert images[0] == images[1] and "defs-a" in images[0]


def test_a_picture_that_is_none_is_told_those_that_are(tool):
    with pytest.raises(SystemExit, match="names are course, window, fates"):
        tool("picture").main(["curse"])


def test_simulated_pictures_are_drawn_while_their_runs_exist(tool, tmp_path, monkeypatch):
    picture, drawn = tool("picture"), {}
    small = replace(picture.CONFIG, n_problems=8, epochs=9, replicates=2)
    monkeypatch.setattr(picture, "CONFIG", small)
    monkeypatch.setattr(picture, "DOCS", tmp_path)
    monkeypatch.setattr(picture, "svg", lambda name, figure: drawn.setdefault(name, "svg"))
    picture.main(["window", "fates"])
    assert list(drawn) == ["window", "fates"]
    assert (tmp_path / "picture-fates.svg").read_text(encoding="utf-8") == "svg"
