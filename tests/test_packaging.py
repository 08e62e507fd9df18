import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from itertools import chain
from pathlib import Path

import pytest

import guard_core

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def needed(*parts):
    """Names of the packages that an installation with these parts asks for."""
    extras = PROJECT["optional-dependencies"]
    needs = [*PROJECT["dependencies"], *chain(*(extras[part] for part in parts))]
    own = [need for need in needs if need.startswith("ttrl-guard-lab[")]
    further = {part for need in own for part in need[need.index("[") + 1 : -1].split(",")}
    names = {re.split(r"[^\w-]", need)[0] for need in needs if need not in own}
    return names | (needed(*further) if further else set())


def test_every_part_asks_for_its_own_libraries_alone():
    assert needed() == {"numpy"}
    assert needed("answers") == {"numpy", "msgspec", "python-flint"}
    assert {"pandas", "plotly", "numba"} <= needed("sim")
    assert {"torch", "transformers", "pandas", "python-flint"} <= needed("real")
    assert not {"torch", "transformers", "vllm"} & (needed("sim") | needed("answers"))


FIRST = """
import time
import numpy
start = time.perf_counter()
import guard_core
print(time.perf_counter() - start)
from guard_core import Draws, Guard, GuardConfig, Votes, group_advantages
answers = numpy.random.default_rng(0).integers(0, 3, (8, 64))
guard = Guard(GuardConfig.paper())
draws = Draws(*numpy.random.default_rng(1).random((3, 8)))
votes = Votes.from_answers(answers, n_samples=32, n_answers=3)
state, decision = guard.step(guard.init(8), votes, draws)
majority, minority = group_advantages(answers[:, :32], decision, guard.config)
assert majority.shape == minority.shape == (8, 32) and majority.any()
"""
READER = """
from real.answers import AnswerIds, Equality
ids = AnswerIds(["1/2"], Equality())
assert ids.ids(0, [r"\\boxed{0.5}", r"\\boxed{3}", "none"]).tolist() == [0, 1, -1]
assert ids.truth_id(0) == 0
"""


ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


class Installed:
    """An environment with nothing but a part of the wheel."""

    def __init__(self, folder, wheel):
        venv.create(folder)
        self.bin, self._wheel = folder / "bin", wheel
        self.add()

    def add(self, part=""):
        pip = [sys.executable, "-m", "pip", "-q", "--python", self.bin / "python", "install"]
        limits = ["--no-compile", "-c", ROOT / "constraints.txt"]
        wanted = f"{self._wheel}[{part}]" if part else self._wheel
        # Not in the clone, whose metadata pip would take for an installed package.
        subprocess.run([*pip, *limits, wanted], check=True, env=ALONE, cwd=self.bin)

    def run(self, *words, code=0):
        done = subprocess.run(
            [self.bin / words[0], *words[1:]], capture_output=True, text=True, env=ALONE
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def megabytes(self):
        files = [path for path in (self.bin.parent / "lib").rglob("*") if path.is_file()]
        return sum(path.stat().st_size for path in files if not path.is_symlink()) / 1e6


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "source" / name)
    pip = [sys.executable, "-m", "pip", "-q", "wheel", "--no-deps", "-w", folder]
    subprocess.run([*pip, folder / "source"], check=True)
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_parts_of_the_wheel_run_one_after_another_in_an_empty_environment(wheel, tmp_path):
    """The guard alone, then the answer reader, then simulator and report without PyTorch."""
    made = Installed(tmp_path / "made", wheel)
    assert made.megabytes() < 110
    # Beside NumPy's own import, at best of several on a machine that does other work.
    assert min(float(made.run("python", "-c", FIRST)) for _ in range(5)) < 0.3
    for program, part in [("sim", "sim"), ("train", "real"), ("report", "sim"), ("verl", "verl")]:
        said = made.run(f"guard-{program}", "--help", code=2)
        assert re.fullmatch(
            rf"guard-{program}: \w+ not installed; install with pip install -e '\.\[{part}]'\n",
            said,
        )
    made.add("answers")
    made.run("python", "-c", READER)
    assert "No module named 'pandas'" in made.run("python", "-c", "import pandas", code=1)
    made.add("sim")
    made.run("python", "-c", "import sim.engine.run, sim.studies.agree, lab.report.page")
    for program in ("guard-sim", "guard-report", "guard-train"):
        assert "usage" in made.run(program, "--help").lower()
    said = made.run("guard-train", "run", "--out", tmp_path / "real", code=2)
    assert "torch" in said and said.endswith("install with pip install -e '.[real]'\n")
    assert "No module named 'torch'" in made.run("python", "-c", "import torch", code=1)


def test_ci_runs_the_readme_s_commands_before_anything_else_is_installed():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    steps = re.findall(r"^ *part ([\w-]+)[^&\n]*$", script.read_text(), re.MULTILINE)
    readme = re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert steps[: len(readme)] == readme == ["demo", "test"]
    assert {"test-slow", "test-browser", "test-vllm"} <= set(steps)
    assert "{ part test-verl; part test-trl; } &" in script.read_text()


PARTS = {"demo", "test", "test-slow", "test-vllm", "test-verl", "test-trl"}


@pytest.mark.parametrize("failing", ["none", "test", "test-vllm", "test-verl", "test-trl"])
def test_ci_runs_every_part_and_fails_where_one_does(tmp_path, failing):
    """With a Makefile that only says what it is asked for."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    rule = "%:\n\t@echo $@ >> made; echo 1 passed; [ $@ != $(FAILING) ]\n"
    (tmp_path / "Makefile").write_text(rule)
    for program in ("chromium", "apt-get"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "FAILING": failing}
    command, env = [tmp_path / ".ci" / "run"], os.environ | own
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    made = (tmp_path / "made").read_text().split()
    assert (done.returncode == 0) == (failing == "none") == ("All parts passed" in done.stdout)
    assert len(made) == len({*made}) and (failing != "none" or {*made} >= PARTS)


def test_no_test_folder_has_the_name_of_a_package_that_the_project_can_use():
    """Such a folder is importable, so that the package seems to be installed."""
    packages = {name.replace("-", "_") for name in needed(*PROJECT["optional-dependencies"])}
    assert {"vllm", "verl", "torch"} <= packages
    folders = {path.parent.name for path in (ROOT / "tests").rglob("*.py")}
    assert "on_vllm" in folders and not packages & folders


def test_the_distribution_has_the_version_of_the_code():
    assert importlib.metadata.version("ttrl-guard-lab") == guard_core.__version__
