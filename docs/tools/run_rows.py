"""Keeps the results of runs of both worlds as rows of a file in docs/data.

python docs/tools/run_rows.py docs/data/tiny-arms.csv runs/arms

Adds one row per replicate of every finished run under the folders. Rows that the file has already
stay as they are, so the same command adds what has finished since.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from lab.base.columns import flags, groups, ints, select, unique, where
from lab.base.errors import UserError
from lab.base.files import whole
from lab.base.settings import flattened
from lab.compare.collection import find_runs, gather
from lab.compare.families import shared_settings
from lab.compare.tables import rule_rows
from lab.measures.fate import FATES, LOST
from lab.trace.manifest import FILE_NAME, Manifest, read_manifest
from lab.trace.trace import Trace, load

DATA = Path(__file__).parents[1] / "data"
KEY = ["task", "problem_seed", "arm", "lr", "seed", "place"]
"""Columns that name a row: place numbers the replicates of one seed, 0 in real runs; problem_seed
is 0 in the simulator, whose seed draws the problems too."""
SCORES = ["pass_start", "pass_final", "pass_best", "maj_start", "maj_final", "label_final"]
COLUMNS = [*KEY, "digest", *SCORES, "update_norm", "skipped", "TotalDeg", "lost_once", *FATES]
LABELS = ["right_start", "right_final"]
"""Columns of real runs: 1 or 0 for every problem, whether the majority before training and the
label of the last visit are right."""

_OF_ARM = ("guard", "labels", "rule", "rule_options", "kl_coef", "ema_decay", "skip_rate")
_NAMES = ("checkpoint_minutes", "model", "problems", "response", "trace", "tiny_wrong", "tiny_lead")
"""Settings that do not decide what is trained, or whose effect is recorded apart: the content of
paths, and the problems that are drawn."""


def main(argv: Sequence[str]) -> int:
    """Add rows to a file; return the exit code."""
    if len(argv) < 2:
        print("usage: run_rows.py FILE.csv FOLDER...", file=sys.stderr)
        return 2
    try:
        print(f"{argv[0]}: {add(Path(argv[0]), rows(argv[1:]))} rows added")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def add(path: Path, new: pd.DataFrame) -> int:
    """Add rows to a file, and return how many it did not have.

    Raises:
        UserError: a row has the key of another, and other settings.
    """
    old = known(path)
    both = pd.concat([part for part in (old, new) if len(part)]) if len(new) else old
    for key, part in groups(both, KEY):
        if len(unique(part, "digest")) > 1:
            name = ", ".join(f"{a} {b}" for a, b in zip(KEY, key, strict=True))
            raise UserError(f"{path}: has {name} with other settings; give another file")
    table = both.drop_duplicates(KEY).sort_values(KEY, ignore_index=True)
    with whole(path) as file:
        table.to_csv(file, index=False, float_format="%.6g")
    return len(table) - len(old)


def known(path: Path) -> pd.DataFrame:
    """Return the rows of a file, if any; one of the time before `place` holds real runs.

    A file without the vote before training has the labels of visit 0, which are one.
    """
    if not path.is_file():
        return pd.DataFrame(columns=KEY)
    table = pd.read_csv(path, dtype=dict.fromkeys(["digest", *LABELS], str))
    if "maj_start" not in table and "right_start" in table:
        right = [bits.count("1") / len(bits) for bits in table["right_start"]]
        table["maj_start"] = 100.0 * np.array(right)
    return table if "place" in table else table.assign(place=0)


def finished(folders: Sequence[str | Path]) -> Iterator[Path]:
    """Folders of the runs below some folders that ended."""
    for folder in find_runs(folders):
        if (folder / FILE_NAME).is_file() and read_manifest(folder).status == "finished":
            yield folder


def rows(folders: Sequence[str | Path]) -> pd.DataFrame:
    """Return the rows of all finished runs under some folders.

    Columns: `KEY`, digest, scores and label_final (%), update_norm (mean over optimizer steps),
    skipped (% of visits), TotalDeg and the fates (% of problems; NaN below eight visits), lost_once
    (% of the problems of TotalDeg whose label changed exactly once), and `LABELS`. lr is the peak
    learning rate, or the step of the simulator.
    """
    parts = [_rows(load(folder)) for folder in finished(folders)]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=COLUMNS)


def digest(run: Manifest) -> str:
    """Return eight hexadecimal digits of the settings that decide what is trained and measured.

    The step size and the seed, which are columns, and the factor of matched effort are left out.
    """
    arm = {name: run.config.get(name) for name in _OF_ARM}
    settings = {**shared_settings(run), **flattened(arm)}
    kept = {name: settings[name] for name in sorted(settings) if name not in _NAMES}
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:8]


def _rows(trace: Trace) -> pd.DataFrame:
    run = trace.run
    comparisons, _ = gather([trace])
    table = rule_rows(comparisons).rename(columns={"step": "lr"})
    table["lost_once"] = _lost_once(trace.visits, comparisons[0].fates(comparisons[0].arms[0]))
    problems = run.config.get("problem_seed", 0)
    lr = [float(f"{lr:.6g}") for lr in table["lr"]]  # as the file has it
    table = table.assign(task=_task(run), problem_seed=problems, lr=lr, digest=digest(run))
    if run.world == "real":
        epochs = (0, int(ints(trace.visits, "epoch").max()))
        table["right_start"], table["right_final"] = (_right(trace, epoch) for epoch in epochs)
    return table.reindex(columns=[*COLUMNS, *(LABELS if run.world == "real" else [])])


def _lost_once(visits: pd.DataFrame, fates: pd.DataFrame) -> pd.Series:
    """Percent of the lost problems whose label changed once, by replicate; NaN without any."""
    training = select(visits, ints(visits, "visit") > 0)
    flips = pd.DataFrame(training.groupby(["replicate", "problem"])[["flipped"]].sum())
    lost = select(fates, np.array(fates["fate"].isin(LOST)))
    lost = lost.join(flips, on=["replicate", "problem"])
    once = pd.Series(lost["flipped"] == 1)
    return 100.0 * pd.Series(once.groupby(lost["replicate"]).mean())


def _task(run: Manifest) -> str:
    if run.world == "sim":
        return f"{run.config['policy']} {run.task}"
    if run.config.get("tiny_verifies"):
        return "verifying"
    return run.config.get("tiny_task", "arithmetic") if run.task.startswith("tiny") else run.task


def _right(trace: Trace, epoch: int) -> str:
    own = where(trace.visits, epoch=epoch).sort_values("problem")
    return "".join("01"[int(flag)] for flag in flags(own, "label_correct"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
