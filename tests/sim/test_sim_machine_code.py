"""Compiled functions follow the sources that they were compiled from, in whatever file.

A progress bar says when functions are compiled.
"""

import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import numba
from numba.core.registry import CPUDispatcher as Dispatcher

import guard_core
import sim
from guard_core.machine_code import digest
from sim.engine.run import Simulation
from sim.settings.machine_code import PACKAGES

ROOT = Path(sim.__file__).parent.parent
CALL = """
import numba
from sim.world.outer import twice
print(numba.config.CACHE_DIR, twice(3))
"""
INNER = """
from numba import njit

@njit(inline="always")
def number(x):
    return x
"""
OUTER = """
from numba import njit
from sim.world.inner import number

@njit(cache=True)
def twice(x):
    return 2 * number(x)
"""


def called(root: Path, **environment: str) -> tuple[Path, int]:
    """Call a kernel in a new process; return the cache's folder and the result."""
    kept = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    run = subprocess.run(
        [sys.executable, "-c", CALL],
        env=kept | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"} | environment,
        **{"cwd": root, "capture_output": True, "text": True, "check": True},
    )
    folder, result = run.stdout.split()
    return Path(folder), int(result)


def copied(root: Path) -> Path:
    for package in ("guard_core", "lab", "sim"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, root / package, ignore=ignored)
    (root / "sim" / "world" / "inner.py").write_text(INNER)
    (root / "sim" / "world" / "outer.py").write_text(OUTER)
    return root


def test_an_edit_in_another_file_is_compiled(tmp_path: Path) -> None:
    root = copied(tmp_path)
    folder, result = called(root)
    assert folder.parent == root / "sim" / "__pycache__" and list(folder.rglob("*.nbi"))
    assert result == 6
    inner = root / "sim" / "world" / "inner.py"
    inner.write_text(INNER.replace("return x", "return x + 1"))
    edited, result = called(root)
    assert edited != folder and result == 8


def test_the_folder_lies_in_the_users_own_or_where_one_can_write(tmp_path: Path) -> None:
    root, chosen, home = copied(tmp_path / "root"), tmp_path / "chosen", tmp_path / "home"
    folder, _ = called(root, NUMBA_CACHE_DIR=str(chosen))
    assert folder.parent == chosen and list(folder.rglob("*.nbi"))
    # A file in the place of a folder stops even root, as a read-only installation does others.
    (root / "sim" / "__pycache__").touch()
    folder, _ = called(root, XDG_CACHE_HOME=str(home))
    assert folder.parent == home and folder.name.endswith(digest(root, *PACKAGES))
    assert list(folder.rglob("*.nbi"))
    home.rename(tmp_path / "elsewhere")
    home.touch()
    folder, _ = called(root, XDG_CACHE_HOME=str(home))
    assert not folder.exists()


def compiled_anew() -> None:
    """Compile a function that calls another, which is compiled within."""
    inner = numba.njit(lambda x: x + 1)
    outer = numba.njit(lambda x: 2 * inner(x))
    assert outer(1) == outer(1) == 4


def test_the_bar_of_a_run_says_that_it_compiles(monkeypatch, capsys):
    before, config = Simulation.before, sim.SimConfig(n_problems=8, epochs=1, replicates=1)
    sim.simulate(config)
    sim.simulate(config, progress=True)
    assert "compiling" not in capsys.readouterr().err

    def compiling(simulation: Simulation) -> object:
        compiled_anew()
        return before(simulation)

    monkeypatch.setattr(Simulation, "before", compiling)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    sim.simulate(config, progress=True)
    assert "0/1" in (shown := capsys.readouterr().err) and "compiling" in shown


def test_a_kernel_leaves_the_interpreter_to_other_threads() -> None:
    """A thread writes a run's parts while its kernels compute; cached ones are called by Python."""
    modules = [
        importlib.import_module(found.name)
        for package in (guard_core, sim)
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not found.name.endswith("__main__")
    ]
    kernels = {
        (value.__module__, value.__name__): value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Dispatcher) and value.stats.cache_path
    }
    assert len(kernels) > 40
    waited = [name for name, kernel in kernels.items() if not kernel.targetoptions.get("nogil")]
    assert waited == []
