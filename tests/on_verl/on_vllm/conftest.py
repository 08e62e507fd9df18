"""The tests of this folder need verl and vLLM: `make test-verl-vllm` runs them."""

from lab.base.errors import installed

collect_ignore_glob = [] if installed("verl") and installed("vllm") else ["test_*.py"]
