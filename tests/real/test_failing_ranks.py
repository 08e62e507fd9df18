"""One rank fails, and all end soon, with one sentence that names it and the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from rank_runs import Ended, Start

from lab.trace.manifest import read_manifest
from real.ranks import others

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
    "rank_timeout": 60.0,
}
SENTENCE = "rank {}: {}: fault: wanted by the test"
PLACES = {
    "load": ("start", 1),
    "engine": ("start", 1),
    "first votes": ("votes before training", 1),
    "sampling": ("rollout", 1),
    "vote": ("guard", 1),
    "update": ("update", 1),
    "weights": ("sync", 2),
    "evaluation": ("evaluation", 2),
    "shards": ("checkpoint", 3),
    "save": ("save", 1),
}
"""Of each place in the order of a run, the phase that the sentence names, and the call that fails:
weights and shards are also handed over and written before training, and the model is evaluated."""


def failed(
    ranks: Start,
    name: str,
    *faults: dict[str, Any],
    world: int = 2,
    parts: tuple[str, ...] = (),
    **changes: Any,
) -> Ended:
    """A run with faults, in the first call where they name no other, and changes of settings."""
    planted = [{"call": 1, **fault} for fault in faults]
    return ranks(name, {**SMALL, **changes}, world, fault=planted, parts=parts)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", PLACES)
def test_an_error_of_any_rank_in_any_phase_ends_all(ranks: Start, place: str, rank: int) -> None:
    phase, call = PLACES[place]
    fault = {"rank": rank, "phase": place, "what": "error", "call": call}
    ended = failed(ranks, f"{place}-{rank}", fault)
    sentence = SENTENCE.format(rank, phase)
    assert ended.lines[rank] == [f"guard-train: {sentence}"]
    assert ended.lines[1 - rank] == []
    assert ended.codes[rank] == 2 and ended.codes[1 - rank] == 1
    assert ended.seconds < 30
    if phase == "start":
        assert not ended.folder.exists()
        return
    run = read_manifest(ended.folder)
    said = f"RankFailed: {sentence}" if rank else "UserError: fault: wanted by the test"
    assert (run.status, run.error) == ("failed", said)


def test_a_rank_in_long_work_is_interrupted(ranks: Start) -> None:
    """It would learn of the failure only in its next collective."""
    faults = {"rank": 0, "phase": "vote", "what": "sleep"}, {"rank": 1, "what": "error"}
    ended = failed(ranks, "long", *faults)
    assert ended.lines == [[], [f"guard-train: {SENTENCE.format(1, 'guard')}"]]
    assert ended.codes == [1, 2] and ended.seconds < 20
    assert read_manifest(ended.folder).error == f"RankFailed: {SENTENCE.format(1, 'guard')}"


def test_a_stuck_rank_is_ended_from_outside_its_main_thread(ranks: Start) -> None:
    """As in a NCCL kernel, no signal handler runs there."""
    faults = {"rank": 0, "phase": "vote", "what": "stuck"}, {"rank": 1, "what": "error"}
    ended = failed(ranks, "stuck", *faults, parts=("hasty",))
    assert ended.lines == [[], [f"guard-train: {SENTENCE.format(1, 'guard')}"]]
    assert ended.codes == [1, 2] and ended.seconds < 15


def test_the_rank_that_holds_the_store_dies(ranks: Start) -> None:
    ended = failed(ranks, "first", {"rank": 0, "what": "kill"}, world=3)
    died = "guard-train: rank 0: its process has died; go on with guard-train resume"
    assert ended.lines == [[], [died], []]
    assert ended.codes == [-9, 1, 1] and ended.seconds < 20


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank_is_ended_with_all_others(ranks: Start, rank: int) -> None:
    fault = {"rank": rank, "what": "stop", "phase": "update"}
    ended = failed(ranks, f"stopped-{rank}", fault, parts=("impatient",))
    stopped = f"rank {rank}: its process was stopped 2 seconds ago"
    said = [f"guard-train: {stopped}; go on with guard-train resume"]
    assert ended.lines[1 - rank] == said and ended.lines[rank] == []
    assert ended.codes[rank] == -9 and ended.codes[1 - rank] == 1
    assert ended.seconds < 30


HANGS = (
    "guard-train: rank {}: it has kept the others waiting for 2 seconds "
    "(rank_timeout, raise it for longer work)"
)


@pytest.mark.parametrize(("what", "rank"), [("loop", 0), ("lock", 1)])
def test_a_hanging_rank_is_named_with_the_place(ranks: Start, what: str, rank: int) -> None:
    hurry = {"rank": rank, "what": "hurry", "phase": "rollout"}
    ended = failed(ranks, what, hurry, {"rank": rank, "what": what, "phase": "update"})
    assert len(ended.lines[rank]) == 1 and ended.lines[1 - rank] == []
    said = f"{HANGS.format(rank)}, in "
    assert ended.lines[rank][0].startswith(said) and ".py:" in ended.lines[rank][0]
    assert ended.codes == [1, 1] and ended.seconds < 30
    assert "kept the others waiting" in (read_manifest(ended.folder).error or "")


def test_a_rank_that_hangs_without_letting_go_is_ended_by_the_others(ranks: Start) -> None:
    hurry = {"rank": 0, "what": "hurry", "phase": "rollout"}
    ended = failed(ranks, "seize", hurry, {"rank": 1, "what": "seize", "phase": "update"})
    assert ended.lines == [[f"{HANGS.format(1)}; go on with guard-train resume"], []]
    assert ended.codes == [1, -9] and ended.seconds < 30


def test_a_rank_that_computes_for_long_without_letting_go_is_waited_for(ranks: Start) -> None:
    fault = {"rank": 1, "what": "hold", "phase": "update"}
    ended = failed(ranks, "holding", fault, parts=("impatient", "brief"))
    assert ended.codes == [0, 0] and ended.lines == [[], []]


def test_a_rank_whose_engine_gives_signs_of_life_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = dist.HashStore()
    store.set("guard-train/process/1", "1 elsewhere")
    store.set("guard-train/begun/1", "7 0")
    rank = others.Others(store, 0, 2, patience=2.0)
    rank.stop()  # its thread; asked here
    monkeypatch.setattr(others, "_collectives", lambda: 3)

    def seconds_waited(signs: int) -> float:
        for look in range(20):
            rank.n_signs += signs if look % 5 == 0 else 0
            rank._exchange()
            rank.look()
        return rank._waited_for(0)

    assert seconds_waited(signs=1) < 2 and not rank.hangs_here
    assert seconds_waited(signs=0) > 2 and rank.hangs_here


@pytest.mark.parametrize("rank", [0, 1])
def test_a_silent_machine_ends_the_others(ranks: Start, rank: int) -> None:
    """The first one also holds the store, which is silent then."""
    fault = {"rank": rank, "what": "stop", "phase": "update"}
    ended = failed(ranks, f"far-{rank}", fault, parts=("impatient", "hasty", "nodes"))
    silent = f"rank {rank}: its machine has been silent for 2 seconds"
    assert ended.lines[1 - rank] == [f"guard-train: {silent}; go on with guard-train resume"]
    assert ended.codes[1 - rank] == 1 and ended.codes[rank] == -6


def test_errors_of_all_ranks_are_told_once(ranks: Start) -> None:
    faults = [{"rank": rank, "phase": "update", "what": "error"} for rank in (0, 1)]
    ended = failed(ranks, "both", *faults)
    said = [line for lines in ended.lines for line in lines]
    assert said in ([f"guard-train: {SENTENCE.format(rank, 'update')}"] for rank in (0, 1))
    assert read_manifest(ended.folder).status == "failed"


def test_several_backends_end_as_one(ranks: Start) -> None:
    """A group's backend is then none of their names, but all of them in one string."""
    fault = {"rank": 1, "phase": "update", "what": "error"}
    ended = failed(ranks, "backends", fault, parts=("backends",))
    name = "cpu:gloo,cuda:gloo"
    assert ended.lines == [[name], [name, f"guard-train: {SENTENCE.format(1, 'update')}"]]
    assert ended.codes == [1, 2] and ended.seconds < 20


def test_each_rank_writes_and_checks_its_own_shards(ranks: Start) -> None:
    changes = {"epochs": 2, "dtype": "bfloat16"}
    fault = {"rank": 1, "phase": "checkpoint", "what": "error", "call": 3}
    ended = failed(ranks, "shards", fault, **changes)
    last, before = (ended.folder / f"checkpoints/step-00000{step}" for step in (1, 0))
    assert not last.with_name("step-000002.tmp").exists()
    assert sorted(p.name for p in last.glob("optimizer*")) == [
        f"optimizer.{rank}-of-2.safetensors" for rank in (0, 1)
    ]
    sizes = [p.stat().st_size for p in last.glob("optimizer*")]
    assert max(sizes) < 0.55 * sum(sizes)
    shard = last / "optimizer.1-of-2.safetensors"
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    resumed = ranks("shards", {**SMALL, **changes}, do="resume")
    notice = f"{last}: {shard.name} is damaged; the one before it is used"
    assert resumed.lines == [[f"guard-train: notice: {notice}"], []]
    assert resumed.codes == [0, 0] and before.is_dir() is False
    assert resumed.trace.steps["step"].tolist() == [1, 2]
