"""The scripts of docs/tools, which are no package."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def tool():
    """A script of docs/tools as a module, by name; the scripts import each other."""

    def load(name):
        spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "tools" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "tools"))
        yield load
