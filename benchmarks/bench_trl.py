"""A step of this trainer and one of TRL's GRPOTrainer on the same work: `make bench-trl`.

The work is the embedded tiny task on one CPU thread in float32: 8 prompts x 32 samples of 22
tokens, then eight updates of 32 rows. Both trainers run in turn in this process; a step's time is
the CPU time between the ends of two steps, so loading and evaluation are outside. TRL is in an
environment of its own, since the trainer does not need it.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections import Counter
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from guard_core import GuardConfig
from real import TrainConfig, train
from real.answers import classes
from real.model.policy import load_policy
from real.tiny import ARITHMETIC, CHECKPOINT

PROMPTS, SAMPLES, TOKENS, LR, TEMPERATURE = 8, 32, 22, 1e-4, 0.6


class Marks(TrainerCallback):
    """CPU time at the end of every batch of eight updates."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Note the time where a batch ends."""
        if state.global_step % PROMPTS == 0:
            self.times.append(time.process_time())


def majority_reward(completions: list[str], **others: Any) -> list[float]:
    """1 for the answers that most samples of their prompt gave, as TTRL rewards."""
    rewards: list[float] = []
    for start in range(0, len(completions), SAMPLES):
        ids, _ = classes(completions[start : start + SAMPLES])
        votes = Counter(int(i) for i in ids if i >= 0)
        label = votes.most_common(1)[0][0] if votes else None
        rewards += [float(int(i) == label) for i in ids]
    return rewards


def trl_steps(n_steps: int, folder: str) -> list[float]:
    """CPU seconds of every step but the first."""
    policy = load_policy(CHECKPOINT, "cpu")
    policy.model.train()
    config = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=SAMPLES,
        steps_per_generation=PROMPTS,
        num_generations=SAMPLES,
        max_completion_length=TOKENS,
        temperature=TEMPERATURE,
        beta=0.0,
        learning_rate=LR,
        max_steps=n_steps * PROMPTS,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    marks = Marks()
    trainer = GRPOTrainer(
        model=policy.model,
        reward_funcs=majority_reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [p.prompt for p in ARITHMETIC.problems(64)]}),
        processing_class=policy.tokenizer,
        callbacks=[marks],
    )
    trainer.train()
    return differences(marks.times)


def our_steps(n_steps: int, guard: GuardConfig) -> list[float]:
    """CPU seconds of every step but the first."""
    times: list[float] = []
    n_problems = n_steps * PROMPTS
    config = TrainConfig(
        guard=guard,
        n_problems=n_problems,
        n_votes=SAMPLES,
        n_samples=SAMPLES,
        batch_size=PROMPTS,
        epochs=1,
        lr=LR,
        temperature=TEMPERATURE,
        eval_every=0,
        eval_samples=1,
    )
    train(config, progress=lambda done: times.append(time.process_time()))
    return differences(times)


def differences(times: list[float]) -> list[float]:
    return [end - start for start, end in itertools.pairwise(times)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=9, help="steps a round, the first not counted")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ratios: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            theirs = statistics.median(trl_steps(options.steps, folder))
        for name, guard in (("TTRL", GuardConfig.off()), ("guard", GuardConfig.paper())):
            ours = statistics.median(our_steps(options.steps, guard))
            ratios.setdefault(name, []).append(ours / theirs)
            print(f"TRL {theirs:.3f} s a step, {name} {ours:.3f} s, ratio {ours / theirs:.3f}")
    for name, found in ratios.items():
        print(f"{name}: median ratio {statistics.median(found):.3f}, rounds {len(found)}")


if __name__ == "__main__":
    main()
