import subprocess
import sys

import pytest

import lab


def test_reading_and_comparing_needs_neither_torch_nor_a_figure():
    code = "import sys, lab, lab.compare.tables; lab.load, lab.fates, lab.collect"
    code += "; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "pandas" in loaded and not loaded & {"torch", "transformers", "plotly", "sim", "real"}


def test_every_public_name_exists_and_others_do_not():
    assert all(getattr(lab, name) is not None for name in lab.__all__)
    with pytest.raises(AttributeError, match="no attribute 'fate_of_the_world'"):
        lab.fate_of_the_world  # noqa: B018
