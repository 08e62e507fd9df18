import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import guard_core

ROOT = Path(__file__).parents[1]


def test_core_lab_and_sim_load_without_torch():
    code = "import sys, guard_core, lab, sim; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_plain_install_asks_for_no_torch():
    needs = importlib.metadata.requires("ttrl-guard-lab") or []
    plain = [need for need in needs if "extra ==" not in need]
    assert plain, "the base dependencies are missing"
    assert not [need for need in plain if need.startswith(("torch", "transformers", "vllm"))]
    assert any(need.startswith("torch") for need in needs)


def test_ci_runs_the_readme_test_command():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().strip().splitlines()[-1] == "make test"
    assert "make test-verl" in script.read_text()
    assert "make test" in (ROOT / "README.md").read_text()


def test_the_distribution_has_the_version_of_the_code():
    assert importlib.metadata.version("ttrl-guard-lab") == guard_core.__version__
