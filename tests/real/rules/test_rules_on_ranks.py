"""Two gloo ranks train under a rule as one process does: what they see, decide, and end with."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Generator

import lab
import real.vote.observe as observing
from lab.arms import arm
from lab.settings import from_values, to_values
from real.ranks.tensor_files import read_tensors
from real.run import prepare
from real.settings.config import TrainConfig
from real.tiny import CHECKPOINT, problems
from real.vote.read import Responses

TOLERANCE = 1e-6
"""In double precision, as in `test_distributed`."""

# Four problems by three: a rank has none in the second batch. Short passes leave ranks idle.
SETTINGS: dict[str, Any] = {
    "n_problems": 4,
    "batch_size": 3,
    "n_votes": 8,
    "n_samples": 5,
    "epochs": 2,
    "eval_every": 0,
    "eval_samples": 1,
    "micro_tokens": 64,
    "checkpoint_every": 4,
    "temperature": 1.5,
    "rank_timeout": 20.0,
}
LAST = 4
"""Batches."""
# Typed too narrowly by pandas' stubs: columns and rows of a frame are frames here.
assert_frame_equal: Any = pd.testing.assert_frame_equal


@dataclass
class Ended:
    """A run of some ranks."""

    folder: Path
    codes: list[int]
    lines: list[str]
    """Output of its ranks."""

    def tensors(self, step: int = LAST, kind: str = "model") -> dict[str, torch.Tensor]:
        return read_tensors(self.folder / f"checkpoints/step-{step:06d}/{kind}.safetensors")

    @property
    def trace(self) -> lab.Trace:
        return lab.load(self.folder)


Start = Callable[..., Ended]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    place = tmp_path_factory.mktemp("ranks")
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("ranked_rules.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin and server.stdout

    def run(
        name: str,
        world: int,
        config: dict[str, Any],
        do: str = "train",
        fault: Any = None,
        parts: tuple[str, ...] = (),
    ) -> Ended:
        assert server.stdin and server.stdout
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        request = {
            "do": do,
            "world": world,
            "port": port,
            "folder": str(place / name),
            "config": config,
            "fault": fault,
            "log": str(place / f"{name}-{do}-{world}.log"),
            "parts": parts,
        }
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        codes = json.loads(server.stdout.readline())
        logs = [Path(f"{request['log']}.{rank}") for rank in range(world)]
        return Ended(place / name, codes, [log.read_text() for log in logs])

    run("nothing", 0, {})  # the server is ready
    yield run
    server.stdin.close()
    server.wait(30)


def of_arm(name: str, **changes: Any) -> dict[str, Any]:
    """Settings of an arm that may be guarded; with a guard that acts at the first visit."""
    chosen = arm(name)
    acting = {"W": 1, "tau_FR": 0.0, "theta_MR": 0.0, "p_skip": 1.0, "skip_share": 0.5}
    guard = to_values(chosen.guard) | acting
    return {**SETTINGS, "rule": chosen.rule, "guard": guard, **changes}


TEACHER = of_arm("co_rewarding_2", checkpoint_every=1, checkpoint_keep=9)


def language_model(folder: Path) -> dict[str, Any]:
    """Settings that take the tiny model for any other, so that it is asked in its own words."""
    path = folder / "problems.json"
    rows = [{"prompt": p.prompt, "answer": p.answer} for p in problems(4)]
    path.write_text(json.dumps(rows))
    return {
        "problems": str(path),
        "model": str(CHECKPOINT),
        "n_problems": None,
        "prompt_suffix": "",
        "answer_check": "strings",
        "max_response_tokens": 22,
        "lr": 3e-3,
        "save_model": False,
    }


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=TOLERANCE, msg=name)


def assert_same(two: Ended, one: Ended) -> None:
    """Votes, labels, sums over rewards, and weights; all but the clock and mere rounding."""
    assert two.codes == [0, 0] and one.codes == [0], (two.lines, one.lines)
    mine, expected = two.trace, one.trace
    for table in ("visits", "votes", "answers", "evals"):
        assert_frame_equal(getattr(mine, table), getattr(expected, table))
    measured = [
        n for n in expected.steps if not n.startswith(("seconds", "mismatch")) and "_per_" not in n
    ]
    assert len(expected.steps) == LAST
    assert_frame_equal(mine.steps[measured], expected.steps[measured], rtol=1e-4)
    assert_close(two.tensors(), one.tensors())
    first, last = one.tensors(0), one.tensors()
    assert max(float((last[n] - first[n]).abs().max()) for n in last) > 100 * TOLERANCE


@pytest.mark.parametrize(
    ("name", "parts", "changes"),
    [
        ("rent", (), {}),
        ("intuitor", ("silent",), {}),
        ("scrl+guard", ("silent",), {}),
        ("one_shot_em", (), {}),
        ("co_rewarding_1+guard", (), {}),
        ("co_rewarding_2", (), {"lora_rank": 4}),
    ],
)
def test_two_ranks_are_one(
    start: Start, name: str, parts: tuple[str, ...], changes: dict[str, Any]
) -> None:
    config = of_arm(name, **changes)
    one, two = (start(f"{name}-{world}", world, config, parts=parts) for world in (1, 2))
    assert_same(two, one)
    assert ("guard" in name) == any(one.trace.steps["n_skipped"].tolist())


def test_a_model_rewords_its_problems(start: Start, tmp_path: Path) -> None:
    """All ranks draw the rewordings together, and keep the same ones."""
    config = of_arm("self_harmony", **language_model(tmp_path))
    one, two = (start(f"harmony-{world}", world, config, parts=("reword",)) for world in (1, 2))
    assert_same(two, one)
    texts = [json.loads((run.folder / "paraphrases.json").read_text()) for run in (one, two)]
    assert texts[0] == texts[1] and set(map(type, texts[0]["paraphrases"])) == {str, type(None)}


def test_the_verifier_is_asked_and_trained_by_all(start: Start) -> None:
    asked = {"verifications": 2, "regenerations": 2}
    options: dict[str, Any] = {"tiny_verifies": True, "temperature": 0.8, "seed": 2}
    config = of_arm("coverrl", rule_options=asked, **options)
    one, two = (start(f"coverrl-{world}", world, config, parts=("heard",)) for world in (1, 2))
    assert_same(two, one)
    heard = [
        [line for line in lines.splitlines() if line.startswith("verdicts")]
        for lines in (*one.lines, *two.lines)
    ]
    assert heard[0] == heard[1] == heard[2] and len(heard[0]) == LAST
    again = [line.partition("again")[2].strip(" [],0") for line in heard[0]]
    assert any(again)


@pytest.fixture(scope="module")
def taught(start: Start) -> Ended:
    """One process with a teacher, and a checkpoint after every batch."""
    return start("taught", 1, TEACHER)


def test_the_teacher_of_two_ranks(start: Start, taught: Ended) -> None:
    two = start("taught-2", 2, TEACHER)
    assert_same(two, taught)
    assert_close(two.tensors(kind="rule"), taught.tensors(kind="rule"))


def test_a_teacher_goes_on_with_more_ranks(start: Start, taught: Ended) -> None:
    fault = {"rank": 0, "what": "kill", "call": 3}
    assert start("stopped", 1, TEACHER, fault=fault).codes == [-9]
    two = start("stopped", 2, TEACHER, do="resume")
    assert_same(two, taught)
    assert_close(two.tensors(kind="rule"), taught.tensors(kind="rule"))


def test_ranks_share_the_pass_for_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it each would run all passes, and get the same numbers."""
    shares: list[Any] = []

    def counted(*arguments: Any) -> Any:
        shares.append(arguments[-1])
        return torch.zeros(1, 2), torch.zeros(1, 2)

    monkeypatch.setattr(observing, "token_stats", counted)
    config = from_values(of_arm("rent"), TrainConfig, "test").settled()
    run = prepare(config)
    rollouts = run.engine.sample([[3, 4]], 2, replace(run.sampling, stats=False), Generator())
    observer = observing.Observer(run.rule, config, run.prompts, run.optimizer.scorer, (1, 2))
    fields = observer.observe(Responses([0], [[3, 4]], rollouts, run.policy))
    assert shares == [(1, 2)] and fields["entropy"].shape == (1, 2)
