"""`guard-report`: run folders in, one HTML page out, or its tables and figures as files."""

from __future__ import annotations

import gc
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from lab.base.errors import UserError, one_line
from lab.base.files import check_folders, check_new_folder, check_parent, writing
from lab.options import POSITIONAL


@dataclass(frozen=True)
class Report:
    """Write one self-contained HTML page about the runs and sweeps in some folders.

    Or the same as Markdown (--format md) or as CSV tables (csv).

    Examples:
        guard-report runs/arms
        guard-report runs/sim runs/arms -o report.html
        guard-report runs/arms --figures paper/figures
        guard-report runs/arms --format csv -o runs/tables
    """

    folders: Annotated[tuple[Path, ...], POSITIONAL]
    """Folders of runs or sweeps, or folders that hold some at any depth."""
    output: Annotated[Path | None, "-o"] = None
    """The page; report.html in the first folder if left out, standard output for Markdown; for CSV
    a new folder."""
    format: Literal["html", "md", "csv"] = "html"
    """A page with figures; the tables as Markdown; tidy tables."""
    figures: Path | None = None
    """A new folder for every figure as SVG, PDF and CSV besides; needs Chrome or Chromium."""
    force: bool = False
    """Overwrite a file that is not a report."""

    def run(self) -> None:
        """Write the report; print where it is and, with the page, the numbers that matter."""
        check_folders(self.folders)  # before the imports, which take most of a second
        # Reading and drawing need pandas and plotly, which --help does not.
        # The matrices are small: threads of a linear-algebra library only wait for each other.
        for library in ("OPENBLAS", "OMP", "MKL"):
            os.environ.setdefault(f"{library}_NUM_THREADS", "1")
        # Figures are many small objects and no garbage: looking for it takes a tenth of the time.
        gc.set_threshold(100_000, 50, 100)
        from lab.figures.files import check_exporter, write_figures
        from lab.report.digest import read, step_studies
        from lab.report.export import figures, write_tables
        from lab.report.html import write_page
        from lab.report.markdown import markdown
        from lab.report.page import page
        from lab.report.sweeps import read_sweeps

        if self.figures is not None:
            check_exporter()
            check_new_folder(self.figures)
        target = self._target()
        worlds, skipped = read(self.folders)
        sweeps, damaged = read_sweeps(self.folders, worlds)
        skipped += damaged
        written = [] if target is None else [target]
        if target is not None and self.format == "csv":
            written = write_tables(worlds, sweeps, target)
        else:
            tables = [(sweep.name, sweep.table) for sweep in sweeps]
            is_page = self.format == "html"
            text = page(worlds, skipped, sweeps) if is_page else markdown(worlds, tables)
            if target is None:
                print(text, end="")
            else:
                write_page(target, text)
        for item in skipped:
            print(f"left out: {one_line(item.reason)}", file=sys.stderr)
        if self.format == "html":
            told = [(w.name, [*w.notes, *(f.text for f in w.findings if f.parts)]) for w in worlds]
            told += [(study.name, study.words()) for study in step_studies(worlds)]
            for name, lines in told:
                print(one_line(name), *(f"  {one_line(line)}" for line in lines), sep="\n")
        print(*written, sep="\n", end="\n" * bool(written))
        if self.figures is not None:
            print(*write_figures(figures(worlds, sweeps), self.figures), sep="\n")

    def _target(self) -> Path | None:
        """Where the report goes, checked before the work; None for standard output."""
        from lab.report.html import is_made_by
        from lab.report.page import GENERATOR

        if self.format == "csv":
            if self.output is None:
                raise UserError("--format csv writes several files; add -o FOLDER, a new folder")
            check_new_folder(self.output)
            return self.output
        if self.format == "md" and self.output is None:
            return None
        target = self.output or self.folders[0] / "report.html"
        with writing(target):
            if target.exists() and not target.is_file():
                raise UserError(f"{target}: is a folder, pipe or device; give the name of a file")
            check_parent(target)
            is_report = self.format == "html" and target.is_file() and is_made_by(target, GENERATOR)
            if target.exists() and not (is_report or self.force):
                raise UserError(
                    f"{target}: exists and is not a report; choose another -o or add --force to "
                    "replace it"
                )
        return target


COMMANDS, ABOUT = {"": Report}, ""
