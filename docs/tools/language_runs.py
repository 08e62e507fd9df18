"""Makes the runs of the study of docs/language-model.md, and the table of them.

python docs/tools/language_runs.py choose TASK MODEL runs/language  # the problems of the preset
python docs/tools/language_runs.py run TASK MODEL runs/language     # docs/data/language-model.csv

TASK is multiplication or letters, MODEL the folder that `guard-train import-gguf` made. The same
command goes on where an interrupted one stopped, and makes no run again that has a row.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from run_rows import add, finished, known, rows

import real.__main__
from lab.base.columns import ints, where
from lab.trace.trace import Trace, load
from real.settings.presets import STUDIES

TABLE = Path(__file__).parents[1] / "data" / "language-model.csv"
CHOOSING_SEED, N_POOL = 1000, 188
MAIN, REST = ("ttrl", "guard", "memory", "recommended"), ("guard_release", "frozen", "kl", "truth")
BLOCKS = {
    "multiplication": (
        *((seed, MAIN, (3e-5, 1e-5)) for seed in (1, 2)),
        (1, REST, (3e-5, 1e-5)),
        *((seed, MAIN, (3e-5, 1e-5)) for seed in (3, 4)),
        (2, REST, (3e-5, 1e-5)),
    ),
    "letters": tuple((seed, MAIN, (3e-5,)) for seed in (1, 2, 3, 4)),
}
"""Seed, arms and learning rates, in the order of the runs: what time does not allow is dropped from
the end."""
WORDS = (
    "banana ceremony elephant letter mississippi committee tomorrow successful balloon coffee "
    "parallel programming classroom bookkeeper engineer remember together different beginning "
    "excellent possession address happiness necessary tennessee millennium occurrence referee"
)


def main(argv: Sequence[str]) -> int:
    """Make what is missing; return the first failed command's exit code."""
    parser = argparse.ArgumentParser(description="Make the runs of the study of a language model.")
    parser.add_argument("step", choices=["choose", "run"])
    parser.add_argument("task", choices=[*BLOCKS])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    own = parser.parse_args(argv)
    return choose(own.task, own.model, own.out) if own.step == "choose" else study(own)


def choose(task: str, model: str, out: Path) -> int:
    """Write the problems of which some votes before training are right, and some are wrong."""
    pool, folder, name = out / f"{task}.json", out / f"pool-{task}", f"smollm2/{task}"
    out.mkdir(parents=True, exist_ok=True)
    problems = {"multiplication": products, "letters": letters}[task]()[:N_POOL]
    pool.write_text(json.dumps(problems))
    words = f"--preset {name} --model {model} --problems {pool} --arm ttrl --lr 1e-9 --quiet"
    words += f" --seed {CHOOSING_SEED} --epochs 1 --n-samples 2 --n-held-out 0"
    words += f" --n-problems {len(problems)}"
    if code := real.__main__.main(["run", "--out", str(folder), *words.split()]):
        return code
    before = where(load(folder).visits, epoch=0).sort_values("problem")["label_accuracy"]
    n_kept = STUDIES[name]["n_problems"] + STUDIES[name]["n_held_out"]
    chosen = [problems[i] for i in np.flatnonzero(before.between(0.1, 0.9))[:n_kept]]
    Path(STUDIES[name]["problems"]).write_text(json.dumps(chosen, indent=0) + "\n")
    return 0


def products() -> list[dict[str, Any]]:
    """Return 188 products as chats with one worked example, in random order."""
    pairs = [(a, b) for a in range(3, 30) for b in range(3, 10) if (a, b) != (3, 5)]
    random.Random(0).shuffle(pairs)
    example = ("Solve.", "3 * 5 = ?", "3 * 5 = 15. \\boxed{15}")
    return [_problem(f"{a}*{b}", example, f"{a} * {b} = ?", str(a * b)) for a, b in pairs]


def letters() -> list[dict[str, Any]]:
    """Return counts of a letter in a word as chats with one worked example, in random order."""
    question = 'How many times does the letter {} appear in "{}"?'
    example = ("Answer.", question.format("a", "panama"), "\\boxed{3}")
    pairs = [(letter, word) for word in WORDS.split() for letter in sorted(set(word))]
    random.Random(0).shuffle(pairs)
    return [
        _problem(f"{a} in {word}", example, question.format(a, word), str(word.count(a)))
        for a, word in pairs
    ]


def _problem(name: str, example: Sequence[str], asked: str, answer: str) -> dict[str, Any]:
    turns = zip(("system", "user", "assistant"), example, strict=True)
    chat = [{"role": role, "content": text} for role, text in turns]
    return {"id": name, "prompt": [*chat, {"role": "user", "content": asked}], "answer": answer}


def study(own: argparse.Namespace) -> int:
    """Compare the arms that have no row yet, seed by seed and rate by rate, and add their rows."""
    out = own.out / own.task
    for seed, lr, arms in ((s, lr, arms) for s, arms, lrs in BLOCKS[own.task] for lr in lrs):
        made = set(where(known(TABLE), task=own.task, lr=lr, seed=seed)["arm"])
        if not (left := [arm for arm in arms if arm not in made]):
            continue
        words = f"compare --preset smollm2/{own.task} --model {own.model} --seeds {seed} --jobs 1"
        words += f" --lrs {lr:g} --quiet --out {out} --arms {' '.join(left)}"
        if code := real.__main__.main(words.split()):
            return code
        add_finished(TABLE, out, own.task)
    return 0


def add_finished(table: Path, folder: Path, task: str) -> None:
    """Add the rows of finished runs below a folder to a table."""
    add(table, pd.concat([described(f).assign(task=task) for f in finished([folder])]))


def described(folder: Path) -> pd.DataFrame:
    """Return the row of `run_rows`, and what a language model's run tells beside it."""
    trace = load(folder)
    last = int(ints(trace.visits, "epoch").max())
    by_epoch = trace.visits.groupby("epoch")
    curves = {
        name: " ".join(f"{value:.4f}" for value in by_epoch[column].mean())
        for name, column in (("accuracy_by_visit", "label_accuracy"), ("flips_by_visit", "flipped"))
    }
    evals = {
        f"{name}_{when}": 100 * trace.evals[name].iloc[place]
        for name in ("pass_at_16", "held_out_pass_at_1", "strict_pass_at_1", "flexible_pass_at_1")
        for when, place in (("start", 0), ("final", -1))
    }
    before, end = (where(trace.visits, epoch=epoch) for epoch in (0, last))
    unread = [100 * (v["n_unparseable"].sum() / v["n_votes"].sum()) for v in (before, end)]
    agreed = (end["match_rate"] >= 0.9) & ~end["label_correct"]
    return rows([folder]).assign(
        arm=trace.run.arm,
        **evals,
        unread_start=unread[0],
        unread_final=unread[1],
        false_consensus=100 * agreed.mean(),
        leak=100 * leak(trace, last),
        **curves,
    )


def leak(trace: Trace, epoch: int) -> float:
    """Return the share of an epoch's votes on answers that nobody gave before training."""
    assert trace.votes is not None
    before = where(trace.votes, epoch=0)[["problem", "answer"]]
    after = where(trace.votes, epoch=epoch).merge(before, how="left", indicator=True)
    return float(after.loc[after["_merge"] == "left_only", "count"].sum() / after["count"].sum())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
