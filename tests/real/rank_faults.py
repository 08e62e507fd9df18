"""Faults of ranks, and parts of a run that are replaced in them.

Faults: "kill" and "error" come with the n-th batch that the rank reads answers of, or with the
n-th call of what `PHASES` names for "phase", "nan" with its n-th gradient; "sleep" lets the rank
hang; "change" kills it, as by kill -9, just before the n-th time that it changes its folder's
files, or writes the number of these changes into the file "counted" without an n.

Parts that are replaced: "silent": the engine gives no entropies, so that the trainer's own pass
must. "bytes": after the first optimizer step the bytes of the weights, and of masters, gradients
and moments, that this rank holds are printed. "beside": engines have weights of their own.
"rounded": the mismatch is one that rounding to bfloat16 explains, whatever this processor's is.

As a program, under torchrun: plants the fault that the first argument names, in JSON, and goes on
as guard-train with the others.
"""

import json
import os
import pkgutil
import signal
import sys
import time
from dataclasses import replace

LIMIT = 300.0
"""Seconds after which ranks that still run are killed: no test waits for ever."""


def on_call(module, name, number, before, after):
    whole, calls = getattr(module, name), 0

    def wrapped(*arguments, **named):
        nonlocal calls
        calls += 1
        if calls == number:
            before(*arguments)
        result = whole(*arguments, **named)
        if calls == number:
            after(*arguments)
        return result

    setattr(module, name, wrapped)


def spoil(scorer, *_):
    """A NaN in this rank's part of one gradient."""
    grad = next(p.grad for p in scorer.parameters() if p.grad is not None)
    getattr(grad, "_local_tensor", grad).view(-1)[0] = float("nan")


def in_double():
    import real.run

    load = real.run.load_policy

    def load_double(*arguments):
        policy = load(*arguments)
        policy.model.double()
        return policy

    real.run.load_policy = load_double


PHASES = {
    "load": "real.run:load_policy",
    "vote": "real.vote.decide:Supervisor.decide",
    "update": "real.update.optimizer:PolicyOptimizer.step",
    "evaluation": "real.record.evaluation:evaluate",
    "checkpoint": "real.record.checkpoint:Checkpoints.save",
    "trial": "real.record.trial:load_policy",
}


def plant(fault, folder):
    import real.update.optimizer
    from lab.base.errors import UserError

    def fail(*_):
        if fault["what"] == "error":
            raise UserError("fault: wanted by the test")
        if fault["what"] == "sleep":
            time.sleep(LIMIT)
        os.kill(os.getpid(), signal.SIGKILL)

    if fault["what"] == "change":
        count_changes(folder, fault["call"], fault["counted"])
    elif fault["what"] == "nan":
        on_call(real.update.optimizer, "backward", fault["call"], lambda *_: None, spoil)
    else:
        module, _, place = PHASES[fault.get("phase", "vote")].partition(":")
        kind, _, name = place.rpartition(".")
        owner = pkgutil.resolve_name(f"{module}:{kind}")
        on_call(owner, name, fault["call"], fail, lambda *_: None)


CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "open"}


def count_changes(folder, wanted, counted):
    """Count the changes of files in the folder, and die before the wanted one."""
    count = 0

    def hook(event, words):
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


def silent():
    from real.engines.transformers_engine import TransformersEngine

    sample = TransformersEngine.sample

    def without_stats(*arguments):
        return replace(sample(*arguments), entropy_PV=None, certainty_PV=None)

    TransformersEngine.sample = without_stats


def print_bytes():
    from held_bytes import held_bytes

    from real.update.optimizer import PolicyOptimizer

    step = PolicyOptimizer.step

    def then_printed(self, *arguments):
        before = held_bytes(self)["weights"]
        done = step(self, *arguments)
        held = held_bytes(self)
        assert held["weights"] == before
        print(json.dumps(held))
        return done

    PolicyOptimizer.step = then_printed


def beside():
    from copied_engine import copied_on_ranks

    import real.run

    real.run.make_engine = copied_on_ranks


def rounded():
    import real.update.correction

    real.update.correction.mismatch_kl = lambda *_: 1e-3


PARTS = {"silent": silent, "bytes": print_bytes, "beside": beside, "rounded": rounded}


if __name__ == "__main__":
    planted = json.loads(sys.argv.pop(1))
    if planted["rank"] == int(os.environ["RANK"]):
        plant(planted, "")
    from real.__main__ import main

    sys.exit(main())
