"""Several nodes, on one machine: agents of torchrun, and ranks that see different folders."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rank_runs import Start, assert_frame_equal, free_port

from lab.settings import to_values
from lab.trace.trace import load
from real import TrainConfig, train

SMALL = TrainConfig(
    n_problems=3, batch_size=3, n_votes=4, n_samples=2, epochs=1, eval_samples=1, eval_pass_at=()
)


def test_a_node_that_does_not_see_the_run_folder_is_named(ranks: Start) -> None:
    ended = ranks("apart", {}, 2, parts=("apart",))
    words = (
        f"run folder run: node {socket.gethostname()} cannot see it; put it on a disk that all "
        "nodes share, under one path"
    )
    said = [line for lines in ended.lines for line in lines]
    assert said in ([f"guard-train: rank {rank}: {words}"] for rank in (0, 1))
    assert sorted(ended.codes) in ([1, 2], [2, 2])
    assert [path.name for path in ended.folder.rglob("*")] == ["0", "1"]


def test_a_failure_is_told_on_every_node(ranks: Start) -> None:
    fault = {"rank": 1, "what": "error", "call": 1}
    small = {k: v for k, v in to_values(SMALL).items() if v != to_values(TrainConfig())[k]}
    ended = ranks("nodes", small, 2, fault=fault, parts=("nodes",))
    assert ended.lines == 2 * [["guard-train: rank 1: guard: fault: wanted by the test"]]
    assert ended.codes == [1, 2] and ended.seconds < 20


@pytest.mark.slow  # starts four processes from nothing
def test_two_agents_of_torchrun_make_the_visits_of_one_process(tmp_path: Path) -> None:
    words = ["--out", str(tmp_path / "two"), "--quiet"]
    for name in ("n_problems", "batch_size", "n_votes", "n_samples", "epochs", "eval_samples"):
        words += [f"--{name.replace('_', '-')}", str(to_values(SMALL)[name])]
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    torchrun += ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1"]
    torchrun += ["--master-port", str(free_port())]
    agents = [
        subprocess.Popen(
            [*torchrun, "--node-rank", str(node), "-m", "real", "run", *words],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in (0, 1)
    ]
    errors = [agent.communicate(timeout=300)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], errors
    one, two = train(replace(SMALL, eval_pass_at=None), progress=False), load(tmp_path / "two")
    assert two.run.backend == "transformers on 2 x cpu" and two.run.status == "finished"
    assert_frame_equal(two.visits, one.visits)
