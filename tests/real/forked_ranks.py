"""Runs of one or several ranks, as torchrun would start them; a server that tests talk to in lines.

The server imports torch once and forks, so a run costs no import. A request is {"do": "train",
"resume" or "sample", "world": n, "port": n, "folder": ..., "config": {...}, "log": ...,
"fault": [{"rank": r, "what": ..., "call": n}, ...], "parts": [...]}. Rank r prints into LOG.r.
Models are computed with in double precision, unless the settings name another. "sample" prints
what scripted engine processes sample, see `scripted_child`.

Faults: "kill" and "error" come with the n-th batch that the rank reads answers of, or with the
n-th call of what `PHASES` names for "phase", "nan" with its n-th gradient; "sleep" and "stuck" make
the rank sleep, the latter without an ear for signals; "change" kills it, as by kill -9, just before
the n-th time that it changes its folder's files, or writes the number of these changes into the
file "counted" without an n.

Parts that are replaced: "silent": the engine gives no entropies, so that the trainer's own pass
must. "heard": verdicts are printed, and how many groups of new solutions follow them. "reword": a
rewording is a rule's, where the sum of the characters that the model wrote is no multiple of 3:
what that writes itself is no problem. "backends": the process group has one for each kind of
device, as with GPUs, and its name is printed. "hasty": a rank has one second to end by itself.
"nodes": each rank is on a node of its own. "apart": it also is in a folder of its own.
"bytes": after the first optimizer step the bytes of the
weights, and of masters, gradients and moments, that this rank holds are printed.

The answer is the list of exit codes, minus the signal where one ended the rank.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

LIMIT = 300.0
"""Seconds after which ranks that still run are killed: no test waits for ever."""


def on_call(module: Any, name: str, number: int, before: Any, after: Any) -> None:
    whole, calls = getattr(module, name), 0

    def wrapped(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            before(*arguments)
        result = whole(*arguments, **named)
        if calls == number:
            after(*arguments)
        return result

    setattr(module, name, wrapped)


def spoil(scorer: Any, *_: Any) -> None:
    """A NaN in this rank's part of one gradient."""
    grad = next(p.grad for p in scorer.parameters() if p.grad is not None)
    getattr(grad, "_local_tensor", grad).view(-1)[0] = float("nan")


def nothing(*_: Any) -> None:
    pass


def in_double() -> None:
    import real.run

    load = real.run.load_policy

    def load_double(*arguments: Any) -> Any:
        policy = load(*arguments)
        policy.model.double()
        return policy

    real.run.load_policy = load_double


PHASES = {
    "rollout": ("real.engines.wrappers", "RankedEngine", "sample"),
    "vote": ("real.vote.decide", "Supervisor", "decide"),
    "update": ("real.update.optimizer", "PolicyOptimizer", "step"),
    "evaluation": ("real.record.evaluation", "Evaluator", "log"),
    "checkpoint": ("real.record.checkpoint", "Checkpoints", "save"),
}


def plant(fault: dict[str, Any], folder: str) -> None:
    import real.update.optimizer
    from lab.errors import UserError

    def fail(*_: Any) -> None:
        if fault["what"] == "error":
            raise UserError("fault: wanted by the test")
        if fault["what"] == "stuck":  # no handler runs in the main thread
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        if fault["what"] in ("sleep", "stuck"):
            time.sleep(LIMIT)
        os.kill(os.getpid(), signal.SIGKILL)

    if fault["what"] == "change":
        count_changes(folder, fault["call"], fault["counted"])
    elif fault["what"] == "nan":
        on_call(real.update.optimizer, "backward", fault["call"], nothing, spoil)
    else:
        module, kind, name = PHASES[fault.get("phase", "vote")]
        on_call(getattr(importlib.import_module(module), kind), name, fault["call"], fail, nothing)


CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "open"}


