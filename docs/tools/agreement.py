"""Measures how well the measured policy predicts real runs of the tiny task, from nothing.

python docs/tools/agreement.py runs/agreement                  # 15 cells, 4 seeds each
python docs/tools/agreement.py runs/small --arms ttrl frozen --lrs 3e-4 --epochs 8 --n-problems 16

Trains the real runs and one pilot run, measures the start model, simulates every cell and writes a
report. The same command goes on where an interrupted one stopped. Options that are not its own are
settings of `guard-train`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import lab.__main__
import real.cli
import sim.cli
from guard_core import ConfigError
from lab.arm_settings import with_arm
from lab.base.arms import arm
from lab.base.errors import UserError
from lab.base.settings import to_values
from lab.options import make
from lab.trace.manifest import FILE_NAME
from real.run_commands import CompareCommand
from sim.studies.agree import TABLE, check_settings

PILOT_SEED = 100
"""Of the run from whose checkpoints the growth of the gradients is measured; in no cell."""
REPLICATES = 64
"""Simulated runs per cell."""


def main(argv: Sequence[str]) -> int:
    """Make what is missing; returns the exit code of the first command that failed, or 0."""
    parser = argparse.ArgumentParser(description="Compare real runs with their simulation.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--arms", nargs="+", default=["ttrl", "guard", "frozen", "memory", "truth"])
    parser.add_argument("--lrs", nargs="+", default=["1e-4", "2e-4", "3e-4"])
    parser.add_argument("--seeds", nargs="+", default=["0", "1", "2", "3"])
    parser.add_argument("--jobs", default="2")
    own, settings = parser.parse_known_args(argv)
    try:
        check(own, settings)
    except (UserError, ConfigError) as error:
        print(f"agreement: {error}", file=sys.stderr)
        return 2
    for program, words in commands(own, settings):
        if code := program.main([str(word) for word in words]):
            return code
    return 0


def check(own: argparse.Namespace, settings: list[str]) -> None:
    """Refuse settings that no policy can simulate, before hours of training.

    Raises:
        UserError: naming the first of them; or an arm is unknown.
        ConfigError: a setting has an impossible value.
    """
    words = ["--out", str(own.out), *settings]
    given = make(CompareCommand, words, CompareCommand.defaults(words)).settings
    for name in own.arms:
        check_settings(to_values(with_arm(given, arm(name))), f"--arms {name}")


def commands(own: argparse.Namespace, settings: list[str]) -> Iterator[tuple[type, list[object]]]:
    """Yield the module of each program and its arguments, in order."""
    out: Path = own.out
    cells = ["--arms", *own.arms, "--lrs", *own.lrs, "--seeds", *own.seeds, "--jobs", own.jobs]
    yield real.cli, ["compare", "--out", out / "real", *cells, *settings]
    pilot, response = out / "pilot", out / "response.npz"
    if (pilot / FILE_NAME).is_file():
        yield real.cli, ["resume", pilot]
    else:
        lr = max(own.lrs, key=float)
        kept = ["--checkpoint-keep", 100]
        run = ["run", "--arm", "ttrl", "--lr", lr, "--seed", PILOT_SEED, *kept]
        yield real.cli, [*run, "--out", pilot, *settings]
    if not response.exists():
        yield real.cli, ["measure", "--out", response, "--growth", pilot, *settings]
    simulated = out / "simulated"
    if not (simulated / TABLE).is_file():
        shutil.rmtree(simulated, ignore_errors=True)  # half of it, which takes minutes to make
        data = ["--real", out / "real", "--response", response]
        yield sim.cli, ["agree", *data, "--replicates", REPLICATES, "--out", simulated]
    yield lab.__main__, [out / "real", simulated, "--output", out / "report.html"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
