import tomllib
from pathlib import Path

import pytest

from lab.base.errors import install
from sim.cli import main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("inside", [True, False])
def test_the_advice_names_the_clone(monkeypatch, tmp_path, inside):
    monkeypatch.chdir(ROOT if inside else tmp_path)
    place = Path.cwd() / install("lora").partition("'")[2].partition("[")[0]
    extras = tomllib.loads((place / "pyproject.toml").read_text())["project"]
    assert "lora" in extras["optional-dependencies"]
    assert install("lora") == f"pip install -e '{'.' if inside else ROOT}[lora]'"


def test_explore_without_dash_says_what_to_install(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["explore"]) == 2
    assert capsys.readouterr().err.endswith("install with pip install -e '.[explore]'\n")
