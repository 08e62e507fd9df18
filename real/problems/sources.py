"""Where problems and models come from, as far as it can be checked without torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lab.errors import UserError
from real.problems import Problem, ProblemSet, load_problems
from real.problems.hub import PREFIX
from real.settings.config import TrainConfig

_MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
"""What is fetched of a model: no pickled weights and no code."""


def read_problems(config: TrainConfig) -> ProblemSet:
    """The problems that the settings name, before any look at their length.

    Raises:
        UserError: the source is wrong, has no such number of problems, or lacks needed answers.
    """
    if config.problems is None:
        # Its package imports transformers, which a look at a problem file does not need.
        from real.tiny import problems as tiny_problems

        made = tiny_problems(config.n_problems or 64)
        name = "tiny-verifying" if config.tiny_verifies else "tiny"
        return ProblemSet(name, [Problem(p.id, p.prompt, p.answer) for p in made])
    found = load_problems(config.problems, config.fields, config.data_dir, config.hub)
    wanted = len(found) if config.n_problems is None else config.n_problems
    if wanted > len(found):
        raise UserError(
            f"n_problems = {wanted}: {config.problems} holds {len(found)}; ask for fewer"
        )
    chosen = replace(found, problems=found.problems[:wanted])
    unknown = next((p.id for p in chosen if p.answer is None), None)
    if config.labels == "truth" and unknown is not None:
        raise UserError(
            f"labels = 'truth': problem {unknown!r} of {config.problems} has no answer; "
            "add it or train on votes"
        )
    return chosen


def model_folder(model: str) -> Path:
    """The local folder of a model; one named `hf:owner/name` is fetched from the hub first.

    Raises:
        UserError: it is missing, does not look like a model, or cannot be fetched.
    """
    if not model.startswith(PREFIX):
        check_folder(Path(model))
        return Path(model)
    from huggingface_hub import snapshot_download

    name = model.removeprefix(PREFIX)
    try:
        # Meta's models hold their weights once more, in another format, in `original`.
        folder = snapshot_download(
            name, allow_patterns=list(_MODEL_FILES), ignore_patterns=["original/*"]
        )
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise UserError(
            f"model {model}: could not be fetched ({reason}); check the name, the network and "
            "whether its licence must be accepted, or give a local folder"
        ) from error
    return Path(folder)


def check_folder(folder: Path) -> None:
    """A first look at a model folder, before anything is loaded.

    Raises:
        UserError: it is missing, or does not look like a model.
    """
    if not (folder / "config.json").is_file():
        what = "lacks config.json" if folder.is_dir() else "no such folder"
        raise UserError(
            f"model {folder}: {what}; give a local Hugging Face model folder, "
            f"or {PREFIX}owner/name to fetch one"
        )
