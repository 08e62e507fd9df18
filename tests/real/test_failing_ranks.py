"""One rank fails, and all end, with one line of the cause; torchrun starts them, or a fork does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rank_runs import Start, assert_frame_equal, free_port

from lab.trace.manifest import read_manifest
from lab.trace.trace import load
from real import TrainConfig, train

SMALL: dict[str, Any] = {
    "n_problems": 2,
    "batch_size": 2,
    "n_votes": 4,
    "n_samples": 2,
    "epochs": 1,
    "max_response_tokens": 2,
    "eval_samples": 1,
    "checkpoint_every": 1,
    "save_model": True,
}
SAID = "guard-train: "
PLACES = {"load": ("start", 1), "evaluation": ("evaluation", 2), "save": ("save", 1)}
"""Of each place in the order of a run, the phase that the line names, and the call that fails:
shards are also written before training, and the model is evaluated."""


def options(folder: Path, **settings: Any) -> list[str]:
    words = ["run", "--out", str(folder), "--quiet"]
    for name, value in {**SMALL, **settings}.items():
        name = name.replace("_", "-")
        words += [f"--no-{name}" if value is False else f"--{name}"]
        words += [] if isinstance(value, bool) else [str(value)]
    return words


def torchrun(words: list[str], *places: str) -> subprocess.Popen[str]:
    """An agent of torchrun."""
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *places, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def failed(folder: Path, fault: dict[str, Any], **settings: Any) -> list[str]:
    """What guard-train says in two ranks that torchrun ends for a fault of one."""
    program = [str(Path(__file__).with_name("rank_faults.py")), json.dumps(fault)]
    settings |= {"checkpoint_every": 0, "save_model": False}
    agent = torchrun(program + options(folder, **settings), "--standalone", "--nproc-per-node", "2")
    words = agent.communicate(timeout=200)[1]
    assert agent.returncode == 1, words
    lines = [line for line in words.splitlines() if line.startswith(SAID)]
    return [line for line in lines if not line.startswith(f"{SAID}notice: ")]


@pytest.mark.slow  # torchrun and two processes start from nothing
def test_an_error_of_a_rank_ends_torchrun_with_its_cause(tmp_path: Path) -> None:
    fault = {"rank": 1, "phase": "update", "what": "error", "call": 1}
    said = failed(tmp_path / "run", fault)
    assert said == [f"{SAID}rank 1: update: fault: wanted by the test"]
    assert read_manifest(tmp_path / "run").status in ("failed", "interrupted")


@pytest.mark.slow  # as above, and the limit must leave room for slow starts
def test_a_hang_ends_by_the_timeout_of_the_process_group(tmp_path: Path) -> None:
    fault = {"rank": 1, "phase": "update", "what": "sleep", "call": 1}
    (said,) = failed(tmp_path / "run", fault, rank_timeout=20)
    assert said.startswith(f"{SAID}rank 0: update: lost the other ranks (Timed out waiting 20000ms")
    assert said.endswith("with a larger rank_timeout if a rank only needs longer")
    run = read_manifest(tmp_path / "run")
    assert run.status == "failed" and "lost the other ranks" in (run.error or "")


@pytest.mark.parametrize(("rank", "place"), [(n % 2, place) for n, place in enumerate(PLACES)])
def test_an_error_of_a_rank_in_any_phase_ends_all(ranks: Start, place: str, rank: int) -> None:
    phase, call = PLACES[place]
    fault = {"rank": rank, "phase": place, "what": "error", "call": call}
    ended = ranks(f"{place}-{rank}", SMALL, 2, fault=fault)
    assert ended.lines[rank] == [f"{SAID}rank {rank}: {phase}: fault: wanted by the test"]
    (other,) = ended.lines[1 - rank]  # nobody ends it here
    assert other.startswith(f"{SAID}rank {1 - rank}: ") and "lost the other ranks (" in other
    assert ended.codes[rank] == 2 and ended.codes[1 - rank] == 1
    if phase == "start":
        assert not ended.folder.exists()
    else:
        assert read_manifest(ended.folder).status == "failed"


@pytest.mark.slow  # starts four processes from nothing
def test_two_agents_of_torchrun_make_the_visits_of_one_process(tmp_path: Path) -> None:
    words = ["-m", "real", *options(tmp_path / "two")]
    where = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1"]
    where += ["--master-port", str(free_port()), "--node-rank"]
    agents = [torchrun(words, *where, str(node)) for node in (0, 1)]
    errors = [agent.communicate(timeout=300)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], errors
    one, two = train(TrainConfig(**SMALL), progress=False), load(tmp_path / "two")
    assert two.run.backend == "transformers on 2 x cpu" and two.run.status == "finished"
    assert_frame_equal(two.visits, one.visits)
