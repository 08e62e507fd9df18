"""The tests of this folder need verl: `make test-verl` runs them in .venv-verl."""

import os
import sys
from pathlib import Path

from lab.base.errors import installed

collect_ignore_glob = [] if installed("verl") else ["test_*.py"]
sys.path.insert(0, str(Path(__file__).parent))
if not collect_ignore_glob:
    from run_verl import ENVIRONMENT

    os.environ.update({name: ENVIRONMENT[name] for name in ENVIRONMENT if name != "PYTHONPATH"})
