"""The tests of this folder need verl and vLLM: `make test-verl-vllm` runs them."""

import importlib.util

_HAS_BOTH = all(importlib.util.find_spec(name) for name in ("verl", "vllm"))
collect_ignore_glob = [] if _HAS_BOTH else ["test_*.py"]
