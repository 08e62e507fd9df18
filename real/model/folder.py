"""The local folder of a model, as far as it can be checked without torch."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab.base.errors import UserError, first_line
from lab.base.files import file_digest

PREFIX = "hf:"
KINDS = (".json", ".safetensors", ".txt", ".model", ".jinja", ".tiktoken")
"""Kinds of files that a model is loaded from: no pickled weights and no code."""


def model_folder(model: str) -> Path:
    """The local folder of a model; one named `hf:owner/name` is fetched from the hub first."""
    if not model.startswith(PREFIX):
        check_folder(Path(model))
        return Path(model)
    from huggingface_hub import snapshot_download

    name = model.removeprefix(PREFIX)
    try:
        # Meta's and Mistral's models hold their weights once more, in other formats.
        twice = ["original/*", "consolidated*.safetensors"]
        folder = snapshot_download(
            name, allow_patterns=[f"*{kind}" for kind in KINDS], ignore_patterns=twice
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"model {model}: could not be fetched ({first_line(error)}); check the name, "
            "the network and whether its licence must be accepted, or give a local folder"
        ) from error
    return Path(folder)


def model_digests(folder: Path) -> dict[str, str]:
    """Return a digest of each file that a model is loaded from, by name."""
    files = sorted(p for p in folder.iterdir() if p.suffix in KINDS and p.is_file())
    with ThreadPoolExecutor(4) as pool:  # hashing lets go of the interpreter
        return dict(zip((p.name for p in files), pool.map(file_digest, files), strict=True))


def changed_files(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the names of the files of which two results of `model_digests` differ."""
    return sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))


def check_folder(folder: Path) -> None:
    """Refuse a folder that is missing or holds no model, before anything is loaded."""
    if (folder / "adapter_config.json").is_file():
        raise UserError(
            f"model {folder}: holds adapters; give the folder of a model that has them merged, "
            "as merge_and_unload() and save_pretrained() of peft write it"
        )
    if (folder / "config.json").is_file():
        return
    for file in [folder] if folder.suffix == ".gguf" else sorted(folder.glob("*.gguf")):
        raise UserError(
            f"model {folder}: {file.name} is a GGUF file, which runs but cannot train; give "
            "the model's safetensors folder, or convert it with `guard-train import-gguf`"
        )
    fault = "lacks config.json" if folder.is_dir() else "no such folder"
    raise UserError(
        f"model {folder}: {fault}; give a local Hugging Face model folder, "
        f"or {PREFIX}owner/name to fetch one"
    )
