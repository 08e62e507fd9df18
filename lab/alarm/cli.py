"""`guard-alarm`: run folders in, and how well votes alone warn of problems that will be lost."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lab.cli import run_cli
from lab.errors import UserError, one_line
from lab.files import whole

PAGE, AUROC, LEADS = "alarm.html", "alarm.csv", "alarm_leads.csv"
_TITLE = "Does the vote warn before a problem is lost?"
_WORDS = (
    "The alarm is a logistic regression on the votes up to a visit. It reads no true answer when "
    "it scores, and it is evaluated on replicates that it was not fitted on. The AUROC is the "
    "probability that a lost problem of a run scores above a kept one of the same run.",
    "Intervals are 95 % bootstraps over replicates. The gains are paired: both scores on the same "
    "replicates. A difference whose interval contains zero is within noise.",
)


@dataclass(frozen=True)
class Alarm:
    """Judge the label-free alarm on some runs: AUROC per visit, lead times, ROC curve.

    Prints a table per arm; writes alarm.html, alarm.csv and alarm_leads.csv.
    """

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, or folders that hold some at any depth; every arm needs two replicates."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Folder for what is written, made if missing; the first of the folders if left out."""
    arms: tuple[str, ...] = ()
    """Only these arms; all if left out."""
    at: tuple[int, ...] = ()
    """Visits after which the alarm is judged; 1 2 3 4 5 6 8 10 12 15 ... if left out."""
    roc_at: int | None = None
    """Visit of the ROC curve; 5 if left out."""
    false_alarms: float = 0.1
    """Share of the kept problems that the threshold of the lead times may ever alarm at."""
    seed: int = 0
    """Seed of folds and bootstrap."""

    def run(self) -> None:
        """Judge, print and write."""
        # The matrices are small: threads of a linear-algebra library only wait for each other.
        for library in ("OPENBLAS", "OMP", "MKL"):
            os.environ.setdefault(f"{library}_NUM_THREADS", "1")
        # Reading and drawing need pandas and plotly, which --help does not.
        from lab.alarm.findings import Settings, find, parts, print_table, tables, words
        from lab.columns import write_csv
        from lab.report.elements.figure_page import figure_page, write_page

        target = self._target()
        settings = Settings(self.at, self.roc_at, self.false_alarms, self.seed)
        findings, skipped = find(self.folders, self.arms, settings)
        for item in skipped:
            print(f"left out: {one_line(item.reason)}", file=sys.stderr)
        for finding in findings:
            print(f"{one_line(finding.name)}: AUROC [95 % interval]")
            print_table(finding)
            print("\n".join([*words(finding), ""]))
        target.mkdir(parents=True, exist_ok=True)
        for name, table in zip((AUROC, LEADS), tables(findings), strict=True):
            with whole(target / name) as temporary:
                write_csv(table, temporary)
        sections = [part for finding in findings for part in parts(finding)]
        write_page(target / PAGE, figure_page(_TITLE, _WORDS, sections))
        print(target / PAGE)

    def _target(self) -> Path:
        """The folder to write into; what cannot be used is refused before the work."""
        from lab.report.elements.figure_page import check_page

        if not self.folders:
            raise UserError("no folder given; name folders that a run was written to")
        if not 0 <= self.false_alarms < 1:
            raise UserError(f"--false-alarms {self.false_alarms}: must be at least 0 and below 1")
        target = self.output or self.folders[0]
        if target.exists() and not target.is_dir():
            raise UserError(f"{target}: is no folder; give --output a folder")
        check_page(target / PAGE)
        return target


def main(argv: Sequence[str] | None = None) -> int:
    """Run `guard-alarm`; returns the exit code."""
    return run_cli("guard-alarm", {"": Alarm}, argv)


if __name__ == "__main__":
    sys.exit(main())
