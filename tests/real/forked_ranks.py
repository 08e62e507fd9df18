"""Runs of one or several ranks, as torchrun would start them; a server that tests talk to in lines.

The server imports torch, loads a model once and forks, so a run costs neither. A request is
{"do": "train", "resume" or "sample", "world": n, "port": n, "folder": ..., "config": {...},
"log": ..., "fault": {"rank": r, "what": ..., "call": n} or null, "parts": [...]}.
Rank r prints into LOG.r. Models are computed with in double precision, unless the settings name
another. "sample" prints what scripted engine processes sample, see `scripted_child`.

Faults and parts are those of `rank_faults`.

The answer is the list of exit codes, minus the signal where one ended the rank.
"""

import json
import os
import signal
import sys
import time
from contextlib import closing, suppress

from rank_faults import LIMIT, PARTS, in_double, plant


def sample_scripted(config):
    import torch
    from scripted_child import COMMAND

    import real.engines.make
    from real.engines.child_engine import ChildEngine
    from real.engines.rollouts import Sampling
    from real.ranks.distributed import joined_ranks
    from real.run import prepare

    real.engines.make.make_child = lambda *a: ChildEngine(
        {}, 60.0, a[2]._replace(dtype=torch.float32), command=COMMAND
    )
    with joined_ranks(config.device, config.rank_timeout) as ranks:
        run = prepare(config.settled(), ranks)
        with closing(run.engine):
            if config.engine_adapters:
                run.engine.update_weights(run.policy.model, version=2)
                for parameter in run.optimizer.parameters:
                    parameter.data.mul_(3).add_(0.5)
            run.engine.update_weights(run.policy.model, version=3)
            generator = torch.Generator().manual_seed(1)
            found = run.engine.sample(run.prompts.tokens, 4, Sampling(2), generator)
            ranks.wait()
        print(json.dumps(found.of_version(3).tokens_PNT.tolist()))


def child(request, rank):
    from lab.base.settings import from_values
    from lab.cli import run_cli
    from real.settings.config import TrainConfig
    from real.trainer import resume, train

    world = str(request["world"])
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world}
    os.environ |= {"LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = str(request["port"])
    if "dtype" not in request["config"]:
        in_double()
    fault = request["fault"]
    if fault is not None and fault["rank"] == rank:
        plant(fault, request["folder"])
    for name in request["parts"]:
        PARTS[name]()

    class Command:
        def run(self):
            config = from_values(request["config"], TrainConfig, "request")
            if request["do"] == "sample":
                sample_scripted(config)
            elif request["do"] == "train":
                train(config, request["folder"], progress=False)
            else:
                resume(request["folder"], progress=False)

    import lab.cli

    lab.cli.parse = lambda *_: Command()  # the shared door turns errors into lines and codes
    return run_cli("guard-train", {}, [])


def start(request, rank):
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


def wait_for(pids):
    """Exit codes; those still running at the limit are killed."""
    deadline = time.monotonic() + LIMIT
    codes = {}
    while len(codes) < len(pids):
        for pid in set(pids) - codes.keys():
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return [codes[pid] for pid in pids]


def serve():
    import pyarrow.pandas_compat  # noqa: F401

    import lab.cli
    import real.trainer
    from real.model.policy import load_policy
    from real.tiny import CHECKPOINT

    with suppress(ImportError):
        import peft  # noqa: F401
    assert lab.cli and real.trainer.resume
    load_policy(CHECKPOINT, "cpu")  # transformers compiles many patterns before the first one
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        pids = [start(request, rank) for rank in range(request["world"])]
        print(json.dumps(wait_for(pids)), flush=True)


if __name__ == "__main__":
    serve()
