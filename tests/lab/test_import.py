import subprocess
import sys


def test_reading_and_comparing_needs_neither_torch_nor_a_figure():
    code = "import sys, lab, lab.compare.tables; lab.load, lab.fates, lab.collect"
    code += "; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "pandas" in loaded and not loaded & {"torch", "transformers", "plotly", "sim", "real"}
