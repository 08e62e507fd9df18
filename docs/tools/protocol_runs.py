"""Makes the real runs of a step of docs/protocol.md, and the table of them that docs/data keeps.

python docs/tools/protocol_runs.py choice runs/choice
python docs/tools/protocol_runs.py confirm runs/arithmetic
python docs/tools/protocol_runs.py confirm runs/collatz --tiny-task collatz
python docs/tools/protocol_runs.py confirm runs/verifying --tiny-verifies --sets 7 --lrs 1.5e-4 3e-4
python docs/tools/protocol_runs.py readings runs/readings

The same command goes on where an interrupted one stopped. Options that are not its own are settings
of `guard-train`. The table is `table.csv` in the folder. That of `readings` grows run by run: it is
`docs/data/readings-tiny.csv`, and a run that it has is not made again.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from run_rows import KEY, add, read, rows

import real.cli
from lab.base.arms import arm, replayed_target
from lab.base.files import remove_folder, whole
from lab.compare.collection import find_runs
from lab.trace.manifest import FILE_NAME, read_manifest

DATA = Path(__file__).parents[1] / "data"
PROTOCOL: dict[str, dict[str, Any]] = tomllib.loads((DATA / "protocol.toml").read_text())
TABLE = "table.csv"
READINGS = DATA / "readings-tiny.csv"
SETTINGS = ["--eval-every", "12", "--no-keep-votes", "--checkpoint-every", "0"]
"""Of all runs; none changes what is trained."""


def main(argv: Sequence[str]) -> int:
    """Make the runs that are missing and the table; return the first failed command's exit code."""
    parser = argparse.ArgumentParser(description="Make the runs of a step of the protocol.")
    parser.add_argument("step", choices=["choice", "confirm", "readings"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", nargs="+", default=list(PROTOCOL["confirm"]["seeds"]))
    parser.add_argument("--lrs", nargs="+", default=PROTOCOL["confirm"]["lrs"])
    own, settings = parser.parse_known_args(argv)
    if own.step == "readings":
        return readings(own.out, settings)
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


class Reading(NamedTuple):
    """A run of the study of the guard's readings."""

    task: str
    lr: float
    problem_seed: int
    place: int
    """Of its seed among those of the problem set."""
    arm: str

    @property
    def seed(self) -> int:
        """Seed; every problem set has its own."""
        return 10 * self.problem_seed + self.place

    @property
    def key(self) -> tuple[object, ...]:
        """The columns of its row that name it."""
        return self.task, self.problem_seed, self.arm, self.lr, self.seed

    @property
    def source(self) -> Reading | None:
        """The run whose decisions it replays: of its guard, with the next seed of the set."""
        target, n = replayed_target(self.arm), PROTOCOL["readings"]["seeds_per_set"]
        if target is None:
            return None
        return self._replace(arm=target, place=(self.place + 1) % n)

    def folder(self, out: Path) -> Path:
        """Run folder."""
        return (
            out
            / f"{self.task}-{self.lr:g}"
            / f"set-{self.problem_seed}"
            / self.arm
            / str(self.seed)
        )

    def make(self, out: Path, settings: Sequence[str]) -> int:
        """Make the run if it is not there, and what it replays before; return the exit code."""
        folder, words = self.folder(out), []
        if self.source is not None:
            if code := self.source.make(out, settings):
                return code
            words = ["--treatment", str(self.source.folder(out).resolve())]
        if (folder / FILE_NAME).is_file() and read_manifest(folder).status == "finished":
            return 0
        remove_folder(folder)  # of a run that was killed
        words += ["--tiny-task", self.task, "--problem-seed", str(self.problem_seed)]
        words += ["--lr", f"{self.lr:g}", "--seed", str(self.seed), "--arm", self.arm, "--quiet"]
        return real.cli.main(["run", "--out", str(folder), *words, *SETTINGS, *settings])


def readings(out: Path, settings: Sequence[str]) -> int:
    """Make the runs of the study that have no row yet; return the first failed run's exit code."""
    for run in planned():
        known = read(READINGS) if READINGS.is_file() else pd.DataFrame(columns=KEY)
        if run.key in set(known[KEY[:5]].itertuples(index=False, name=None)):
            continue
        if code := run.make(out, settings):
            return code
        add(READINGS, [run.folder(out)])
        if run.arm not in _replayed():
            remove_folder(run.folder(out))
    return 0


def planned() -> Iterator[Reading]:
    """Yield the runs in their order: cell by cell, in it one seed of every set before the next."""
    step = PROTOCOL["readings"]
    for task, lr in step["cells"]:
        for place in range(step["seeds_per_set"]):
            for problem_seed in step["problem_seeds"]:
                for name in step["arms"]:
                    yield Reading(task, lr, problem_seed, place, arm(name).name)


def _replayed() -> set[str | None]:
    return {replayed_target(arm(name).name) for name in PROTOCOL["readings"]["arms"]}


def table(out: Path) -> pd.DataFrame:
    """Return the rows of `run_rows` below a folder; the arm is the name of the run's folder."""
    parts = [rows([folder]).assign(arm=folder.parent.name) for folder in find_runs([out])]
    return pd.concat(parts).sort_values(KEY, ignore_index=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
