"""Short runs, some stopped on the way or held elsewhere, and comparison of traces to the bit."""

import json
import subprocess
import sys
from contextlib import contextmanager

import pandas as pd

from lab.trace.manifest import LOCK_NAME
from real.settings.config import TrainConfig
from real.tiny import ARITHMETIC, CHECKPOINT

SMALL = TrainConfig(
    n_problems=4, batch_size=2, n_votes=8, n_samples=4, epochs=2, eval_samples=2, checkpoint_every=1
)
"""Four batches, with a checkpoint after each."""
QUICK = TrainConfig(n_problems=8, n_votes=8, n_samples=4, epochs=2, eval_every=0, lr=1e-3)
"""Settings of a short comparison."""
WORDS = ["--n-problems", "8", "--n-votes", "8", "--n-samples", "4", "--eval-every", "0"]
"""The same for a command line, apart from the length and the rate."""


def of_file(folder):
    """Settings of a run on four problems of the tiny task, as on those of any file."""
    rows = [{"id": p.id, "prompt": p.prompt, "answer": p.answer} for p in ARITHMETIC.problems(4)]
    (folder / "set.json").write_text(json.dumps(rows))
    return {
        "problems": str(folder / "set.json"), "model": str(CHECKPOINT), "prompt_suffix": "",
        "max_response_tokens": 22, "lr": 3e-4, "threads": 1, "save_model": False,
    }  # fmt: skip


def run_folder(folder, arm, seed):
    return folder / arm / f"seed-{seed}"


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a+")
fcntl.lockf(file, getattr(fcntl, sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(place, kind="LOCK_EX"):
    """Let another process hold a run's folder, or lock a file, until it is killed at the end."""
    file = place / LOCK_NAME if place.is_dir() else place
    command, pipe = [sys.executable, "-c", HOLD, str(file), kind], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout.readline() == b"held\n"
        yield
        holder.kill()


class Stopped(Exception):
    """Raised by the function that is called with a run's progress."""


def stop_at(share):
    def report(done):
        if done >= share:
            raise Stopped(f"stopped at {done}")

    return report


def timeless(trace, without=()):
    return trace.steps[[n for n in trace.steps if "second" not in n and n not in without]]


def check_same(first, second):
    for table in ("visits", "evals", "votes", "answers"):
        pair = getattr(first, table), getattr(second, table)
        pd.testing.assert_frame_equal(*pair, check_exact=True)
    assert not first.answers.empty
    pd.testing.assert_frame_equal(timeless(first), timeless(second), check_exact=True)
