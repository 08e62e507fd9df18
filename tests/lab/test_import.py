import json
import subprocess
import sys

import pytest

import lab


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


def test_importing_lab_is_quick():
    loaded = loaded_after("import lab; lab.UserError")
    assert not loaded & {"pandas", "pyarrow", "plotly", "scipy", "torch", "numba"}


def test_reading_and_comparing_needs_neither_torch_nor_a_figure():
    loaded = loaded_after("import lab, lab.compare.tables; lab.load, lab.fates, lab.collect")
    assert "pandas" in loaded
    assert not loaded & {"torch", "transformers", "plotly", "sim", "real"}


def test_every_public_name_exists_and_others_do_not():
    for name in lab.__all__:
        assert getattr(lab, name) is not None
    assert callable(lab.fates)
    with pytest.raises(AttributeError, match="no attribute 'fate_of_the_world'"):
        lab.fate_of_the_world  # noqa: B018
