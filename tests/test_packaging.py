import importlib.metadata
import os
import re
from pathlib import Path

import guard_core

ROOT = Path(__file__).parents[1]


def test_a_plain_install_asks_for_no_torch():
    needs = importlib.metadata.requires("ttrl-guard-lab") or []
    plain = [need for need in needs if "extra ==" not in need]
    assert plain, "the base dependencies are missing"
    assert not [need for need in plain if need.startswith(("torch", "transformers", "vllm"))]
    assert any(need.startswith("torch") for need in needs)


def test_ci_runs_the_readme_s_commands_before_anything_else_is_installed():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    steps = re.findall(r"^ *part ([\w-]+)[^&\n]*$", script.read_text(), re.MULTILINE)
    readme = re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert steps[: len(readme)] == readme == ["demo", "test"]
    assert {"test-slow", "test-browser", "test-vllm"} <= set(steps)
    assert re.findall(r"^ *part (.*) &$", script.read_text(), re.MULTILINE) == ["test-verl"]


def test_no_test_folder_has_the_name_of_a_package_that_the_project_can_use():
    """Such a folder is importable, so that the package seems to be installed."""
    needs = importlib.metadata.requires("ttrl-guard-lab") or []
    packages = {re.split(r"[^\w-]", need)[0].replace("-", "_") for need in needs}
    assert {"vllm", "verl", "torch"} <= packages
    folders = {path.parent.name for path in (ROOT / "tests").rglob("*.py")}
    assert "on_vllm" in folders and not packages & folders


def test_the_distribution_has_the_version_of_the_code():
    assert importlib.metadata.version("ttrl-guard-lab") == guard_core.__version__
