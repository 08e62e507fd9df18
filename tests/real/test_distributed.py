"""Two gloo ranks on the CPU do what one process does; one fails, and all end with its cause.

Each run is forked from a server, see `forked_ranks`.
"""

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rank_runs import TOLERANCE, assert_close, assert_frame_equal, assert_same_steps, free_port
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from lab.trace.manifest import read_manifest
from lab.trace.trace import load
from real import TrainConfig, train
from real.engines.rollouts import request_seeds, shard_requests
from real.engines.weights import named_weights
from real.model.policy import load_policy
from real.model.prepare import adapter_weights, prepare_training
from real.ranks import distributed
from real.ranks.distributed import Ranks
from real.record.checkpoint import trained_weights
from real.tiny import CHECKPOINT

# Flips at the first visit make problems sit out; five rows in passes of two leave a rank idle; the
# second batch has one problem, so that a rank has none.
CONFIG = {
    "n_problems": 9, "n_votes": 8, "n_samples": 5, "epochs": 1, "eval_every": 0,
    "max_tokens_per_microbatch": 64, "checkpoint_every": 1, "checkpoint_keep": 9,
    "guard": {"W": 1, "tau_FR": 0.0, "theta_MR": 0.0, "p_skip": 1.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def start(ranks):
    """Two ranks by default, with `CONFIG` and changes of it."""

    def run(name, world=2, do="train", fault=None, parts=(), **changes):
        return ranks(name, {**CONFIG, **changes}, world, do, fault, parts)

    return run


def pair(start, name, **changes):
    two, one = start(f"{name}-2", **changes), start(f"{name}-1", world=1, **changes)
    assert two.codes == [0, 0]
    return two, one


@pytest.fixture(scope="module")
def alone(start):
    return start("alone", world=1)


@pytest.fixture(scope="module")
def killed(start):
    return start("killed", fault={"rank": 1, "what": "kill", "call": 2})


def test_two_ranks_make_the_votes_decisions_and_update_of_one(alone, killed):
    before, after = alone.tensors(0), alone.tensors(1)
    moved = max(float((after[n] - before[n]).abs().max()) for n in after)
    assert moved > 100 * TOLERANCE
    assert_close(killed.tensors(1), after)
    assert_close(killed.tensors(1, "optimizer"), alone.tensors(1, "optimizer"))
    mine, expected = killed.trace.visits, alone.trace.visits
    assert_frame_equal(mine, expected[expected["step"] <= 1])
    assert set(mine["step"]) == {0, 1}
    for name in ("guard.safetensors", "answers.json"):
        one, two = (run.folder / "checkpoints/step-000001" / name for run in (alone, killed))
        assert one.read_bytes() == two.read_bytes()


def test_a_killed_rank_ends_the_other_with_one_line(killed):
    assert killed.codes == [1, -9]
    (said,) = killed.lines[0]
    assert said.startswith("guard-train: rank 0: guard: lost the other ranks (")
    assert said.endswith("); go on with guard-train resume")
    assert killed.trace.run.error.startswith("RanksLost: lost the other ranks (")
    assert killed.trace.run.status == "failed"


def test_one_rank_goes_on_where_two_stopped(start, alone, killed):
    resumed = start("killed", world=1, do="resume")
    assert resumed.codes == [0]
    assert_close(resumed.tensors(2), alone.tensors(2))
    assert_close(resumed.tensors(2, "optimizer"), alone.tensors(2, "optimizer"))
    for table in ("visits", "votes", "answers"):
        assert_frame_equal(getattr(resumed.trace, table), getattr(alone.trace, table))
    assert_same_steps(resumed.trace, alone.trace)


def test_a_nan_in_one_ranks_gradient_refuses_the_step_on_both(start):
    fault = {"what": "nan", "call": 3}
    two, one = (start(f"nan-{n}", world=n, fault={**fault, "rank": n - 1}) for n in (2, 1))
    assert two.codes == [0, 0]
    assert two.trace.steps["n_refused"].tolist() == [1, 0]
    assert two.trace.run.extra["refused_steps"] == 1
    assert_close(two.tensors(2), one.tensors(2))
    assert all(value.isfinite().all() for value in two.tensors(2).values())


def test_a_batch_without_gradient_leaves_no_old_weights_behind(start):
    """Its silent problems go through the model only to be compared with the engine."""
    two, one = pair(start, "silent", batch_size=1, n_samples=2, n_problems=5)
    tokens = one.trace.steps["tokens"].tolist()
    assert 0 in tokens[tokens.index(max(tokens)) :]
    for step in range(1, 6):
        assert_close(two.tensors(step), one.tensors(step))


def test_every_option_of_the_loss_and_adapters(start):
    """KL to the first model, importance weights, checkpointed layers; averaged LoRA, merged."""
    pytest.importorskip("peft")
    options = {"lora_rank": 4, "kl_coef": 0.1, "tis_cap": 2.0, "ema_decay": 0.5}
    two, one = pair(start, "options", **options, gradient_checkpointing=True, save_model=True)
    assert_close(two.tensors(2), one.tensors(2))
    assert_same_steps(two.trace, one.trace)
    merged = [load_policy(run.folder / "model", "cpu").model.state_dict() for run in (two, one)]
    assert_close(*merged)


def test_two_copies_of_the_model_make_the_update_of_one(start, alone):
    """Their state is in main memory between the steps."""
    settings = {"fsdp_size": 2, "offload_optimizer": True}
    fault = {"rank": 3, "call": 3, "what": "kill"}
    four = start("copies", world=4, fault=fault, **settings)
    assert_close(four.tensors(1), alone.tensors(1))
    files = {
        path.name: path.stat().st_size
        for path in (four.folder / "checkpoints/step-000001").glob("optimizer*")
    }
    assert sorted(files.values())[1] < 0.05 * max(files.values())  # of the second copy
    resumed = start("copies", do="resume", **settings)
    assert resumed.codes == [0, 0]
    assert_close(resumed.tensors(2), alone.tensors(2))
    assert_close(resumed.tensors(2, "optimizer"), alone.tensors(2, "optimizer"))


@pytest.mark.parametrize(("rank", "group"), [(0, 2), (4, 1)])
def test_engine_processes_get_whole_weights_or_adapters_and_their_seeds(start, group, rank):
    """A scripted engine's tokens are made of each response's seed, and of the sum of all weights.

    Or of adapters, to which it adds 1000; these come twice, the second time without the weights.
    """
    if rank:
        pytest.importorskip("peft")
    options = {"engine_tp": group, "lora_rank": rank, "engine_adapters": rank > 0}
    ended = start(f"engines-{group}-{rank}", do="sample", engine="vllm", **options)
    assert ended.codes == [0, 0]
    assert ended.lines[0] == ended.lines[1]
    tokens = np.array(json.loads(ended.lines[0][0]))
    seeds = np.array(request_seeds(torch.Generator().manual_seed(1), 9, 4))
    assert np.array_equal(tokens[:, :, 0], (seeds[:, None] + np.arange(4)) % 97)
    model = load_policy(CHECKPOINT, "cpu").model
    prepare_training(model, TrainConfig(lora_rank=rank).settled())
    values = [3 * v + 0.5 for _, v in adapter_weights(model)] if rank else []
    values = values or [v for _, v in named_weights(model)]
    total = 1000 * (rank > 0) + sum(float(value.sum()) for value in values)
    assert np.all(tokens[:, :, 1] == round(total))


def test_each_rank_writes_and_checks_its_own_shards_which_are_masters(start):
    changes = {"dtype": "bfloat16", "kl_coef": 0.1, "save_model": True}
    fault = {"rank": 1, "phase": "checkpoint", "what": "error", "call": 3}
    ended = start("shards", fault=fault, **changes)
    last, before = (ended.folder / f"checkpoints/step-00000{step}" for step in (1, 0))
    assert not last.with_name("step-000002.tmp").exists()
    sizes = {path.name: path.stat().st_size for path in last.glob("optimizer*")}
    assert set(sizes) == {f"optimizer.{rank}-of-2.safetensors" for rank in (0, 1)}
    assert max(sizes.values()) < 0.55 * sum(sizes.values())
    shard = last / "optimizer.1-of-2.safetensors"
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    resumed = start("shards", do="resume", parts=("rounded",), **changes)
    notice = f"{last}: {shard.name} is damaged; the one before it is used"
    assert resumed.lines == [[f"guard-train: notice: {notice}"], []]
    assert resumed.codes == [0, 0] and before.is_dir()
    assert resumed.trace.steps["step"].tolist() == [1, 2]
    named = dict(load_policy(CHECKPOINT, "cpu").model.named_parameters())
    for step in (0, 2):
        assert resumed.tensors(step) == {}, "weights are rounded from masters"
        masters = trained_weights(resumed.folder / f"checkpoints/step-{step:06d}")
        assert masters.keys() == named.keys()
        assert all(master.dtype == torch.float32 for master in masters.values())
    saved = load_policy(resumed.folder / "model", "cpu", "bfloat16").model.state_dict()
    assert all(torch.equal(saved[n], master.bfloat16()) for n, master in masters.items())


def test_numbers_in_the_order_of_columns_are_sent(monkeypatch):
    """As a rule of your own may give them; gloo takes rows one after the other."""
    sent = []
    monkeypatch.setattr("torch.distributed.broadcast", lambda tensor, src: sent.append(tensor))
    given = np.arange(6.0).reshape(2, 3).T
    assert np.array_equal(Ranks(rank=0, world=2).from_first(given), given)
    assert sent[1].is_contiguous() and sent[1].tolist() == given.tolist()


@pytest.mark.parametrize(("n_prompts", "n", "world"), [(8, 64, 8), (5, 4, 8), (3, 2, 2), (1, 1, 3)])
def test_every_response_is_dealt_once_and_each_prompt_to_all_ranks(n_prompts, n, world):
    parts = [shard_requests(n_prompts, n, (rank, world)) for rank in range(world)]
    assert sorted(chain(*parts)) == [(p, i) for p in range(n_prompts) for i in range(n)]
    for part in parts:
        assert part == sorted(part)
        per_prompt = np.bincount([p for p, _ in part], minlength=n_prompts)
        assert per_prompt.min() >= n // world and per_prompt.max() <= -(-n // world)
    assert max(map(len, parts)) - min(map(len, parts)) <= min(n_prompts, world)


def test_votes_sampled_during_the_update_are_the_same_on_two_ranks(start):
    two, one = pair(start, "ahead", async_level=1, parts=("beside",))
    assert two.trace.steps["staleness"].tolist() == [0, 1]
    assert_frame_equal(two.trace.visits, one.trace.visits)
    assert_close(two.tensors(2), one.tensors(2))


SMALL = {
    "n_problems": 2, "batch_size": 2, "n_votes": 4, "n_samples": 2, "epochs": 1,
    "max_response_tokens": 2, "eval_samples": 1, "checkpoint_every": 1, "save_model": True,
}  # fmt: skip
SAID = "guard-train: "
PLACES = {"load": ("start", 1), "evaluation": ("evaluation", 2), "trial": ("save", 1)}
"""Of each place the phase that the line names, and the call that fails: the model is also
evaluated before training. The first rank tries its save."""


def options(folder, **settings):
    words = ["run", "--out", str(folder), "--quiet"]
    for name, value in {**SMALL, **settings}.items():
        name = name.replace("_", "-")
        words += [f"--no-{name}" if value is False else f"--{name}"]
        words += [] if isinstance(value, bool) else [str(value)]
    return words


def torchrun(words, *places):
    command = [sys.executable, "-m", "torch.distributed.run", *places, *words]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes)


@pytest.mark.slow  # torchrun and two processes start from nothing, for which the limit has room
def test_a_hang_ends_by_the_timeout_of_the_process_group(tmp_path):
    """Torchrun then ends the rank that hangs, which says nothing."""
    fault = {"rank": 1, "phase": "update", "what": "sleep", "call": 1}
    words = [str(Path(__file__).with_name("rank_faults.py")), json.dumps(fault)]
    words += options(tmp_path / "run", rank_timeout=20, checkpoint_every=0, save_model=False)
    agent = torchrun(words, "--standalone", "--nproc-per-node", "2")
    errors = agent.communicate(timeout=200)[1]
    assert agent.returncode == 1, errors
    lines = [line for line in errors.splitlines() if line.startswith(SAID)]
    (said,) = (line for line in lines if not line.startswith(f"{SAID}notice: "))
    assert said.startswith(f"{SAID}rank 0: update: lost the other ranks (Timed out waiting 20000ms")
    assert said.endswith("with a larger rank_timeout if a rank only needs longer")
    run = read_manifest(tmp_path / "run")
    assert run.status == "failed" and "lost the other ranks" in (run.error or "")


@pytest.mark.parametrize(("rank", "place"), [(n % 2, place) for n, place in enumerate(PLACES)])
def test_an_error_of_a_rank_in_any_phase_ends_all(ranks, place, rank):
    phase, call = PLACES[place]
    fault = {"rank": rank, "phase": place, "what": "error", "call": call}
    ended = ranks(f"{place}-{rank}", SMALL, 2, fault=fault)
    assert ended.lines[rank] == [f"{SAID}rank {rank}: {phase}: fault: wanted by the test"]
    (other,) = ended.lines[1 - rank]  # nobody ends it here
    lost = ("lost", "could not meet")[: 2 - rank]  # the first rank holds what they meet through
    assert other.startswith(f"{SAID}rank {1 - rank}: ")
    assert any(f"{how} the other ranks (" in other for how in lost)
    assert ended.codes[rank] == 2 and ended.codes[1 - rank] in (1, 2)
    if phase == "start":
        assert not ended.folder.exists()
    else:
        assert read_manifest(ended.folder).status == "failed"


@pytest.mark.slow  # starts four processes from nothing
def test_two_agents_of_torchrun_make_the_visits_of_one_process(tmp_path):
    words = ["-m", "real", *options(tmp_path / "two")]
    where = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1"]
    where += ["--master-port", str(free_port()), "--node-rank"]
    agents = [torchrun(words, *where, str(node)) for node in (0, 1)]
    errors = [agent.communicate(timeout=300)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], errors
    one, two = train(TrainConfig(**SMALL), progress=False), load(tmp_path / "two")
    assert two.run.backend == "transformers on 2 x cpu" and two.run.status == "finished"
    assert_frame_equal(two.visits, one.visits)


def test_weights_widen_where_they_are_sharded(monkeypatch):
    """In main memory wide embeddings and heads of all ranks would stand side by side."""
    monkeypatch.setattr(distributed, "fully_shard", lambda *_, **__: None)
    with FakeTensorMode(), Results() as made:
        linears = (torch.nn.Linear(2, 2, dtype=torch.bfloat16) for _ in range(2))
        model = torch.nn.Sequential(*linears)
        model[1].requires_grad_(False)
        distributed.shard(model, SimpleNamespace(device_type="cuda:0"))
    assert made.count(("cuda", torch.float32)) == 2  # the frozen layer's stay as they are
    assert ("cpu", torch.float32) not in made


class Results(TorchDispatchMode, list):
    """Lists devices and precisions of all tensors that are made."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.append((result.device.type, result.dtype))
        return result
