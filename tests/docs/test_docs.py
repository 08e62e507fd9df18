"""The docs build without a warning, and their Python examples run."""

import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim import SimConfig, simulate
from sim.world.policies import POLICIES

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    environment = os.environ | {"NOTEBOOKS": "false"}
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    trace = (tmp_path / "extend" / "index.html").read_text()
    assert "label_accuracy" in trace and "| ---" not in trace
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        page = (tmp_path / "notebooks" / notebook.stem / "index.html").read_text()
        assert "GUARD_LAB_SMALL" in page
    for package in ("guard_core", "lab", "sim", "real"):
        page = (tmp_path / "api" / package / "index.html").read_text()
        modules = [found.name for found in pkgutil.iter_modules([str(ROOT / package)])]
        for name in {*modules} - {"__main__"}:
            assert f'id="{package}.{name}' in page
    assert (
        'id="lab.base.stats.paired_table"' in (tmp_path / "api" / "lab" / "index.html").read_text()
    )


def names_of(page: str) -> dict[str, Any]:
    """Run a page's Python examples and return the names that they define."""
    names: dict[str, Any] = {}
    for block in PYTHON.findall((ROOT / page).read_text()):
        exec(compile(block, page, "exec"), names)
    return names


def test_examples_of_readme_run():
    names = names_of("README.md")
    assert names["majority"].shape == (8, 32)
    assert np.allclose(names["majority"].sum(axis=1), 0, atol=1e-5)


def test_examples_of_extend_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(POLICIES, "independent", POLICIES["independent"])
    names = names_of("docs/extend.md")
    trace = simulate(SimConfig(policy="independent", n_problems=20, epochs=9))
    assert POLICIES["independent"].__name__ == "Leaky"
    assert trace.evals["pass_at_1"].notna().all()
    assert len(names["figure"].data) == names["trace"].visits["replicate"].nunique()
