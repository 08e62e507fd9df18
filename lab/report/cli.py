"""`guard-report`: run folders in, one HTML page out, or its tables and figures as files."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from lab.cli import run_cli
from lab.errors import UserError, one_line
from lab.files import whole

if TYPE_CHECKING:
    from lab.compare.collection import Skipped
    from lab.report.content.digest import ReportedComparison


@dataclass(frozen=True)
class Report:
    """Write one self-contained HTML page about the runs in some folders.

    Or the same as Markdown (--format md), as CSV tables (csv) or as figures (png).
    """

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, or folders that hold some at any depth."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """The page; report.html in the first folder if left out, standard output for Markdown. For CSV
    and PNG a folder that is new or holds only what was written there before."""
    format: Literal["html", "md", "csv", "png"] = "html"
    """A page with figures; the tables as Markdown; tidy tables; every figure as a picture."""
    force: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Overwrite a file that is not a report."""

    def run(self) -> None:
        """Write the page; print its path and the numbers that matter."""
        # Reading and drawing need pandas and plotly, which --help does not.
        # The matrices are small: threads of a linear-algebra library only wait for each other.
        for library in ("OPENBLAS", "OMP", "MKL"):
            os.environ.setdefault(f"{library}_NUM_THREADS", "1")
        # Figures are many small objects and no garbage: looking for it takes a tenth of the time.
        gc.set_threshold(100_000, 50, 100)
        write = {"html": self._page, "md": self._markdown, "csv": self._tables, "png": self._images}
        write[self.format]()

    def _page(self) -> None:
        from lab.report.writing import write_report

        made = write_report(self.folders, self.output, force=self.force)
        _name(made.skipped)
        for world in made.worlds:
            print(one_line(world.name))
            for line in (*world.notes, *(finding.text for finding in world.findings)):
                print(f"  {one_line(line)}")
        print(made.path)

    def _markdown(self) -> None:
        from lab.report.markdown import markdown

        text = markdown(self._worlds())
        if self.output is None:
            print(text, end="")
            return
        if self.output.exists() and not self.force:
            raise UserError(f"{self.output}: exists already; choose another -o or add --force")
        with whole(self.output) as temporary:
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        print(self.output)

    def _tables(self) -> None:
        from lab.report.folders import check_folder
        from lab.report.tidy import KIND, write_tables

        target = self._folder("csv")
        check_folder(target, KIND)
        for path in write_tables(self._worlds(), target):
            print(path)

    def _images(self) -> None:
        from lab.report.folders import check_folder
        from lab.report.pictures import KIND, write_pictures
        from lab.report.png import check_png

        target = self._folder("png")
        check_folder(target, KIND)
        check_png()
        for path in write_pictures(self._worlds(), target):
            print(path)

    def _folder(self, kind: str) -> Path:
        if self.output is None or self.output.is_file():
            raise UserError(f"--format {kind} writes several files; add -o FOLDER, a new folder")
        return self.output

    def _worlds(self) -> list[ReportedComparison]:
        """Print what is reported on; folders that were left out are named."""
        from lab.report.content.digest import read

        worlds, skipped = read(self.folders)
        _name(skipped)
        return worlds


def _name(skipped: Iterable[Skipped]) -> None:
    for item in skipped:
        print(f"left out: {one_line(item.reason)}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `guard-report`; returns the exit code."""
    return run_cli("guard-report", {"": Report}, argv)


if __name__ == "__main__":
    sys.exit(main())
