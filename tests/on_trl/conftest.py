"""The tests of this folder need TRL: `make test-trl` runs them in .venv-trl."""

import sys
from pathlib import Path

from lab.base.errors import installed

collect_ignore_glob = [] if installed("trl") else ["test_*.py"]
sys.path.insert(0, str(Path(__file__).parent))
