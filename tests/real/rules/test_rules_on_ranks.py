"""Two gloo ranks train under a rule as one process does: observations, decisions, weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_runs import (
    TOLERANCE,
    Ended,
    Start,
    assert_close,
    assert_frame_equal,
    assert_same_steps,
)
from torch import Generator

import real.vote.observe as observing
from lab.arms import arm
from lab.settings import from_values, to_values
from real.run import prepare
from real.settings.config import TrainConfig
from real.tiny import ARITHMETIC, CHECKPOINT
from real.vote.sample import Responses

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
}
LAST = 4
"""Batches."""


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
    rows = [{"prompt": p.prompt, "answer": p.answer} for p in ARITHMETIC.problems(4)]
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


def assert_same(two: Ended, one: Ended) -> None:
    """Votes, labels, sums over rewards, and weights; all but the clock and mere rounding."""
    assert two.codes == [0, 0] and one.codes == [0], (two.lines, one.lines)
    mine, expected = two.trace, one.trace
    for table in ("visits", "votes", "answers", "evals"):
        assert_frame_equal(getattr(mine, table), getattr(expected, table))
    assert len(expected.steps) == LAST
    assert_same_steps(mine, expected)
    first, last = one.tensors(0), one.tensors(LAST)
    assert_close(two.tensors(LAST), last)
    assert max(float((last[n] - first[n]).abs().max()) for n in last) > 100 * TOLERANCE


def test_two_ranks_are_one(ranks: Start) -> None:
    config = of_arm("scrl+guard")
    one, two = (ranks(f"scrl-{world}", config, world, parts=("silent",)) for world in (1, 2))
    assert_same(two, one)
    assert any(one.trace.steps["n_skipped"].tolist())


def test_a_model_rewords_its_problems(ranks: Start, tmp_path: Path) -> None:
    """All ranks draw the rewordings together, and keep the same ones."""
    config = of_arm("self_harmony", **language_model(tmp_path))
    one, two = (ranks(f"harmony-{world}", config, world, parts=("reword",)) for world in (1, 2))
    assert_same(two, one)
    texts = [json.loads((run.folder / "paraphrases.json").read_text()) for run in (one, two)]
    assert texts[0] == texts[1] and set(map(type, texts[0]["paraphrases"])) == {str, type(None)}


def test_the_verifier_is_asked_and_trained_by_all(ranks: Start) -> None:
    asked = {"verifications": 2, "regenerations": 2}
    options: dict[str, Any] = {"tiny_verifies": True, "temperature": 0.8, "seed": 2}
    config = of_arm("coverrl", rule_options=asked, **options)
    one, two = (ranks(f"coverrl-{world}", config, world, parts=("heard",)) for world in (1, 2))
    assert_same(two, one)
    heard = [
        [line for line in lines if line.startswith("verdicts")]
        for lines in (*one.lines, *two.lines)
    ]
    assert heard[0] == heard[1] == heard[2] and len(heard[0]) == LAST
    again = [line.partition("again")[2].strip(" [],0") for line in heard[0]]
    assert any(again)


def test_a_teacher_goes_on_with_more_ranks(ranks: Start) -> None:
    taught = ranks("taught", TEACHER, 1)
    fault = {"rank": 0, "what": "kill", "call": 3}
    assert ranks("stopped", TEACHER, 1, fault=fault).codes == [-9]
    two = ranks("stopped", TEACHER, do="resume")
    assert_same(two, taught)
    assert_close(two.tensors(LAST, "rule"), taught.tensors(LAST, "rule"))


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
