"""`guard-report`: run folders in, one HTML page out, or its tables and figures as files."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from lab.base.errors import UserError, one_line
from lab.base.files import check_folders, check_new_folder, whole
from lab.options import POSITIONAL

if TYPE_CHECKING:
    from lab.compare.collection import Skipped
    from lab.report.digest import ReportedComparison
    from lab.report.sweeps import ReportedSweep

    _Found = tuple[list[ReportedComparison], list[ReportedSweep]]


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
        """Write the page; print its path and the numbers that matter."""
        check_folders(self.folders)  # before the imports, which take most of a second
        # Reading and drawing need pandas and plotly, which --help does not.
        # The matrices are small: threads of a linear-algebra library only wait for each other.
        for library in ("OPENBLAS", "OMP", "MKL"):
            os.environ.setdefault(f"{library}_NUM_THREADS", "1")
        # Figures are many small objects and no garbage: looking for it takes a tenth of the time.
        gc.set_threshold(100_000, 50, 100)
        if self.figures is not None:
            from lab.figures.files import check_exporter

            check_exporter()
            check_new_folder(self.figures)
        write = {"html": self._page, "md": self._markdown, "csv": self._tables}
        worlds, sweeps = write[self.format]()
        if self.figures is not None:
            from lab.figures.files import write_figures
            from lab.report.export import figures

            for path in write_figures(figures(worlds, sweeps), self.figures):
                print(path)

    def _page(self) -> _Found:
        from lab.report.digest import HEADING, step_studies
        from lab.report.page import write_report

        path, worlds, sweeps, skipped = write_report(self.folders, self.output, force=self.force)
        _tell(skipped)
        said = [(w.name, [*w.notes, *(f.text for f in w.findings if f.parts)]) for w in worlds]
        said += [(f"{HEADING}: {study.name}", study.words()) for study in step_studies(worlds)]
        for name, lines in said:
            print(one_line(name), *(f"  {one_line(line)}" for line in lines), sep="\n")
        print(path)
        return worlds, sweeps

    def _markdown(self) -> _Found:
        from lab.report.markdown import markdown

        worlds, sweeps = self._read()
        text = markdown(worlds, [(sweep.name, sweep.table) for sweep in sweeps])
        if self.output is None:
            print(text, end="")
            return worlds, sweeps
        if self.output.exists() and not self.force:
            raise UserError(f"{self.output}: exists already; choose another -o or add --force")
        with whole(self.output) as temporary:
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        print(self.output)
        return worlds, sweeps

    def _tables(self) -> _Found:
        from lab.report.export import write_tables

        if self.output is None:
            raise UserError("--format csv writes several files; add -o FOLDER, a new folder")
        check_new_folder(self.output)
        worlds, sweeps = self._read()
        for path in write_tables(worlds, sweeps, self.output):
            print(path)
        return worlds, sweeps

    def _read(self) -> _Found:
        from lab.report.digest import read
        from lab.report.sweeps import read_sweeps

        worlds, skipped = read(self.folders)
        sweeps, damaged = read_sweeps(self.folders)
        _tell([*skipped, *damaged])
        return worlds, sweeps


def _tell(skipped: Iterable[Skipped]) -> None:
    for item in skipped:
        print(f"left out: {one_line(item.reason)}", file=sys.stderr)


COMMANDS, ABOUT = {"": Report}, ""
