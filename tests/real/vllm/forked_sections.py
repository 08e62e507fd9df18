"""`benchmarks/gpu/prove.py` for dry runs: vLLM is imported once, for all sections and engines."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parents[1] / "benchmarks" / "gpu")]

import prove  # noqa: E402
from forked_programs import VLLM, forked  # noqa: E402

from real.engines import child_engine, vllm_host  # noqa: E402

run = prove._run


def run_forked(*arguments: Any) -> None:
    """Run a section that forks its engines' processes."""
    with forked(child_engine):
        run(*arguments)


if __name__ == "__main__":
    vllm_host._import_vllm()
    for name in VLLM:
        importlib.import_module(name)
    prove._run = run_forked
    sys.exit(prove.main(sys.argv[1:]))
