"""Seconds of a training step of a language model on a CPU, by phase.

python benchmarks/bench_language.py MODEL [--dtype bfloat16] [--steps N]

MODEL is a folder such as docs/language-model.md makes. A step is 8 products with 16 responses of at
most 24 tokens each. Prints CPU seconds of every phase, user and system time, and which share of the
operations per second of a large product of matrices, measured in this process, the update's
products with weights reach. Compare numbers of one machine and one day alone.
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np
import torch

from real.run import prepare
from real.settings.presets import preset
from real.settings.seeds import batches
from real.trainer import prime, train_batch

PHASES = ("rollout", "grade", "guard", "update")
SIZE, ROUNDS = 2048, 5


def peak(dtype: torch.dtype) -> float:
    """Operations per second of a product of large matrices."""
    left, right = torch.ones(2, SIZE, SIZE, dtype=dtype)
    seconds: list[float] = []
    for _ in range(ROUNDS):
        start = time.process_time()
        left @ right
        seconds.append(time.process_time() - start)
    return 2 * SIZE**3 / min(seconds)


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    changes = {"n_problems": 8, "n_held_out": 0, "epochs": options.steps, "dtype": options.dtype}
    config = preset("smollm2/multiplication", model=options.model, **changes).settled()
    torch.set_num_threads(1)
    run = prepare(config)
    prime(run)
    start, rows = os.times(), []
    for batch in batches(config, len(run.prompts)):
        rows.append(train_batch(run, batch, None)[1])
    end = os.times()
    for phase in PHASES:
        print(f"{phase:8s} {np.mean([row[f'seconds_{phase}'] for row in rows]):6.2f} s a step")
    user, system = end.user - start.user, end.system - start.system
    print(
        f"CPU      {user / len(rows):6.2f} s a step, and {system / len(rows):.2f} s of the system"
    )
    prompt = np.mean([len(tokens) for tokens in run.prompts.tokens])
    trained = sum(row["tokens"] + prompt * (8 - row["n_uniform"]) for row in rows)
    seconds = sum(row["seconds_update"] for row in rows)
    share = run.token_flops * trained / seconds / peak(getattr(torch, options.dtype))
    print(f"update   {share:.0%} of this machine's products of matrices in {options.dtype}")


if __name__ == "__main__":
    main()
