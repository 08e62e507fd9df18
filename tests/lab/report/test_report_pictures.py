"""`guard-report --format png`: every figure of the page as a file."""

import logging
import struct
import sys

import pytest

from lab.errors import UserError
from lab.report import files as png
from lab.report.cli import main
from lab.report.digest import read
from lab.report.files import pictures
from lab.report.page import page


@pytest.fixture(scope="module")
def drawable(chromium):
    pytest.importorskip("kaleido")


def size(path):
    """Width and height of a PNG file."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


def test_every_figure_of_the_page_has_a_name(runs):
    worlds, _ = read([runs.real])
    names = [name for name, _ in pictures(worlds)]
    assert len(set(names)) == len(names) == page(worlds, []).count('class="plot"')
    assert {"real-tiny-fates", "real-tiny-paired-2"} <= set(names)


def test_figures_are_drawn(drawable, add_run, tmp_path, capsys, monkeypatch):
    add_run(tmp_path / "run", "ttrl", task="tiny")
    wanted = ("sim-tiny-fates", "sim-tiny-progress")
    every = pictures(read([tmp_path])[0])
    figures = {name: figure for name, figure in every if name in wanted}
    monkeypatch.setattr("lab.report.files.pictures", lambda worlds: iter(figures.items()))
    target = tmp_path / "figures"
    assert main([str(tmp_path / "run"), "--format", "png", "-o", str(target)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(target / f"{n}.png") for n in wanted]
    for name, figure in figures.items():
        width, height = size(target / f"{name}.png")
        assert width == png.SCALE * png.WIDTH
        assert height == png.SCALE * figure.layout.height
        assert len((target / f"{name}.png").read_bytes()) > 10_000
    assert not logging.getLogger("choreographer.channels.pipe").isEnabledFor(logging.ERROR)


def test_without_kaleido_the_extra_is_named(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "kaleido", None)
    target = tmp_path / "figures"
    assert main([str(runs.real), "--format", "png", "-o", str(target)]) == 2
    err = capsys.readouterr().err
    assert err == "guard-report: png: needs kaleido; pip install 'ttrl-guard-lab[png]'\n"
    assert not target.exists()


def test_without_a_browser_it_is_named(monkeypatch):
    pytest.importorskip("kaleido")
    monkeypatch.delenv("BROWSER_PATH", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UserError, match="needs Chrome or Chromium"):
        png.check_png()


def test_a_browser_that_does_not_start_is_an_error(drawable, tmp_path, monkeypatch):
    import plotly.graph_objects as go

    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))
    figure = go.Figure(layout={"height": 100})
    with pytest.raises(UserError, match=r"png: .*none cannot draw"):
        png.write_pngs({tmp_path / "a.png": figure})
    assert list(tmp_path.iterdir()) == []
