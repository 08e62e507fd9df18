import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FIGURE = "application/vnd.plotly.v1+json"
MOST_CELLS = 20


def _code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_at_small_size(path):
    notebook = nbformat.read(path, as_version=4)
    small = {"GUARD_LAB_SMALL": "1", "PLOTLY_RENDERER": "plotly_mimetype", "OMP_NUM_THREADS": "1"}
    client = NotebookClient(notebook, timeout=300, kernel_name="python3")
    client.execute(env=os.environ | small, cwd=str(path.parent))
    outputs = [output for cell in _code(notebook) for output in cell.outputs]
    assert sum(bool(cell.outputs) for cell in _code(notebook)) >= 5
    assert any(FIGURE in output.get("data", {}) for output in outputs)
    # A warning on stderr would stand on the page.
    assert not [output for output in outputs if output.get("name") == "stderr"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_short_well_formed_and_stored_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells) <= MOST_CELLS
    assert notebook.cells[0].source.startswith("# ")
    assert "GUARD_LAB_SMALL" in _code(notebook)[0].source
    assert all(not c.outputs and c.execution_count is None for c in _code(notebook))


# How versions of tqdm know a notebook's kernel; its widget library is missing.
KERNEL = """
import sys, types
kernel = types.SimpleNamespace(config={"IPKernelApp": {}})
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: kernel)
sys.modules["ipykernel.zmqshell"] = types.ModuleType("zmqshell")
sys.modules["ipywidgets"] = None
"""


@pytest.mark.parametrize(("first", "warns"), [("", True), ("import real", False)])
def test_a_missing_widget_library_brings_no_warning(first, warns):
    code = f"{KERNEL}\n{first}\nimport tqdm.auto"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ("IProgress not found" in done.stderr) == warns
