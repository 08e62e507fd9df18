"""Makes the real runs of a step of docs/protocol.md, and the table of them that docs/data keeps.

python docs/tools/protocol_runs.py choice runs/choice
python docs/tools/protocol_runs.py confirm runs/arithmetic
python docs/tools/protocol_runs.py confirm runs/collatz --tiny-task collatz
python docs/tools/protocol_runs.py confirm runs/verifying --tiny-verifies --sets 7 --lrs 1.5e-4 3e-4

The same command goes on where an interrupted one stopped. Options that are not its own are settings
of `guard-train`. The table is `table.csv` in the folder.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import real.cli
from lab.columns import finite_mean, floats, select
from lab.files import whole
from lab.trace.manifest import FILE_NAME, read_manifest
from lab.trace.trace import Trace, load

DATA = Path(__file__).parents[1] / "data"
PROTOCOL: dict[str, dict[str, Any]] = tomllib.loads((DATA / "protocol.toml").read_text())
TABLE = "table.csv"
SETTINGS = ["--eval-every", "12", "--no-keep-votes", "--checkpoint-every", "0"]
"""Of all runs; none changes what is trained."""


def main(argv: Sequence[str]) -> int:
    """Make the runs that are missing and the table; return the first failed command's exit code."""
    parser = argparse.ArgumentParser(description="Make the runs of a step of the protocol.")
    parser.add_argument("step", choices=["choice", "confirm"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", nargs="+", default=list(PROTOCOL["confirm"]["seeds"]))
    parser.add_argument("--lrs", nargs="+", default=PROTOCOL["confirm"]["lrs"])
    own, settings = parser.parse_known_args(argv)
    made = choice(own.out) if own.step == "choice" else confirm(own.out, own.sets, own.lrs)
    for words in made:
        if code := real.cli.main([*words, *SETTINGS, *settings]):
            return code
    with whole(own.out / TABLE) as file:
        table(own.out).to_csv(file, index=False, float_format="%.6g")
    print(own.out / TABLE)
    return 0


def choice(out: Path) -> Iterator[list[str]]:
    """Yield the commands of step 2: every candidate at every learning rate, seed by seed."""
    chosen, step = PROTOCOL["chosen"], PROTOCOL["choice"]
    for seed in step["seeds"]:
        for lr in chosen["lrs"]:
            for name, words in step["candidates"].items():
                folder = out / f"lr-{lr:g}" / name / f"seed-{seed}"
                cell = ["--lr", f"{lr:g}", "--seed", str(seed), *words.split()]
                if (folder / FILE_NAME).is_file():
                    yield ["resume", str(folder)]
                else:
                    yield ["run", "--out", str(folder), *cell]


def confirm(out: Path, sets: Sequence[str], lrs: Sequence[Any]) -> Iterator[list[str]]:
    """Yield the commands of step 4, one comparison per problem set."""
    step = PROTOCOL["confirm"]
    for problem_seed in sets:
        words = ["compare", "--out", str(out / f"set-{problem_seed}"), "--jobs", "2"]
        words += ["--problem-seed", problem_seed, "--arms", *step["arms"]]
        words += ["--lrs", *map(str, lrs), "--seeds", *map(str, step["seeds"][problem_seed])]
        yield words


def table(out: Path) -> pd.DataFrame:
    """Return one row per finished run below a folder, in order of problem set, rate, seed, arm.

    Columns: task, problem_seed, arm (the name of its folder), lr, seed, pass_start and pass_final,
    maj_final, label_final (%), update_norm (mean over optimizer steps), and `right_start` and
    `right_final`: for every problem 1 or 0, whether the majority before training and the label of
    the last visit are right.
    """
    folders = [path.parent for path in sorted(out.rglob(FILE_NAME))]
    finished = [path for path in folders if read_manifest(path).status == "finished"]
    found = pd.DataFrame([_row(folder, load(folder)) for folder in finished])
    return found.sort_values(["task", "problem_seed", "lr", "seed", "arm"], ignore_index=True)


def _row(folder: Path, trace: Trace) -> dict[str, Any]:
    config = trace.run.config
    last = trace.evals.iloc[-1]
    task = "verifying" if config["tiny_verifies"] else config.get("tiny_task", "arithmetic")
    start, end = (_right(trace.visits, epoch) for epoch in (0, config["epochs"]))
    return {
        "task": task,
        "problem_seed": config.get("problem_seed", 0),
        "arm": folder.parent.name,
        "lr": config["lr"],
        "seed": config["seed"],
        "pass_start": 100 * trace.evals["pass_at_1"].iloc[0],
        "pass_final": 100 * last["pass_at_1"],
        "maj_final": 100 * last["maj_accuracy"],
        "label_final": 100 * end.mean(),
        "update_norm": finite_mean(trace.steps, "update_norm"),
        "right_start": _bits(start),
        "right_final": _bits(end),
    }


def _right(visits: pd.DataFrame, epoch: int) -> np.ndarray:
    """(N,) whether each problem's label at a visit is right."""
    own = select(visits, floats(visits, "epoch") == epoch).sort_values("problem")
    return own["label_correct"].to_numpy(bool)


def _bits(flags_N: np.ndarray) -> str:
    return "".join("01"[flag] for flag in flags_N.astype(int))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
