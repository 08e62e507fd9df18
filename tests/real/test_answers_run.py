"""Training runs whose answers are compared by math-verify."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.trace.trace import Trace
from real import TrainConfig, train
from real.run_commands import outcome
from real.tiny import CHECKPOINT
from real.tiny import problems as tiny_problems


def tiny_run(folder: Path, answers: str, **settings: Any) -> Trace:
    """The tiny model on problems from a file, `{}` in `answers` for twice the true digit."""
    rows = [
        {"id": p.id, "prompt": p.prompt, "answer": answers.replace("{}", str(2 * int(p.answer)))}
        for p in tiny_problems(4)
    ]
    path = folder / "problems.json"
    path.write_text(json.dumps(rows))
    config = TrainConfig(
        model=str(CHECKPOINT), problems=str(path), prompt_suffix="", n_votes=8, n_samples=4,
        epochs=1, max_response_tokens=22, threads=1, **settings,
    )  # fmt: skip
    return train(config, progress=False)


@pytest.mark.parametrize(("check", "right"), [("math", True), ("strings", False)])
def test_a_run_rewards_what_its_equality_calls_equal(
    tmp_path: Path, check: str, right: bool
) -> None:
    """The tiny model says 7, the file asks for 14/2: strings differ, the answers do not."""
    trace = tiny_run(tmp_path, "{}/2", answer_check=check)
    assert (trace.evals["pass_at_1"].max() > 0) == right
    assert trace.run.extra["answer_timeouts"] == 0
    assert not any("time limit" in line for line in outcome(trace))


def test_a_run_shows_what_hit_the_time_limit(tmp_path: Path) -> None:
    trace = tiny_run(tmp_path, r"\sin(\sin(\sin(x+{})))", answer_timeout=0.004)
    given_up = trace.run.extra["answer_timeouts"]
    assert given_up > 0
    assert any(f"{given_up} comparisons hit their" in line for line in outcome(trace))
