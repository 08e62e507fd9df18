import json
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
    pages = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.glob("api/**/index.html")}
    modules = [f"api/{'/'.join(name.split('.'))}" for name in ("lab.base.stats", "sim.world.tree")]
    for package in ("guard_core", "lab", "sim", "real"):
        found = pkgutil.iter_modules([str(ROOT / package)])
        modules += [f"api/{package}/{m.name}" for m in found if not m.name.startswith("_")]
    assert {*modules} <= pages
    page = (tmp_path / "api" / "lab" / "base" / "stats" / "index.html").read_text()
    assert 'id="lab.base.stats.paired_table"' in page
    assert "<code>guard = Guard(" in (tmp_path / "api/guard_core/index.html").read_text()
    found = json.loads((tmp_path / "search" / "search_index.json").read_text())["docs"]
    for word in ("tensorboard", "wandb", "resume"):
        assert any(word in doc["text"].lower() for doc in found if "api/" not in doc["location"])


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
