"""Executes notebooks at small size and keeps the copies with outputs, which the docs show.

python docs/tools/execute.py                            # all, into build/notebooks
python docs/tools/execute.py notebooks/real_tiny_run.ipynb
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from lab.base.files import whole

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "notebooks"
EXECUTED = ROOT / "build" / "notebooks"

_KERNEL = {
    "GUARD_LAB_SMALL": "1",
    # A figure is kept as data alone: the page that shows it brings plotly.js once.
    "PLOTLY_RENDERER": "plotly_mimetype",
    "OMP_NUM_THREADS": "1",
    # tqdm misses a widget library that no bar here needs.
    "PYTHONWARNINGS": "ignore:IProgress not found",
}


def execute(source: Path, target: Path, timeout: int = 300) -> NotebookNode:
    """Run a notebook in a kernel of its own and write the copy with its outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised, or took more than `timeout` seconds.
    """
    notebook = nbformat.read(source, as_version=4)
    client = NotebookClient(notebook, timeout=timeout, kernel_name="python3")
    client.execute(env=os.environ | _KERNEL, cwd=str(source.parent))
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole(target) as file:
        nbformat.write(notebook, file)
    return notebook


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:] or sorted(SOURCES.glob("*.ipynb"))):
        execute(path, EXECUTED / path.name)
        print(EXECUTED / path.name)
