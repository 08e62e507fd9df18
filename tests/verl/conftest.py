"""The tests of this folder need verl: `make test-verl` runs them in .venv-verl."""

import importlib.util
import os
import sys
from pathlib import Path

collect_ignore_glob = [] if importlib.util.find_spec("verl") else ["test_*.py"]
sys.path.insert(0, str(Path(__file__).parent))
if not collect_ignore_glob:
    from run_verl import ENVIRONMENT

    os.environ.update({name: ENVIRONMENT[name] for name in ENVIRONMENT if name != "PYTHONPATH"})
