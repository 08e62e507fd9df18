"""The docs build without a warning, and their Python examples run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sim.world.policies import POLICIES

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    trace = (tmp_path / "extend" / "index.html").read_text()
    assert "label_accuracy" in trace and "| ---" not in trace
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        page = (tmp_path / "notebooks" / notebook.stem / "index.html").read_text()
        assert "GUARD_LAB_SMALL" in page
    for package in ("guard_core", "lab", "sim", "real"):
        page = (tmp_path / "api" / package / "index.html").read_text()
        assert "<h2" in page and f'id="{package}.' in page
    stats = (tmp_path / "api" / "lab" / "base" / "index.html").read_text()
    assert 'id="lab.base.stats.paired_table"' in stats
    assert (tmp_path / "api" / "lab" / "figures" / "index.html").exists()


@pytest.mark.parametrize("page", ["extend.md", "index.md"])
def test_examples_run(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(POLICIES, "independent", POLICIES["independent"])
    blocks = PYTHON.findall((ROOT / "docs" / page).read_text())
    assert blocks
    names = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    if page == "extend.md":
        from sim import SimConfig, simulate

        trace = simulate(SimConfig(policy="independent", n_problems=20, epochs=9))
        assert POLICIES["independent"].__name__ == "Leaky"
        assert trace.evals["pass_at_1"].notna().all()
        assert len(names["figure"].data) == 8
