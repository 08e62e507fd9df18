"""The command line `guard-verl`; needs neither verl nor Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tyro

from lab.cli import run_cli
from lab.errors import UserError
from real.problems import NAMED, load_problems
from real.requirements import require_torch
from real.settings.choices import BOX_REQUEST
from real.settings.fields import FieldMap
from real.verl.cell import Cell, cell_script
from real.verl.problems import write_problems


@dataclass(kw_only=True)
class ProblemsCommand:
    """Write problem sets as one Parquet file for verl, with an index that is unique in it."""

    sources: tyro.conf.Positional[tuple[str, ...]]
    """aime24, aime25, amc, math500, files (.json .jsonl .parquet) or hf:NAME, as --problems of
    guard-train takes them."""
    out: Path
    """Parquet file to make; must not exist yet."""
    fields: FieldMap = field(default_factory=FieldMap)
    """Fields of problem files; those left out are found by their usual names."""
    data_dir: str | None = None
    """Folder of aime24.json, aime25.json, amc.json, math500.json; GUARD_DATA if None."""
    hub: bool = False
    """Fetch a named problem set without a file from the Hugging Face hub."""
    prompt_suffix: str = BOX_REQUEST
    """Text put behind every prompt; by default none where the prompt itself asks for a box."""
    system_prompt: str | None = None
    """First message of every prompt, in place of one in the problem file."""

    def run(self) -> None:
        """Write the file, and say how many problems it holds."""
        if not self.sources:
            raise UserError(f"sources: name a problem file, or one of {', '.join(NAMED)}")
        sets = [load_problems(name, self.fields, self.data_dir, self.hub) for name in self.sources]
        n_problems = write_problems(self.out, sets, self.prompt_suffix, self.system_prompt)
        print(f"{self.out}: {n_problems} problems, extra_info.index 0 to {n_problems - 1}")


class ConfigCommand(Cell):
    """Print a shell script that runs one of the paper's cells on verl, with its sources."""

    def run(self) -> None:
        """Print the script."""
        require_torch()
        print(cell_script(self), end="")


COMMANDS = {"problems": ProblemsCommand, "config": ConfigCommand}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `guard-verl`; returns the exit code."""
    about = "Files and commands for TTRL-Guard as a plugin of verl, on one GPU or a cluster."
    return run_cli("guard-verl", COMMANDS, argv, about)
