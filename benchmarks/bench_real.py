"""Time of a training step by phase, and what the guard adds to it and saves.

python benchmarks/bench_real.py [--epochs E] [--rounds N]
python benchmarks/bench_real.py --model MODEL [--dtype bfloat16] [--epochs E]

Three targets on the embedded tiny task, one CPU thread: the guard's bookkeeping stays below 0.5 %
of a step, the minority loss adds at most 2 % to an update, and skipping saves at least 0.9 of the
skipped share of the update. Updates are timed in turn on the same groups, in CPU seconds.

With MODEL, a folder such as docs/language-model.md makes, the phases are those of a step of this
model: 8 products with 16 responses of at most 24 tokens each. The update's share is held against a
large product of matrices in the same process. Compare numbers of one machine and one day alone.
"""

from __future__ import annotations

import argparse
import os
import time
import timeit
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from lab.base.arms import arm
from real import TrainConfig
from real.run import batches, prepare
from real.settings.presets import preset
from real.settings.seeds import Stream, torch_generator
from real.trainer import prime, train_batch
from real.update.optimizer import PolicyOptimizer
from real.update.packing import Group, unpaid

PHASES = ("rollout", "grade", "guard", "update")
PROBLEMS, SKIPPED, SIZE = 8, 2, 2048


def peak(dtype: torch.dtype) -> float:
    """Operations per second of a product of large matrices."""
    left, right = torch.ones(2, SIZE, SIZE, dtype=dtype)
    return 2 * SIZE**3 / min(timeit.repeat(lambda: left @ right, time.process_time, number=1))


def where_time_goes(config: TrainConfig) -> None:
    """Print the seconds of a step by phase, and what share of the machine the update reaches."""
    run = prepare(config.settled())
    prime(run)
    step, taken = run.optimizer.step, []
    run.optimizer.step = lambda groups: taken.append(step(groups)) or taken[-1]
    start = os.times()
    rows = [train_batch(run, batch, None)[1] for batch in batches(run.config, len(run.prompts))]
    end, steps = os.times(), pd.DataFrame(rows)
    user, system = end.user - start.user, end.system - start.system
    seconds = steps[[f"seconds_{phase}" for phase in PHASES]]
    print(f"  {user / len(steps):.3f} CPU s a step, {system / len(steps):.3f} s of the system")
    for phase, mean in zip(PHASES, seconds.mean(), strict=True):
        print(f"  {phase:8s} {mean:8.3f} s {mean / seconds.mean().sum():6.1%}")
    # The median step: one interrupted step would count a hundred times.
    shares = steps["seconds_guard"] / seconds.sum(axis=1)
    print(f"  guard bookkeeping, median step {shares.median():.2%} (limit 0.5 %)")
    flops = run.token_flops * sum(one.n_inputs for one in taken)
    share = flops / steps["seconds_update"].sum() / peak(run.policy.model.dtype)
    print(f"  update   {share:.0%} of this machine's products of large matrices")


def one_batch() -> tuple[list[Group], PolicyOptimizer]:
    """Groups of one batch with a majority advantage for every response."""
    run = prepare(TrainConfig(n_problems=PROBLEMS).settled())
    config = run.config
    sampling = replace(run.sampling, temperature=1.0)
    draws = torch_generator(0, Stream.VOTES, 0)
    prompts = run.prompts.tokens
    drawn = run.engine.sample(prompts, config.n_samples, sampling, draws)
    rows = zip(prompts, drawn.tokens_PNT, drawn.logprobs_PNT, drawn.lengths_PN, strict=True)
    advantages_K = torch.linspace(-1, 1, config.n_samples)
    return [replace(unpaid(*row), majority_K=advantages_K) for row in rows], run.optimizer


def costs(rounds: int) -> None:
    """What the minority loss adds to an update, and what skipping saves; one of each a round."""
    groups, optimizer = one_batch()
    ways = {
        "plain": groups,
        "mps": [
            replace(g, majority_K=0.8 * g.majority_K, minority_K=0.2 * g.majority_K) for g in groups
        ],
        "rcsu": [replace(g, dropped=place < SKIPPED) for place, g in enumerate(groups)],
    }
    seconds = np.zeros((rounds, len(ways)))
    for row in seconds:
        for place, batch in enumerate(ways.values()):
            start = time.process_time()
            for group in batch:
                optimizer.step([group])
            row[place] = time.process_time() - start
    _, added, left = np.median(seconds[1:] / seconds[1:, :1], axis=0)
    saved = (1 - left) / (SKIPPED / PROBLEMS)
    print(f"MPS adds {added - 1:+.1%} to an update (limit 2 %), {rounds - 1} rounds")
    print(f"RCSU saves {saved:.2f} of the skipped share of an update (at least 0.9)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--model")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    own = parser.parse_args()
    torch.set_num_threads(1)
    if own.model is not None:
        changes = {"n_problems": PROBLEMS, "n_held_out": 0, "epochs": own.epochs}
        changes |= {"model": own.model, "dtype": own.dtype}
        where_time_goes(preset("smollm2/multiplication", **changes))
        return
    costs(own.rounds)
    for name in ("ttrl", "guard"):
        print(f"{name}, {own.epochs} epochs of 64 problems")
        where_time_goes(TrainConfig(guard=arm(name).guard, epochs=own.epochs))


if __name__ == "__main__":
    main()
