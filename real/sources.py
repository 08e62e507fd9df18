"""Where problems and models come from, as far as it can be checked without torch."""

from __future__ import annotations

from pathlib import Path

from lab.errors import UserError
from real.config import TrainConfig
from real.problems import Problem, load_problems


def read_problems(config: TrainConfig) -> list[Problem]:
    """The problems that the settings name, before any look at their length.

    Raises:
        UserError: the file is wrong, has no such number of problems, or lacks needed answers.
    """
    if config.problems is None:
        # Its package imports transformers, which a look at a problem file does not need.
        from real.tiny import problems as tiny_problems

        made = tiny_problems(config.n_problems or 64)
        return [Problem(p.id, p.prompt, p.answer) for p in made]
    found = load_problems(config.problems)
    wanted = len(found) if config.n_problems is None else config.n_problems
    if wanted > len(found):
        raise UserError(
            f"n_problems = {wanted}: {config.problems} holds {len(found)}; ask for fewer"
        )
    chosen = found[:wanted]
    unknown = next((p.id for p in chosen if p.answer is None), None)
    if config.labels == "truth" and unknown is not None:
        raise UserError(
            f"labels = 'truth': problem {unknown!r} of {config.problems} has no answer; "
            "add it or train on votes"
        )
    return chosen


def check_folder(folder: Path) -> None:
    """A first look at a model folder, before anything is loaded.

    Raises:
        UserError: it is missing, or does not look like a model.
    """
    if not (folder / "config.json").is_file():
        what = "lacks config.json" if folder.is_dir() else "no such folder"
        raise UserError(f"model {folder}: {what}; give a local Hugging Face model folder")
