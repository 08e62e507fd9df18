"""Time of a training step by phase, and what the guard adds to it and saves.

python benchmarks/bench_real.py [--epochs E] [--rounds N]

Three targets on the embedded tiny task, one CPU thread: the guard's bookkeeping stays below 0.5 %
of a step, the minority loss adds at most 2 % to an update, and skipping saves at least 0.9 of the
skipped share of the update. Updates are timed in turn on the same groups, in CPU seconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import torch

from lab.base.arms import arm
from real import TrainConfig, train
from real.run import prepare
from real.settings.seeds import Stream, torch_generator
from real.update.optimizer import PolicyOptimizer
from real.update.packing import Group

PHASES = ("rollout", "grade", "guard", "update")
PROBLEMS, SKIPPED = 8, 2


def where_time_goes(epochs: int) -> None:
    for name in ("ttrl", "guard"):
        cpu = time.process_time()
        steps = train(TrainConfig(guard=arm(name).guard, epochs=epochs), progress=False).steps
        cpu = time.process_time() - cpu
        spent = {phase: float(steps[f"seconds_{phase}"].sum()) for phase in PHASES}
        total = sum(spent.values())
        print(f"{name}: {cpu:.1f} s of one core, {epochs} epochs of 64 problems")
        for phase, seconds in spent.items():
            print(f"  {phase:8s} {seconds:6.2f} s  {seconds / total:6.1%}")
        # The median step: one interrupted step would count a hundred times.
        shares = steps["seconds_guard"] / steps[[f"seconds_{p}" for p in PHASES]].sum(axis=1)
        print(f"  guard bookkeeping, median step {shares.median():.2%} (limit 0.5 %)")


def one_batch() -> tuple[list[Group], PolicyOptimizer]:
    """Groups of one batch with a majority advantage for every response."""
    run = prepare(TrainConfig(n_problems=PROBLEMS).settled())
    config = run.config
    sampling = replace(run.sampling, temperature=1.0)
    draws = torch_generator(0, Stream.VOTES, 0)
    rollouts = run.engine.sample(run.prompts.tokens, config.n_samples, sampling, draws)
    advantages_K = torch.linspace(-1, 1, config.n_samples)
    groups = [
        Group(
            prompt_L=torch.tensor(run.prompts.tokens[p]),
            tokens_KT=rollouts.tokens_PNT[p],
            old_KT=rollouts.logprobs_PNT[p],
            lengths_K=rollouts.lengths_PN[p],
            majority_K=advantages_K,
            minority_K=torch.zeros_like(advantages_K),
        )
        for p in range(PROBLEMS)
    ]
    return groups, run.optimizer


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
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, batch in ways.items():
            start = time.process_time()
            for group in batch:
                optimizer.step([group])
            seconds[name].append(time.process_time() - start)
    added, left = (
        statistics.median(
            b / a for a, b in zip(seconds["plain"][1:], seconds[name][1:], strict=True)
        )
        for name in ("mps", "rcsu")
    )
    saved = (1 - left) / (SKIPPED / PROBLEMS)
    print(f"MPS adds {added - 1:+.1%} to an update (limit 2 %), {rounds - 1} rounds")
    print(f"RCSU saves {saved:.2f} of the skipped share of an update (at least 0.9)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=31)
    options = parser.parse_args()
    torch.set_num_threads(1)
    costs(options.rounds)
    where_time_goes(options.epochs)


if __name__ == "__main__":
    main()
