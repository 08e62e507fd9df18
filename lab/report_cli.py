"""`guard-report`: run folders in, one HTML page out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from lab.cli import run_cli
from lab.errors import UserError
from lab.files import whole


@dataclass(frozen=True)
class Report:
    """Write one self-contained HTML page about the runs in some folders."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, or folders that hold some at any depth."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """The page; report.html in the first folder if left out, standard output for Markdown."""
    format: Literal["html", "md"] = "html"
    """A page with figures, or the tables as Markdown."""
    force: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Overwrite a file that is not a report."""

    def run(self) -> None:
        """Write the page; print its path and the numbers that matter."""
        # Reading and drawing need pandas and plotly, which --help does not.
        if self.format == "md":
            self._markdown()
            return
        from lab.report import write_report

        made = write_report(self.folders, self.output, force=self.force)
        for item in made.skipped:
            print(f"left out: {item.reason}", file=sys.stderr)
        for world in made.worlds:
            print(world.name)
            for line in (*world.comparison.notes, *(finding.text for finding in world.findings)):
                print(f"  {line}")
        print(made.path)

    def _markdown(self) -> None:
        from lab.report.digest import read
        from lab.report.markdown import markdown

        worlds, skipped = read(self.folders)
        for item in skipped:
            print(f"left out: {item.reason}", file=sys.stderr)
        text = markdown(worlds)
        if self.output is None:
            print(text, end="")
            return
        if self.output.exists() and not self.force:
            raise UserError(f"{self.output}: exists already; choose another -o or add --force")
        with whole(self.output) as temporary:
            temporary.write_text(text, encoding="utf-8")
        print(self.output)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `guard-report`; returns the exit code."""
    return run_cli("guard-report", {"": Report}, argv)


if __name__ == "__main__":
    sys.exit(main())
