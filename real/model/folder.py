"""The local folder of a model, as far as it can be checked without torch."""

from __future__ import annotations

from pathlib import Path

from lab.errors import UserError

PREFIX = "hf:"
"""Begins the name of a model or a data set of the Hugging Face hub."""
_MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
"""Files that are fetched of a model: no pickled weights and no code."""


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
