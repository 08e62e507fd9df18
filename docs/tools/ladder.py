"""Makes the models and runs of the ladder of sizes (docs/protocol.md), and the tables of them.

python docs/tools/ladder.py runs/ladder

writes docs/data/ladder-rates.csv, the learning rate of every size, and docs/data/ladder.csv, a row
for every finished run. The same command goes on where an interrupted one stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from language_runs import add, known

from lab.base.columns import floats, select, where
from lab.base.files import remove_folder, whole
from lab.trace.trace import load
from real.__main__ import main as main_of_trainer
from real.tiny.pretrain import RECIPES, build, initial_model

DATA = Path(__file__).parents[1] / "data"
RATES, TABLE = DATA / "ladder-rates.csv", DATA / "ladder.csv"
REFERENCE, REFERENCE_LR, PILOT_SEED, MAX_PILOTS = 64, 3e-4, 100, 4
WIDTHS = (REFERENCE, 24, 140, 276)
ARMS, SEEDS = ("ttrl", "guard", "memory", "frozen"), ((1, 2), (3, 4))


def main(argv: Sequence[str]) -> int:
    """Make what is missing; return the first failed command's exit code."""
    out = Path(argv[0])
    for seeds, width in product(SEEDS, WIDTHS):
        if code := _match(out, width):
            return code
        task, made = f"width-{width}", known(TABLE)
        if len(where(select(made, made["seed"].isin(seeds)), task=task)) == len(ARMS) * len(seeds):
            continue
        words = f"compare --out {out}/{task} --model {out}/model-{width} --lr {chosen(width):g}"
        words += f" --seeds {' '.join(map(str, seeds))} --arms {' '.join(ARMS)}"
        words += " --n-held-out 64 --jobs 1 --quiet"
        if code := main_of_trainer(words.split()):
            return code
        add(TABLE, out / task, task)
    return 0


def _match(out: Path, width: int) -> int:
    """Train the model of a width, and find its learning rate."""
    recipe = replace(RECIPES["arithmetic"], width=width, mlp_width=3 * width)
    if not (out / f"model-{width}").exists():
        build(out / f"model-{width}", recipe=recipe, progress=False)
    n_weights = sum(p.numel() for p in initial_model(recipe, 0).parameters())
    for lr in _left_pilots(width):
        folder = out / "pilots" / f"{width}-{lr:g}"
        # The term is too small to change anything: it is there to be recorded.
        words = f"run --out {folder} --model {out}/model-{width} --arm ttrl --kl-coef 1e-9 --quiet"
        words += f" --lr {lr:g} --seed {PILOT_SEED}"
        remove_folder(folder)  # of a run that was killed
        if code := main_of_trainer(words.split()):
            return code
        row = {"width": width, "weights": n_weights, "lr": lr, "kl": travelled(folder)}
        with whole(RATES) as file:
            table = pd.concat([_rates(), pd.DataFrame([row])])
            table.to_csv(file, index=False, float_format="%.6g")
    return 0


def travelled(folder: Path) -> float:
    """Return the KL divergence from the start model in nats per token, mean of the last epoch."""
    steps = load(folder).steps
    return float(np.mean(floats(steps, "kl")[-len(steps) // 12 :]))


def _left_pilots(width: int) -> Iterator[float]:
    """Learning rates to try, until one travels within a quarter of what the reference travels.

    The next rate follows from the power law through the two nearest tries, or a square law.
    """
    while True:
        tried = _rates().query("width == @width")
        if tried.empty:
            yield REFERENCE_LR
            continue
        goal = _goal()
        if width == REFERENCE or len(tried) >= MAX_PILOTS or chosen_error(width) < np.log(1.25):
            return
        logs = np.log(tried[["lr", "kl"]].to_numpy())
        near = logs[np.argsort(np.abs(logs[:, 1] - np.log(goal)))[:2]]
        power = (
            2.0 if len(near) < 2 else np.clip(np.divide(*np.diff(near, axis=0)[0][::-1]), 0.5, 4)
        )
        yield float(f"{np.exp(near[0, 0] + (np.log(goal) - near[0, 1]) / power):.2g}")


def _goal() -> float:
    return float(_rates().query("width == @REFERENCE")["kl"].iloc[0])


def chosen(width: int) -> float:
    """Return the learning rate of the pilot that travelled most nearly as far as the reference."""
    tried = _rates().query("width == @width")
    return float(tried["lr"].iloc[np.argmin(np.abs(np.log(tried["kl"] / _goal())))])


def chosen_error(width: int) -> float:
    """Return by how much that pilot's divergence differs, in logarithms."""
    return float(np.abs(np.log(_rates().query("width == @width")["kl"] / _goal())).min())


def _rates() -> pd.DataFrame:
    columns = ["width", "weights", "lr", "kl"]
    return pd.read_csv(RATES) if RATES.is_file() else pd.DataFrame(columns=columns, dtype=float)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
