"""Time of a training step by phase, and what the guard adds to it and saves.

python benchmarks/bench_real.py [--epochs E] [--rounds N]

Three targets on the embedded tiny task, one CPU thread: the guard's bookkeeping stays below 0.5 %
of a step, the minority loss adds at most 2 % to an update, and skipping saves at least 0.9 of the
skipped share of the update. Updates are timed in turn on the same groups, in CPU seconds.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from lab.base.arms import arm
from real import TrainConfig
from real.run import batches, prepare
from real.settings.seeds import Stream, torch_generator
from real.trainer import prime, train_batch
from real.update.optimizer import PolicyOptimizer
from real.update.packing import Group, unpaid

PHASES = ("rollout", "grade", "guard", "update")
PROBLEMS, SKIPPED = 8, 2


def where_time_goes(config: TrainConfig) -> None:
    """Print the seconds of a step by phase, and the guard's share."""
    run = prepare(config.settled())
    prime(run)
    rows = [train_batch(run, batch, None)[1] for batch in batches(run.config, len(run.prompts))]
    seconds = pd.DataFrame(rows)[[f"seconds_{phase}" for phase in PHASES]]
    for phase, mean in zip(PHASES, seconds.mean(), strict=True):
        print(f"  {phase:8s} {mean:8.3f} s {mean / seconds.mean().sum():6.1%}")
    # The median step: one interrupted step would count a hundred times.
    shares = seconds["seconds_guard"] / seconds.sum(axis=1)
    print(f"  guard bookkeeping, median step {shares.median():.2%} (limit 0.5 %)")


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
    streams = [{"majority_K": 0.8 * g.majority_K, "minority_K": 0.2 * g.majority_K} for g in groups]
    minority = [replace(group, **both) for group, both in zip(groups, streams, strict=True)]
    skipping = [replace(g, dropped=place < SKIPPED) for place, g in enumerate(groups)]
    seconds = np.zeros((rounds, 3))
    for row in seconds:
        for place, batch in enumerate((groups, minority, skipping)):
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
    own = parser.parse_args()
    torch.set_num_threads(1)
    costs(own.rounds)
    for name in ("ttrl", "guard"):
        print(f"{name}, {own.epochs} epochs of 64 problems")
        where_time_goes(TrainConfig(guard=arm(name).guard, epochs=own.epochs))


if __name__ == "__main__":
    main()