def count_changes(folder: str, wanted: int | None, counted: str) -> None:
    """Count the changes of files in the folder, and die before the wanted one."""
    count = 0

    def hook(event: str, words: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in CHANGES or folder not in str(words[0]):
            return
        if event == "open" and not words[2] & (os.O_WRONLY | os.O_RDWR):
            return
        count += 1
        if count == wanted:
            os.kill(os.getpid(), signal.SIGKILL)
        if wanted is None:
            with open(counted, "w") as file:
                file.write(str(count))

    sys.addaudithook(hook)


def silent() -> None:
    from real.engines.transformers_engine import TransformersEngine

    kind: Any = TransformersEngine
    sample = kind.sample

    def without_stats(*arguments: Any) -> Any:
        return replace(sample(*arguments), entropy_PV=None, certainty_PV=None)

    kind.sample = without_stats


def heard() -> None:
    from real.vote.judge import Judge

    groups = Judge.groups

    def printed(self: Judge, *arguments: Any) -> Any:
        made = groups(self, *arguments)
        asked = self.asked
        assert asked is not None
        again = [sum(len(g.lengths_K) > 1 for g in row) for row in made]
        print("verdicts", asked.verdicts_PQ.tolist(), "again", again)
        return made

    Judge.groups = printed


def reword() -> None:
    from real.tiny.rewording import reworded
    from real.vote.second import Paraphrases

    kind: Any = Paraphrases
    ask = kind._ask

    def usable(self: Any) -> list[str | None]:
        pairs = zip(self.parts.prompts.problems, ask(self), strict=True)
        return [reworded(p.prompt) if sum(map(ord, text or "")) % 3 else None for p, text in pairs]

    kind._ask = usable


def backends() -> None:
    import torch.distributed as dist

    start = dist.init_process_group

    def both(_: str, **options: Any) -> None:
        start("cpu:gloo,cuda:gloo", **options)
        print(dist.get_backend())

    dist.init_process_group = both


def hasty() -> None:
    import real.ranks.failure

    real.ranks.failure.GRACE_SECONDS = 1.0


def print_bytes() -> None:
    from held_bytes import held_bytes

    from real.update.optimizer import PolicyOptimizer

    kind: Any = PolicyOptimizer
    step = kind.step

    def then_printed(self: Any, *arguments: Any) -> Any:
        done = step(self, *arguments)
        print(json.dumps(held_bytes(self)))
        return done

    kind.step = then_printed


def nodes() -> None:
    import real.ranks.failure

    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    real.ranks.failure._machine = lambda: os.environ["RANK"]


def apart() -> None:
    import real.ranks.nodes

    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    real.ranks.nodes.SEEN_SECONDS = 0.5


PARTS: dict[str, Callable[[], None]] = {
    "silent": silent,
    "heard": heard,
    "reword": reword,
    "backends": backends,
    "hasty": hasty,
    "nodes": nodes,
    "apart": apart,
    "bytes": print_bytes,
}


def sample_scripted(config: Any) -> None:
    import torch

    import real.engines.make
    from real.engines.child_engine import ChildEngine
    from real.engines.rollouts import Sampling
    from real.ranks.distributed import joined_ranks
    from real.run import prepare

    command = (sys.executable, os.path.join(os.path.dirname(__file__), "scripted_child.py"))
    real.engines.make._child = lambda *a: ChildEngine({}, 60.0, ranks=a[3], command=command)
    with joined_ranks(config.device, config.rank_timeout) as ranks:
        run = prepare(config.settled(), ranks)
        with closing(run.engine):
            run.engine.update_weights(run.policy.model, version=3)
            generator = torch.Generator().manual_seed(1)
            found = run.engine.sample(run.prompts.tokens, 4, Sampling(2), generator)
            ranks.wait()
        print(json.dumps(found.of_version(3).tokens_PNT.tolist()))


def child(request: dict[str, Any], rank: int) -> int:
    from lab.cli import run_cli
    from lab.settings import from_values
    from real.settings.config import TrainConfig
    from real.trainer import resume, train

    world = str(request["world"])
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world}
    os.environ |= {"LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = str(request["port"])
    if "dtype" not in request["config"]:
        in_double()
    for fault in request["fault"]:
        if fault["rank"] == rank:
            plant(fault, request["folder"])
    for name in request["parts"]:
        PARTS[name]()
    if "apart" in request["parts"]:
        place = os.path.join(request["folder"], str(rank))
        os.makedirs(place)
        os.chdir(place)
        request["folder"] = "run"

    class Command:
        def run(self) -> None:
            config = from_values(request["config"], TrainConfig, "request")
            if request["do"] == "sample":
                sample_scripted(config)
            elif request["do"] == "train":
                train(config, request["folder"], progress=False)
            else:
                resume(request["folder"], progress=False)

    import lab.cli

    lab.cli._parse = lambda *_: Command()  # the shared door turns errors into lines and codes
    return run_cli("guard-train", {}, [])


def start(request: dict[str, Any], rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        log = os.open(f"{request['log']}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = child(request, rank)
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait_for(pids: list[int]) -> list[int]:
    """Exit codes; those still running at the limit are killed."""
    deadline = time.monotonic() + LIMIT
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        for pid in set(pids) - codes.keys():
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return [codes[pid] for pid in pids]


def serve() -> None:
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

    import real.trainer

    with suppress(ImportError):
        import peft  # noqa: F401
    assert real.trainer.resume
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        pids = [start(request, rank) for rank in range(request["world"])]
        print(json.dumps(wait_for(pids)), flush=True)


if __name__ == "__main__":
    serve()
