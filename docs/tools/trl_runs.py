"""Trains the tiny task by guard-train and, with the same settings, in TRL with the guard.

python docs/tools/trl_runs.py runs/trl

Adds one row a finished run to docs/data/trl-tiny.csv; a run that has a row is not made again.
"""

import math
import shutil
import sys
from itertools import product
from pathlib import Path

from datasets import Dataset
from run_rows import DATA, add, known, rows
from transformers import AutoModelForCausalLM, AutoTokenizer

import real.__main__
from lab.base.columns import where
from real.settings.config import TrainConfig
from real.tiny import CHECKPOINT, problems
from real.trl import GuardGRPOConfig, GuardGRPOTrainer

FILE = DATA / "trl-tiny.csv"
OWN = TrainConfig(n_votes=16, n_samples=8, epochs=6).settled()


def in_trl(out: Path, arm: str, seed: int) -> None:
    """Make one run in TRL, whose cosine comes one step later, and which decays no norms."""
    data = Dataset.from_list([{"prompt": p.prompt, "answer": p.answer} for p in problems(64)])
    n_updates = len(data) // OWN.mini_batch * OWN.epochs
    args = GuardGRPOConfig(
        f"{out}-trl", guard=arm, guard_settings={"answer_check": "strings"}, seed=seed,
        guard_folder=str(out), num_generations=OWN.n_votes, n_samples=OWN.n_samples,
        temperature=OWN.temperature, max_completion_length=OWN.max_response_tokens,
        learning_rate=OWN.lr, lr_scheduler_type="cosine", weight_decay=OWN.weight_decay,
        warmup_steps=math.ceil(OWN.warmup_ratio * n_updates), num_train_epochs=OWN.epochs,
        per_device_train_batch_size=OWN.mini_batch * OWN.n_votes, disable_tqdm=True,
        steps_per_generation=OWN.batch_size // OWN.mini_batch, gradient_checkpointing=False,
        use_cpu=True, bf16=False, report_to="none", save_strategy="no", eval_on_start=True,
        eval_strategy="steps", eval_steps=n_updates, num_generations_eval=16,
        per_device_eval_batch_size=128,
    )  # fmt: skip
    model, tokens = (c.from_pretrained(CHECKPOINT) for c in (AutoModelForCausalLM, AutoTokenizer))
    GuardGRPOTrainer(model, args, data, data, processing_class=tokens).train()


def main(folder: Path) -> None:
    """Make the runs that are missing, seed by seed."""
    sizes = f"--n-votes {OWN.n_votes} --n-samples {OWN.n_samples} --epochs {OWN.epochs} --quiet"
    for seed, arm, name in product(range(3), ("ttrl", "guard", "memory"), ("guard-train", "TRL")):
        out = folder / f"{name}-{arm}-{seed}"
        if len(where(known(FILE), task=name, arm=arm, seed=seed)):
            continue
        shutil.rmtree(out, ignore_errors=True)  # of a run that was stopped
        if name == "TRL":
            in_trl(out, arm, seed)
        elif real.__main__.main(f"run --arm {arm} --seed {seed} {sizes} --out {out}".split()):
            sys.exit(f"{out}: failed")
        add(FILE, rows([out]).assign(task=name))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
