"""The tests of this folder need verl: `make test-verl` runs them in .venv-verl."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("verl") else ["test_*.py"]
