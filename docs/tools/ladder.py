"""Makes the models and runs of the ladder of sizes (docs/protocol.md), and the tables of them.

python docs/tools/ladder.py runs/ladder

writes docs/data/ladder-rates.csv, the learning rate of every size, and docs/data/ladder.csv, a row
for every finished run. The same command goes on where an interrupted one stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from language_runs import add_finished
from run_rows import DATA, known

from lab.base.columns import floats, select, where
from lab.base.files import remove_folder, whole
from lab.trace.trace import load
from real.__main__ import main as main_of_trainer
from real.tiny.pretrain import RECIPES, build, initial_model

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
        add_finished(TABLE, out / task, task)
    return 0


def _match(out: Path, width: int) -> int:
    """Train the model of a width, and find its learning rate."""
    recipe = replace(RECIPES["arithmetic"], width=width, mlp_width=3 * width)
    if not (out / f"model-{width}").exists():
        build(out / f"model-{width}", recipe=recipe, progress=False)
    n_weights = sum(p.numel() for p in initial_model(recipe, 0).parameters())
    while lr := _next_rate(width):
        folder = out / "pilots" / f"{width}-{lr:g}"
        # The term is too small to change anything: it is there to be recorded.
        words = f"run --out {folder} --model {out}/model-{width} --arm ttrl --kl-coef 1e-9 --quiet"
        words += f" --lr {lr:g} --seed {PILOT_SEED}"
        remove_folder(folder)  # of a run that was killed
        if code := main_of_trainer(words.split()):
            return code
        row = {"width": width, "weights": n_weights, "lr": lr, "kl": travelled(folder)}
        table = pd.concat([_rates(), pd.DataFrame([row])])
        with whole(RATES) as file:
            table.to_csv(file, index=False, float_format="%.6g")
    return 0


def travelled(folder: Path) -> float:
    """Return the KL divergence from the start model in nats per token, mean of the last epoch."""
    steps = load(folder).steps
    return float(np.mean(floats(steps, "kl")[-len(steps) // 12 :]))


def _next_rate(width: int) -> float | None:
    """Return a learning rate to try; None once one travels within a quarter of the reference.

    It follows from the power law through the two nearest tries, or a square law.
    """
    if width not in set(_rates()["width"]):
        return REFERENCE_LR
    near = _tried(width)
    if width == REFERENCE or len(near) >= MAX_PILOTS or abs(near[0, 1]) < np.log(1.25):
        return None
    power = 2.0 if len(near) < 2 else np.clip(np.divide(*(near[1] - near[0])[::-1]), 0.5, 4)
    return float(f"{np.exp(near[0, 0] - near[0, 1] / power):.2g}")


def chosen(width: int) -> float:
    """Return the learning rate of the pilot that travelled most nearly as far as the reference."""
    return float(f"{np.exp(_tried(width)[0, 0]):.2g}")


def _tried(width: int) -> np.ndarray:
    """(T, 2) logarithms of rate and divergence over the reference's; the nearest pilot first."""
    rates = _rates()
    goal = rates["kl"][rates["width"] == REFERENCE].iloc[0]
    logs = np.log(rates.loc[rates["width"] == width, ["lr", "kl"]].to_numpy() / [1, goal])
    return logs[np.argsort(np.abs(logs[:, 1]))]


def _rates() -> pd.DataFrame:
    columns = ["width", "weights", "lr", "kl"]
    return pd.read_csv(RATES) if RATES.is_file() else pd.DataFrame(columns=columns, dtype=float)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
